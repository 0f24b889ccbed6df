"""Streaming statistics against the same on all values at once, in any pieces, merged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from palimpsest.analysis import Covariance, Histogram, Mean, Norms, Reducer, TopK
from palimpsest.errors import InputError

EDGES = [-1.0, -0.25, 0.0, 0.5, 2.0]
MAKERS: list[Callable[[], Reducer]] = [
    Mean,
    Covariance,
    lambda: Histogram(EDGES),
    lambda: Histogram(7, -2.0, 2.0, per_entry=True),
    Norms,
    lambda: TopK(4),
]


@pytest.fixture
def x() -> Tensor:
    """(N,3,5) with a mean far from zero."""
    return torch.randn(230, 3, 5, dtype=torch.float64) + 40.0 * torch.randn(3, 5).double()


def flat(result: object) -> Tensor:
    if isinstance(result, dict):
        return torch.tensor(list(result.values()), dtype=torch.float64)
    parts = result if isinstance(result, tuple) else (result,)
    return torch.cat([p.double().flatten() for p in parts])


@pytest.mark.parametrize("make", MAKERS)
def test_pieces_and_merging(make: Callable[[], Reducer], x: Tensor) -> None:
    whole, pieces, one, two, none = (make() for _ in range(5))
    whole.update(x)
    for piece in x.split([1, 100, 0, 7, 122]):
        pieces.update(piece)
    places = torch.stack([torch.zeros(230, dtype=torch.long), torch.arange(230)], 1)
    one.update(x[:90], places[:90])
    two.update(x[90:], places[90:])
    one.merge(two)
    none.merge(one)
    one.merge(make())
    assert whole.count == pieces.count == one.count == none.count == 230
    for other in (pieces, one, none):
        assert torch.allclose(flat(other.result()), flat(whole.result()), rtol=1e-12, atol=1e-12)


def test_against_dense(x: Tensor) -> None:
    for reducer in (mean := Mean(), cov := Covariance(), norms := Norms(), top := TopK(4)):
        reducer.update(x)
    assert torch.allclose(mean.result(), x.mean(0), rtol=1e-13)
    centre, covariance = cov.result()
    assert torch.allclose(centre, x.flatten(1).mean(0), rtol=1e-13)
    assert torch.allclose(covariance, torch.cov(x.flatten(1).T, correction=0), atol=1e-12)
    want = x.flatten(1).norm(dim=1)
    found = norms.result()
    assert found["mean"] == pytest.approx(float(want.mean()), rel=1e-12)
    assert found["std"] == pytest.approx(float(want.std(correction=0)), rel=1e-8)
    assert (found["min"], found["max"]) == (float(want.min()), float(want.max()))
    values, places = top.result()
    assert torch.equal(values, x.topk(4, 0).values)
    assert torch.equal(places[..., 1], x.topk(4, 0).indices)


def test_covariance_in_single_precision_far_from_zero() -> None:
    """A mean a thousand times the spread costs nothing: the products are of centred entries."""
    x = (torch.randn(9000, 6, dtype=torch.float64) + 1000.0).float()
    reducer = Covariance()
    for piece in x.split(1000):
        reducer.update(piece)
    want = torch.cov(x.double().T, correction=0)
    assert (reducer.result()[1] - want).abs().max() < 2e-6 * want.abs().max()


def test_histograms_count_everything(x: Tensor) -> None:
    together, apart = Histogram(EDGES), Histogram(EDGES, per_entry=True)
    x[0, 0, 0], x[1, 0, 0] = EDGES[1], EDGES[-1]  # a bin holds its lower edge
    for reducer in (together, apart):
        reducer.update(x)
    edges, counts = together.result()
    assert counts.sum() == x.numel() and counts.shape == (6,)
    for i in range(4):
        inside = (x >= edges[i]) & (x < edges[i + 1])
        assert counts[i + 1] == inside.sum()
    assert counts[0] == (x < edges[0]).sum() and counts[5] == (x >= edges[4]).sum()
    each = apart.result()[1]
    assert each.shape == (3, 5, 6) and torch.equal(each.sum((0, 1)), counts)


def test_scalars_of_a_position() -> None:
    x = torch.randn(20)
    cov, top = Covariance(), TopK(30)
    cov.update(x)
    top.update(x)
    assert torch.allclose(cov.result()[1], x.double().var(correction=0)[None, None], atol=1e-7)
    assert torch.equal(top.result()[0], x.sort(descending=True).values)


def test_what_does_not_fit() -> None:
    for make in MAKERS:
        with pytest.raises(InputError, match="no position"):
            make().result()
    mean = Mean()
    mean.update(torch.ones(2, 3))
    with pytest.raises(InputError, match="one reducer serves one tap"):
        mean.update(torch.ones(2, 4))
    with pytest.raises(InputError, match="merge"):
        mean.merge(Norms())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="merge"):
        TopK(2).merge(TopK(3))
    for make in (lambda: Histogram(0, 0.0, 1.0), lambda: Histogram(3), lambda: Histogram([1.0])):
        with pytest.raises(InputError, match="Histogram"):
            make()
    with pytest.raises(InputError, match="k must be"):
        TopK(0)
