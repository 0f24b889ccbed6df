"""Published arrays in and out: names, layouts, dtypes, and every mistake in one message."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.errors import CheckpointError, ConfigError, InputError
from palimpsest.interop.published import (
    export_published,
    load_published,
    read_published_pickle,
)

GPN = {"vocab_size": 37, "d_state": 13, "d_emb": 6, "d_ffn": 17}
GPNM = {**GPN, "n_heads": 3, "d_key": 5, "d_val": 7}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpn": ("gpn", GPN),
    "gpn, 2 layers": ("gpn", {**GPN, "n_layers": 2}),
    "gpnm": ("gpnm", GPNM),
    "gpnm, 2 layers": ("gpnm", {**GPNM, "n_layers": 2}),
    "gpnm, 3 layers": ("gpnm", {**GPNM, "n_layers": 3}),
}
# the shapes of spec "Grounded Prediction Networks", "Parameters"
SHAPES = {
    "embedding": (37, 6), "decode_norm_w": (13,), "decode_proj_k": (13, 6), "fuse_norm_w": (6,),
    "fuse_proj_k": (6, 13), "fg_norm_w": (13,), "fg_gate_k": (13, 13), "fg_gate_b": (13,),
}  # fmt: skip
WRITE_SHAPES = {
    "write_norm_w": (13,), "write_W_k_k": (13, 15), "write_W_k_b": (15,),
    "write_W_v_k": (13, 21), "write_W_beta_k": (13, 3), "write_W_a_k": (13, 3),
    "write_A_log": (3,), "write_dt_bias": (3,),
}  # fmt: skip
LAYER_SHAPES = {
    "ffn_norm_w": (13,), "ffn_w1_k": (13, 34), "ffn_w2_k": (17, 13), "pg_norm_w": (13,),
    "pg_gate_k": (13, 13), "pg_gate_b": (13,),
}  # fmt: skip
READ_SHAPES = {
    "read_norm_w": (13,), "read_W_q_k": (13, 15), "read_W_q_b": (15,), "read_W_gate_k": (13, 21),
    "read_out_norm_w": (21,), "read_W_o_k": (21, 13),
}  # fmt: skip


def shapes(params: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in params.items()}


def arrays(name: str, **fields: Any) -> dict[str, np.ndarray]:
    return export_published(palimpsest.build(name, **fields))


@pytest.mark.parametrize("bias", [False, True], ids=["", "decode_bias"])
def test_names_and_shapes(bias: bool) -> None:
    decode = {"decode_bias": (6,)} if bias else {}
    plain = arrays("gpn", **GPN, decoder_bias=bias)
    assert shapes(plain) == {**SHAPES, **LAYER_SHAPES, **decode}
    with_memory = arrays("gpnm", **GPNM, n_layers=2, decoder_bias=bias)
    layers = {
        f"L{i}_{name}": shape
        for i in range(2)
        for name, shape in {**LAYER_SHAPES, **READ_SHAPES}.items()
    }
    assert shapes(with_memory) == {**SHAPES, **WRITE_SHAPES, **layers, **decode}


@pytest.mark.parametrize("bias", [False, True], ids=["", "decode_bias"])
@pytest.mark.parametrize("case", CASES)
def test_round_trip(case: str, bias: bool) -> None:
    name, config = CASES[case]
    model = palimpsest.build(name, **config, decoder_bias=bias)
    loaded = load_published(export_published(model), {**config, "use_decoder_bias": bias})
    assert loaded.registry_name == name
    assert loaded.config == model.config
    for (name_, one), (_, two) in zip(
        model.named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert torch.equal(one, two), name_


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
def test_dtype_is_kept(dtype: str) -> None:
    params = {n: a.astype(dtype) for n, a in arrays("gpnm", **GPNM).items()}
    for array in params.values():
        array.setflags(write=False)
    model = load_published(params, GPNM)
    assert model.dtype == getattr(torch, np.dtype(dtype).newbyteorder("=").name)
    assert all(np.array_equal(a, params[n]) for n, a in export_published(model).items())


def test_mixed_dtypes_take_the_widest() -> None:
    params = arrays("gpn", **GPN)
    params["fg_gate_b"] = params["fg_gate_b"].astype(np.float64)
    assert load_published(params, GPN).dtype == torch.float64


def test_arrays_are_copied() -> None:
    params = arrays("gpn", **GPN)
    model = load_published(params, GPN)
    params["embedding"][:] = 9.0
    assert not (model.embedding.weight == 9.0).any()
    exported = export_published(model)
    exported["embedding"][:] = 7.0
    assert not (model.embedding.weight == 7.0).any()


def test_bf16_is_exported_as_fp32() -> None:
    model = palimpsest.build("gpn", **GPN).to(torch.bfloat16)
    exported = export_published(model)
    assert {a.dtype for a in exported.values()} == {np.dtype("float32")}
    assert np.array_equal(exported["embedding"], model.embedding.weight.detach().float().numpy())


def test_gradients() -> None:
    model = palimpsest.build("gpnm", **GPNM)
    with pytest.raises(InputError, match=r"call loss\.backward\(\) first"):
        export_published(model, gradients=True)
    ids = torch.arange(6)[None]
    model(ids, targets=ids, predict="current").loss.backward()
    grads = export_published(model, gradients=True)
    assert shapes(grads) == shapes(export_published(model))
    assert np.array_equal(grads["fuse_proj_k"], model.fuse.weight.grad.T.numpy())
    # a window of one token grounds nothing: those gradients are zeros, not missing
    model.zero_grad(set_to_none=True)
    model(ids[:, :1], targets=ids[:, :1], predict="current").loss.backward()
    grads = export_published(model, gradients=True)
    assert not grads["fg_gate_k"].any()
    assert shapes(grads) == shapes(export_published(model))


def test_every_mistake_in_one_message() -> None:
    params = arrays("gpnm", **GPNM)
    del params["write_A_log"], params["L0_pg_gate_b"]
    params["L1_ffn_w1_k"] = np.zeros((13, 34), np.float32)
    params["decode_proj_k"] = params["decode_proj_k"].T
    params["embedding"] = np.zeros((37, 6), np.int64)
    params["fuse_norm_w"] = [1.0] * 6  # type: ignore[assignment]
    with pytest.raises(CheckpointError) as failure:
        load_published(params, GPNM)
    message = str(failure.value)
    assert "missing: L0_pg_gate_b, write_A_log" in message
    assert "unknown: L1_ffn_w1_k" in message
    assert "decode_proj_k (6, 13), must be (13, 6)" in message
    assert "embedding (int64)" in message
    assert "fuse_norm_w (list)" in message
    assert "\n" not in message


def test_another_family_gives_one_short_message() -> None:
    foreign = {f"layers.{i}.weight": np.zeros(2, np.float32) for i in range(100)}
    with pytest.raises(CheckpointError, match=r"unknown: .* and 94 more") as failure:
        load_published(foreign, GPN)
    assert len(str(failure.value)) < 700


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"config with the keys \(none\)"),
        ({"n_embd": 3}, "n_embd: belongs to no published family"),
        ({**GPN, "depth": 2}, "depth=2"),
        ({**GPN, "n_heads": 3}, "needs d_key, d_val"),
        ({**GPN, "d_state": -1}, "d_state=-1"),
        (
            {**GPN, "use_decoder_bias": True},
            "use_decoder_bias=True: contradicts params, which lack",
        ),
        ({**GPN, "use_decoder_bias": "no"}, "use_decoder_bias='no': must be true or false"),
    ],
    ids=lambda v: "" if isinstance(v, dict) else v,
)
def test_bad_config(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_published(arrays("gpn", **GPN), config)


def test_config_that_says_no_memory() -> None:
    config = {**GPN, "n_heads": 0, "d_key": None, "n_layers": np.int64(1), "d_ffn": 17.0}
    config |= {"use_decoder_bias": None}
    assert load_published(arrays("gpn", **GPN), config).registry_name == "gpn"


def test_model_without_published_names() -> None:
    class Other(palimpsest.LanguageModel):
        registry_name = "other"
        encode = init_state = head_weight = None  # type: ignore[assignment]

    with pytest.raises(InputError, match="'other': has no published names"):
        export_published(Other(palimpsest.build("gpn", **GPN).config))


def test_from_a_pickle(tmp_path: Path) -> None:
    params = arrays("gpnm", **GPNM)
    path = tmp_path / "checkpoint.pkl"
    config = {name: np.int64(value) for name, value in GPNM.items()}
    path.write_bytes(pickle.dumps({"params": params, "config": config, "step": 7}))
    content = read_published_pickle(path)
    model = load_published(content["params"], content["config"])
    assert all(np.array_equal(a, params[n]) for n, a in export_published(model).items())
