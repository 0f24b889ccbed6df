"""Published names of the Triple-Latent family: every variant there and back, and mistakes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.errors import CheckpointError, ConfigError, InputError
from palimpsest.interop.published import export_published, load_published

TINY: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 14,
    "n_layers": 2,
    "n_heads": 2,
    "max_seq_len": 11,
    "dropout": 0.0,
}
TRIPLE = {**TINY, "state_dim": 5}
# as the published configuration has them, whatever the variant uses
CONFIG = {**TINY, "state_dim": 5, "num_slots": 3, "assoc_dim": 6, "zeroed_future_taps": False}
PUBLISHED: dict[str, Any] = {
    "init": "published",
    "conv_padding": "same",
    "assoc_dim": 6,
    **TRIPLE,
}
UNGATED = {**PUBLISHED, "top_k": 4, "read_gate": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer_gelu": ("transformer", TINY),
    "triple-latent": ("triple-latent", TRIPLE),
    "triple-slot": ("triple-slot", {**TRIPLE, "n_slots": 3}),
    "triple-hybrid": ("triple-hybrid", {**TRIPLE, "conv_padding": "same"}),
    "triple-slot-hybrid": ("triple-slot-hybrid", {**TRIPLE, "n_slots": 3, "conv_padding": "same"}),
    "triple-hybrid-assoc-gated-last-logits": ("gated-hybrid", PUBLISHED),
    "triple-hybrid-assoc-last-logits": ("gated-hybrid", UNGATED),
    "triple-hybrid-assoc-all-sum": ("gated-hybrid", {**UNGATED, "layers": "all", "fusion": "sum"}),
    "triple-hybrid-assoc-serial-last-concat": (
        "gated-hybrid",
        {**UNGATED, "query": "serial", "fusion": "concat"},
    ),
    "triple-slot-hybrid-assoc-gated-all-logits": (
        "gated-hybrid",
        {**PUBLISHED, "n_slots": 3, "layers": "all", "write_gate": True},
    ),
}


@pytest.fixture(autouse=True)
def leak_is_known() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")
        yield


@pytest.mark.parametrize("variant", CASES)
def test_round_trip(variant: str) -> None:
    name, fields = CASES[variant]
    model = palimpsest.build(name, **fields).double()
    for parameter in model.parameters():
        parameter.data.normal_()
    exported = export_published(model)
    assert sum(a.size for a in exported.values()) == model.num_parameters()
    loaded = load_published(exported, {"variant": variant, **CONFIG})
    assert loaded.registry_name == name
    assert loaded.config == model.config
    for part, parameter in model.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[part], parameter), part
    ids = torch.randint(0, 37, (2, 9))
    model.eval()(ids, targets=ids).loss.backward()
    gradients = export_published(model, gradients=True)
    assert {n: a.shape for n, a in gradients.items()} == {n: a.shape for n, a in exported.items()}


def test_rows_of_the_joint_projection() -> None:
    model = palimpsest.build("triple-slot", **TRIPLE, n_slots=3)
    exported = export_published(model)
    names = ("a", "b", "q_left", "q_right", "state_decay", "pair_decay", "slot_gate")
    rows = [exported[f"layers.1.{name}_proj.weight"] for name in names]
    assert [len(r) for r in rows] == [10, 10, 10, 10, 2, 2, 6]
    assert np.array_equal(np.concatenate(rows), model.layers[1].mixer.weight.detach().numpy())


def test_taps_of_the_causal_convolution() -> None:
    """Published taps 0 … 2 are ours 2 … 4; a model that looks further back has no such form."""
    config = {"variant": "triple-hybrid", **CONFIG, "zeroed_future_taps": True}
    model = palimpsest.build("triple-hybrid", **TRIPLE)
    with pytest.raises(InputError, match="three and four tokens back"):
        export_published(model)
    model.local_conv.weight.data[..., :2] = 0
    exported = export_published(model)
    published, ours = exported["local_conv.weight"], model.local_conv.weight.detach().numpy()
    assert np.array_equal(published[..., :3], ours[..., 2:])
    assert not published[..., 3:].any()
    loaded = load_published(exported, config)
    assert loaded.causal
    assert torch.equal(loaded.local_conv.weight, model.local_conv.weight)
    exported["local_conv.weight"][0, 0, 3] = 1e-9
    with pytest.raises(CheckpointError, match="sees two tokens ahead"):
        load_published(exported, config)
    assert not load_published(exported, {**config, "zeroed_future_taps": False}).causal


def test_learned_temperature_has_no_published_form() -> None:
    with pytest.raises(InputError, match="learned_temperature=True"):
        export_published(palimpsest.build("gated-hybrid", **TRIPLE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "triple"}, "variant='triple': is none of transformer"),
        ({"variant": "triple-latent-assoc-last-logits"}, "variant='triple-latent-assoc"),
        ({"variant": "triple-hybrid-assoc-first-logits"}, "'first' is no option"),
        ({"variant": "triple-hybrid", "kernel": 7}, "kernel=7: no key of the published"),
        ({"variant": "triple-latent", "n_heads": 0}, "n_heads=0"),
    ],
)
def test_configurations_of_no_published_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_published({}, {**CONFIG, **changes})


def test_arrays_that_do_not_fit() -> None:
    exported = export_published(palimpsest.build("triple-latent", **TRIPLE))
    exported["layers.0.a_proj.weight"] = exported["layers.0.a_proj.weight"][:-1]
    del exported["layers.1.pair_decay_proj.bias"]
    with pytest.raises(
        CheckpointError,
        match=r"missing: layers.1.pair_decay_proj.bias; mis-shaped: layers.0.a_proj.weight "
        r"\(9, 14\), must be \(10, 14\)",
    ):
        load_published(exported, {"variant": "triple-latent", **CONFIG})
