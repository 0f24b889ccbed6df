"""Dropout by words of random bits: share, mean, gradient, seeds, dtypes."""

from __future__ import annotations

import pytest
import torch

from palimpsest.layers.dropout import LEVELS, dropout


def test_evaluation_and_zero_draw_nothing() -> None:
    x = torch.randn(3, 5)
    before = torch.get_rng_state()
    assert dropout(x, 0.3, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [0.1, 0.37, 0.9])
def test_share_and_scale(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(1001, 999), p, training=True)
    kept = y != 0
    spread = (p * (1 - p) / y.numel()) ** 0.5
    assert abs(1 - kept.double().mean().item() - p) < 4 * spread
    exact = LEVELS / (LEVELS - round(LEVELS * p))
    assert torch.equal(y[kept], torch.tensor(exact).expand(int(kept.sum())))
    # neighbours come from one word, rows from different ones: no two may be tied together
    for one, two in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1])):
        both = (one & two).double().mean().item()
        assert both == pytest.approx((1 - p) ** 2, abs=6 * spread)


def test_every_entry_can_be_dropped_and_kept() -> None:
    kept = torch.stack([dropout(torch.ones(7), 0.5, training=True) != 0 for _ in range(60)])
    assert kept.any(0).all()
    assert not kept.all(0).any()


@pytest.mark.parametrize("p", [1e-7, 1 - 1e-7])
def test_probabilities_at_the_ends_stay_finite(p: float) -> None:
    assert torch.isfinite(dropout(torch.ones(500), p, training=True)).all()


def test_the_seed_decides() -> None:
    x = torch.randn(4, 6, 5)
    torch.manual_seed(3)
    one, two = dropout(x, 0.5, training=True), dropout(x, 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5, training=True), one)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_gradient(dtype: torch.dtype) -> None:
    x = torch.ones(3, 70, dtype=dtype).T.requires_grad_()
    y = dropout(x, 0.25, training=True)
    assert y.dtype == dtype
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())
    assert y.max().item() == pytest.approx(4 / 3, rel=torch.finfo(dtype).eps)
    assert 0 < (y == 0).sum() < y.numel() / 2
