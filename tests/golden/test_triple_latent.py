"""The Triple-Latent family against the published program: logits, loss, gradients, names."""

from __future__ import annotations

import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.interop.published import export_published, load_published
from palimpsest.ops.dispatch import dispatchers
from tests.comparison import assert_close

VARIANTS = (
    "sum", "concat", "logits", "serial_sum", "last_sum", "last_logits", "prev_sum", "prev_logits",
    "gated_last_logits", "writegated_last_logits", "writegated_last_sum", "writegated_all_logits",
)  # fmt: skip
CASES = (
    "transformer",
    "triple_latent",
    "triple_slot",
    "triple_hybrid_published",
    "triple_hybrid_causal",
    "gated_hybrid_causal",
    *(f"assoc_{name}" for name in VARIANTS),
)
OPS = (
    "decay_scan", "pair_memory", "triple_scan", "slot_scan", "causal_conv", "topk_retrieval"
)  # fmt: skip
BACKENDS = sorted({name for op in OPS for name in dispatchers()[op].available()})
TOLERANCE = 2e-5  # of the largest entry: the files are fp32, summed in another order
# a gate in front of a norm has a gradient that nearly cancels, which shows the files' rounding more
GRADIENTS = 5e-5
FUTURE = 2  # taps whose gradients a causal convolution does not have

Case = dict[str, Any]


@pytest.fixture(scope="session", params=CASES)
def case(request: pytest.FixtureRequest, shared: Path) -> Case:
    path = shared / "golden" / f"{request.param}.npz"
    if not path.is_file():
        pytest.skip(f"needs {path.name}")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(params=["automatic", *BACKENDS])
def backend(request: pytest.FixtureRequest) -> Any:
    """Force a backend of every op that has one of this name, and prove that it alone ran."""
    if request.param == "automatic":
        yield request.param
        return
    forced = {op: request.param for op in OPS if request.param in dispatchers()[op].available()}
    before = palimpsest.backend_calls()
    with palimpsest.force_backend(**forced):
        yield request.param
    ran = palimpsest.backend_calls() - before
    assert {name for op, name in ran if op in forced} <= {request.param}


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)


def params_of(case: Case, dtype: np.dtype, kind: str = "param.") -> dict[str, np.ndarray]:
    return {
        name.removeprefix(kind): array.astype(dtype)
        for name, array in case.items()
        if name.startswith(kind)
    }


def load(case: Case, dtype: np.dtype) -> palimpsest.LanguageModel:
    config = json.loads(str(case["config"]))
    leaks = "hybrid" in config["variant"] and not config["zeroed_future_taps"]
    with pytest.warns(UserWarning, match="not causal") if leaks else nullcontext():
        model = load_published(params_of(case, dtype), config)
    assert model.causal != leaks
    assert model.dtype == getattr(torch, dtype.name)
    return model


def test_loss_logits_and_every_gradient(case: Case, backend: str, dtype: np.dtype) -> None:
    model = load(case, dtype)
    tokens = torch.from_numpy(case["tokens"])
    assert_close(model(tokens).logits, case["logits"], TOLERANCE, "logits")
    out = model(tokens[:, :-1], targets=tokens[:, 1:]) if model.causal else None
    if out is None:  # the last token is part of what a two-sided convolution reads
        targets = torch.full_like(tokens, -100)
        targets[:, :-1] = tokens[:, 1:]
        out = model(tokens, targets=targets)
    assert_close(out.loss, case["loss"], TOLERANCE, "loss")
    out.loss.backward()
    got, wanted = export_published(model, gradients=True), params_of(case, dtype, "grad.")
    unread = got.keys() - wanted.keys()  # retrieval parameters of layers that read nothing
    assert all(".assoc_" in name and not got[name].any() for name in unread)
    assert wanted.keys() <= got.keys()
    if model.causal and "local_conv.weight" in wanted:
        wanted["local_conv.weight"][..., -FUTURE:] = 0.0
    for name, gradient in got.items():
        assert gradient.dtype == dtype
        if name not in unread:
            assert_close(gradient, wanted[name], GRADIENTS, f"gradient of {name}")


def test_export_gives_back_what_was_loaded(case: Case, dtype: np.dtype) -> None:
    params = params_of(case, dtype)
    exported = export_published(load(case, dtype))
    assert exported.keys() == params.keys()
    for name, array in params.items():
        assert exported[name].dtype == dtype
        assert np.array_equal(exported[name], array), name


def test_one_token_at_a_time(case: Case) -> None:
    model, tokens = load(case, np.dtype("float64")), torch.from_numpy(case["tokens"])
    if not model.causal:
        with pytest.raises(palimpsest.InputError, match="conv_padding='same' needs the whole"):
            model(tokens[:, 1:], model(tokens[:, :1]).state)
        return
    state, logits = None, []
    with torch.no_grad():
        for t in range(tokens.shape[1]):
            out = model(tokens[:, t : t + 1], state)
            state, logits = out.state, [*logits, out.logits]
    assert_close(torch.cat(logits, 1), case["logits"], TOLERANCE, "logits")


def test_causal_and_published_convolution_agree_where_the_future_is_zero(shared: Path) -> None:
    path = shared / "golden" / "gated_hybrid_causal.npz"
    if not path.is_file():
        pytest.skip(f"needs {path.name}")
    with np.load(path) as arrays:
        case = dict(arrays)
    config = json.loads(str(case["config"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config["conv_padding"] = "same"
        two_sided = load_published(params_of(case, np.dtype("float64")), config)
    tokens = torch.from_numpy(case["tokens"])
    assert_close(two_sided(tokens).logits, case["logits"], TOLERANCE, "logits")
    one_sided = load(case, np.dtype("float64"))
    assert_close(two_sided(tokens).logits, one_sided(tokens).logits, 1e-12, "logits")
