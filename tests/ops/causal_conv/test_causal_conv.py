from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops import backend_calls
from palimpsest.ops.causal_conv import causal_conv
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, D, E, W = 3, 5, 7, 4


def inputs(length: int, depthwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = leaf(D, 1, W) if depthwise else leaf(E, D, W)
    return leaf(B, length, D), weight, leaf(weight.shape[0]), leaf(B, W - 1, D)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, depthwise: bool) -> None:
    compare(
        causal_conv,
        "causal_conv",
        "products",
        inputs(length, depthwise),
        **masks(gates, B, length),
    )


@pytest.mark.parametrize("depthwise", [False, True])
def test_is_conv1d_padded_on_the_left(depthwise: bool) -> None:
    x, weight, bias, _ = inputs(9, depthwise)
    want = F.conv1d(F.pad(x.mT, (W - 1, 0)), weight, bias, groups=D if depthwise else 1).mT
    for backend in ("reference", "products"):
        y, carry = causal_conv(x, weight, bias, backend=backend)
        torch.testing.assert_close(y, want)
        assert torch.equal(carry, x[:, -(W - 1) :])


@pytest.mark.parametrize("only", [0, 1])
def test_gradient_of_each_output_alone(only: int) -> None:
    compare(causal_conv, "causal_conv", "products", inputs(6, False), only=only)


@pytest.mark.parametrize("depthwise", [False, True])
def test_gradcheck(depthwise: bool) -> None:
    gates = masks("both", B, 3)
    for options in ({}, gates):
        assert torch.autograd.gradcheck(
            lambda *x, o=options: causal_conv(*x, backend="products", **o), inputs(3, depthwise)
        )


@pytest.mark.parametrize("depthwise", [False, True])
def test_splitting_is_invisible(depthwise: bool) -> None:
    x, weight, bias, carry = inputs(67, depthwise)
    gates = masks("both", B, 67)
    whole, final = causal_conv(x, weight, bias, carry, **gates)
    for at in (1, 2, 3, 63, 64, 65):
        first, middle = causal_conv(
            x[:, :at],
            weight,
            bias,
            carry,
            **{k: None if m is None else m[:, :at] for k, m in gates.items()},
        )
        second, last = causal_conv(
            x[:, at:],
            weight,
            bias,
            middle,
            **{k: None if m is None else m[:, at:] for k, m in gates.items()},
        )
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-12)


def test_padding_is_as_if_it_were_not_there() -> None:
    x, weight, bias, carry = inputs(6, False)
    hold = torch.tensor([[False, True, False, True, True, False]]).expand(B, 6)
    y, last = causal_conv(x, weight, bias, carry, hold=hold)
    want, want_last = causal_conv(x[:, [0, 2, 5]], weight, bias, carry)
    torch.testing.assert_close(y[:, [0, 2, 5]], want)
    torch.testing.assert_close(last, want_last)
    assert not y[:, [1, 3, 4]].any()


def test_causal_bit_for_bit() -> None:
    x, weight, bias, _ = (t.detach() for t in inputs(20, False))
    y, _ = causal_conv(x, weight, bias)
    x[:, 11] += 1
    changed, _ = causal_conv(x, weight, bias)
    assert torch.equal(changed[:, :11], y[:, :11])
    assert (changed[:, 11 : 11 + W] != y[:, 11 : 11 + W]).all()


def test_kernel_of_one_and_no_bias() -> None:
    x, weight = leaf(B, 4, D), leaf(E, D, 1)
    y, carry = causal_conv(x, weight)
    torch.testing.assert_close(y, F.linear(x, weight[..., 0]))
    assert carry.shape == (B, 0, D)
    reference, _ = causal_conv(x, weight, backend="reference")
    torch.testing.assert_close(y, reference)


def test_float32_and_automatic_choice() -> None:
    wide = inputs(100, False)
    before = backend_calls()
    y, _ = causal_conv(*(t.float() for t in wide))
    assert backend_calls() - before == {("causal_conv", "products"): 1}
    want, _ = causal_conv(*wide, backend="reference")
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    assert causal_conv(wide[0].bfloat16(), wide[1].bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_BTD": torch.zeros(B, 0, D)}, "at least one position"),
        ({"weight": torch.zeros(E, D + 1, W)}, r"\(E, 5, W\)"),
        ({"weight": torch.zeros(E, 1, W)}, r"depthwise \(5, 1, W\)"),
        ({"bias_E": torch.zeros(E + 1)}, "bias_E has shape"),
        ({"carry_BWD": torch.zeros(B, W, D)}, "W=3"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"x_BTD": torch.zeros(B, 4, D), "weight": torch.zeros(E, D, W)}
    with pytest.raises(ValueError, match=message):
        causal_conv(**{**good, **change})
