from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops import backend_calls, threads
from palimpsest.ops.causal_conv import causal_conv
from palimpsest.ops.short_conv import short_conv
from tests.ops.decay_scan.cases import GATES, compare, leaf, masks

B, C, W = 3, 5, 4
FAST = ("taps", "numba")


def inputs(length: int, width: int = W) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return leaf(B, length, C), leaf(C, width), leaf(C), leaf(B, width - 1, C)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 33])
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    compare(short_conv, "short_conv", backend, inputs(length), **masks(gates, B, length))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", ["open", "both"])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_every_width(width: int, gates: str, backend: str) -> None:
    compare(short_conv, "short_conv", backend, inputs(9, width), **masks(gates, B, 9))


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_is_conv1d_padded_on_the_left(backend: str) -> None:
    x, weight, bias, _ = inputs(9)
    want = F.conv1d(F.pad(x.mT, (W - 1, 0)), weight[:, None], bias, groups=C).mT
    y, window = short_conv(x, weight, bias, backend=backend)
    torch.testing.assert_close(y, want)
    assert torch.equal(window, x[:, -(W - 1) :])


def test_is_the_depthwise_causal_convolution() -> None:
    x, weight, bias, window = inputs(12)
    gates = masks("both", B, 12)
    want, want_window = causal_conv(x, weight[:, None], bias, window, **gates)
    y, last = short_conv(x, weight, bias, window, **gates)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(last, want_window)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("only", [0, 1])
def test_gradient_of_each_output_alone(only: int, backend: str) -> None:
    compare(short_conv, "short_conv", backend, inputs(6), only=only)


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    for options in ({}, masks("both", B, 3)):
        assert torch.autograd.gradcheck(
            lambda *x, o=options: short_conv(*x, backend=backend, **o), inputs(3)
        )


@pytest.mark.parametrize("backend", FAST)
def test_splitting_is_invisible(backend: str) -> None:
    x, weight, bias, window = inputs(11)
    gates = masks("both", B, 11)
    whole, final = short_conv(x, weight, bias, window, backend=backend, **gates)
    for at in range(1, 11):
        early, late = ({k: m[:, s] for k, m in gates.items() if m is not None}
                       for s in (slice(0, at), slice(at, 11)))  # fmt: skip
        first, middle = short_conv(x[:, :at], weight, bias, window, backend=backend, **early)
        second, last = short_conv(x[:, at:], weight, bias, middle, backend=backend, **late)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
def test_causal_bit_for_bit(backend: str) -> None:
    x, weight, bias, _ = (t.detach() for t in inputs(20))
    y, _ = short_conv(x, weight, bias, backend=backend)
    x[:, 11] += 1
    changed, _ = short_conv(x, weight, bias, backend=backend)
    assert torch.equal(changed[:, :11], y[:, :11])
    assert (changed[:, 11 : 11 + W] != y[:, 11 : 11 + W]).all()
    assert torch.equal(changed[:, 11 + W :], y[:, 11 + W :])


@pytest.mark.parametrize("backend", FAST)
def test_strided_views_and_no_gradient(backend: str) -> None:
    x = torch.randn(C, B, 6, dtype=torch.float64).permute(1, 2, 0)
    weight = torch.randn(W, C, dtype=torch.float64).T
    want, _ = short_conv(x, weight, backend="reference")
    window = torch.zeros(B, W - 1, C, dtype=torch.float64)
    y, last = short_conv(x, weight, None, window, backend=backend)
    torch.testing.assert_close(y, want)
    assert not window.any(), "the window passed in was changed"
    assert last.untyped_storage().nbytes() == last.numel() * 8, "the state keeps all inputs alive"


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(short_conv, "short_conv", "numba", inputs(10), **masks("both", B, 10))


def test_float32_and_automatic_choice() -> None:
    wide = inputs(100)
    before = backend_calls()
    y, _ = short_conv(*(t.float() for t in wide))
    assert backend_calls() - before == {("short_conv", "numba"): 1}
    want, _ = short_conv(*wide, backend="reference")
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    assert short_conv(wide[0].bfloat16(), wide[1].bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_BTC": torch.zeros(B, 0, C)}, "at least one position"),
        ({"weight_CW": torch.zeros(C + 1, W)}, r"\(C=5, W\)"),
        ({"weight_CW": torch.zeros(C, 0)}, "W at least 1"),
        ({"bias_C": torch.zeros(C + 1)}, "bias_C has shape"),
        ({"window_BWC": torch.zeros(B, W, C)}, "W=3"),
        ({"hold": torch.zeros(B, 5, dtype=torch.bool)}, "hold has shape"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"x_BTC": torch.zeros(B, 4, C), "weight_CW": torch.zeros(C, W)}
    with pytest.raises(ValueError, match=message):
        short_conv(**{**good, **change})
