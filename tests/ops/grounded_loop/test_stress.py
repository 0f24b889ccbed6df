"""The grounded loop where arithmetic is hard: extreme decays, strengths, keys and lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from palimpsest.ops.dispatch import dispatchers
from tests.comparison import assert_all_close
from tests.ops.grounded_loop.blocks import Inputs, make_inputs, values_and_gradients

BACKENDS = dispatchers()["grounded_loop"].available()
LENGTH = 40  # more than one chunk of the memory

Change = Callable[[str, Tensor], Tensor]


def _set(**values: Callable[[Tensor], Tensor]) -> Change:
    def change(name: str, tensor: Tensor) -> Tensor:
        for ending, make in values.items():
            if name.endswith(ending):
                return make(tensor)
        return tensor

    return change


EXTREMES: dict[str, Change] = {
    # exp(g) underflows to 0 within a step: ratios of decays must not be formed as quotients
    "instant decay": _set(A_log_H=lambda t: t * 0 + 6.0, dt_bias_H=lambda t: t * 0 + 3.0),
    "decays of all speeds": _set(A_log_H=lambda t: torch.linspace(-18, 8, len(t)).to(t)),
    "no decay": _set(A_log_H=lambda t: t * 0 - 18.0, dt_bias_H=lambda t: t * 0 - 20.0),
    "strength 0": _set(beta_HD=lambda t: t * 0 - 60.0),
    "strength 0 or 1": _set(beta_HD=lambda t: t * 400.0),
    # every key the same: the write must not grow the memory
    "repeated keys": _set(key_PD=lambda t: t * 0, key_bias_P=lambda t: t * 0 + 1.0),
    "keys of zero": _set(key_PD=lambda t: t * 0, key_bias_P=lambda t: t * 0 - 1.0),
    "queries of zero": _set(query_PD=lambda t: t * 0, query_bias_P=lambda t: t * 0 - 1.0),
    "gates shut": _set(gate_bias_D=lambda t: t * 0 - 90.0),
    "gates open": _set(gate_bias_D=lambda t: t * 0 + 90.0),
    "huge input": _set(drive=lambda t: t * 1e4),
    "no input": _set(drive=lambda t: t * 0, predicted=lambda t: t * 0, grounded=lambda t: t * 0),
}


IN_LOW_PRECISION = (
    "instant decay",
    "decays of all speeds",
    "strength 0 or 1",
    "keys of zero",
    "huge input",
    "no input",
)


def extreme(what: str) -> Inputs:
    return make_inputs(LENGTH, masks=True, seed=7).map(EXTREMES[what])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("what", EXTREMES)
def test_extreme(what: str, name: str) -> None:
    want_values, want_grads = values_and_gradients(extreme(what), "reference")
    values, grads = values_and_gradients(extreme(what), name)
    assert_all_close(values, want_values, 1e-9)
    assert_all_close(grads, want_grads, 1e-8, "gradient of ")


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", BACKENDS)
def test_extremes_stay_finite_in_low_precision(name: str, autocast: bool) -> None:
    for what in IN_LOW_PRECISION:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            values, grads = values_and_gradients(extreme(what).to(torch.float32), name)
        for label, tensor in (*values.items(), *grads.items()):
            assert torch.isfinite(tensor).all(), f"{what}: {label}"


@pytest.mark.parametrize("length", [700, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BACKENDS)
def test_long_text_stays_finite(name: str, length: int) -> None:
    """Keys repeated, almost no decay: the memory must stay bounded."""
    inputs = make_inputs(length, batch=1, seed=3).map(EXTREMES["repeated keys"])
    inputs = inputs.map(EXTREMES["no decay"]).to(torch.float32)
    with torch.no_grad():
        outputs = inputs.run(name)
    for output in outputs:
        assert torch.isfinite(output).all()
    assert float(outputs[3].abs().max()) < 1e3
