"""Geometry against a dense fp64 computation, on planted covariances, and on models."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest import analysis
from palimpsest.analysis.geometry import GeometryReducer, measure_geometry, vector_geometry
from palimpsest.analysis.passes import cut_windows, decode_vectors, state_tap
from palimpsest.errors import InputError
from tests.contract.configs import CONFIGS


def dense(x_ND: Tensor) -> dict[str, float]:
    """The definitions as they stand, from the singular values of the centred matrix."""
    x_ND = x_ND.double()
    centred = x_ND - x_ND.mean(0)
    singular = torch.linalg.svdvals(centred)
    values = singular.square()
    correlation = torch.corrcoef(x_ND.T)
    off = correlation[~torch.eye(len(correlation), dtype=torch.bool)].abs()
    shares = values.cumsum(0) / values.sum()
    return {
        "norm_mean": float(x_ND.norm(dim=1).mean()),
        "norm_std": float(x_ND.norm(dim=1).std(correction=0)),
        "mean_norm": float(x_ND.mean(0).norm()),
        "correlation_mean": float(off.mean()),
        "correlation_max": float(off.max()),
        "components_90": int((shares < 0.90).sum()) + 1,
        "components_99": int((shares < 0.99).sum()) + 1,
        "stable_rank": float(centred.square().sum() / singular[0] ** 2),
        "participation_ratio": float(values.sum() ** 2 / values.square().sum()),
    }


@pytest.mark.parametrize("dtype,rtol", [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_streaming_is_the_dense_computation(dtype: torch.dtype, rtol: float) -> None:
    mixing = torch.randn(13, 13, dtype=torch.float64) * torch.logspace(0, -1.5, 13)
    x_ND = (torch.randn(9001, 13, dtype=torch.float64) @ mixing + 30.0).to(dtype)
    reducer = GeometryReducer()
    for piece in x_ND.split([1, 7, 4993, 4000]):
        reducer.update(piece)
    found = reducer.result()
    for name, value in dense(x_ND).items():
        assert getattr(found, name) == pytest.approx(value, rel=rtol), name
    torch.testing.assert_close(
        torch.tensor(found.std, dtype=torch.float64),
        x_ND.double().std(0, correction=0),
        rtol=rtol,
        atol=0,
    )
    assert found.vectors == 9001 and found.width == 13


def test_a_mean_far_from_zero_costs_no_variance() -> None:
    x_ND = torch.randn(5000, 5, dtype=torch.float64) + 1e4
    found = vector_geometry(x_ND.float())
    expected = x_ND.float().double().std(0, correction=0)
    torch.testing.assert_close(
        torch.tensor(found.std, dtype=torch.float64), expected, rtol=1e-5, atol=0
    )


def test_two_reducers_merge_into_that_of_the_whole() -> None:
    x_ND = torch.randn(501, 7, dtype=torch.float64) + 3.0
    left, right = GeometryReducer(), GeometryReducer()
    left.update(x_ND[:200])
    right.update(x_ND[200:])
    left.merge(right)
    whole = vector_geometry(x_ND)
    assert left.result().eigenvalues == pytest.approx(whole.eigenvalues, rel=1e-10)
    assert left.result().norm_mean == pytest.approx(whole.norm_mean, rel=1e-12)
    with pytest.raises(InputError, match=r"merge: GeometryReducer"):
        left.merge(GeometryReducer(0.5))


def test_planted_covariance() -> None:
    # an exact covariance: scaled orthogonal columns of mean zero
    drawn = torch.randn(400, 6, dtype=torch.float64)
    basis, _ = torch.linalg.qr(drawn - drawn.mean(0))
    std = torch.tensor([4.0, 2.0, 1.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    found = vector_geometry(basis * 20.0 * std)  # divisor 400 = 20²
    assert found.std == pytest.approx(std.tolist(), abs=1e-12)
    assert found.dead == (5,)
    lam = [16.0, 4.0, 1.0, 1.0, 0.25, 0.0]
    assert found.eigenvalues == pytest.approx(lam, abs=1e-12)
    assert found.stable_rank == pytest.approx(sum(lam) / 16)
    assert found.participation_ratio == pytest.approx(sum(lam) ** 2 / sum(v * v for v in lam))
    assert found.components_90 == 3  # 21 of 22.25
    assert found.components_99 == 5
    assert found.pca_curve() == pytest.approx([v / 22.25 for v in (16, 20, 21, 22, 22.25, 22.25)])
    assert found.correlation_max == pytest.approx(0.0, abs=1e-12)


def test_the_pair_of_the_largest_correlation() -> None:
    x_ND = torch.randn(4000, 5, dtype=torch.float64)
    x_ND[:, 3] = -0.8 * x_ND[:, 1] + 0.6 * x_ND[:, 3]
    found = vector_geometry(x_ND)
    assert found.correlation_pair == (1, 3)
    assert found.correlation_max == pytest.approx(0.8, abs=0.02)


def test_dead_dimensions_are_left_out_of_correlations() -> None:
    x_ND = torch.randn(300, 3)
    x_ND[:, 1] = 7.0
    found = vector_geometry(x_ND)
    assert found.dead == (1,)
    assert found.correlation_pair == (0, 2)
    x_ND[:, 2] = 0.0
    assert vector_geometry(x_ND).correlation_mean is None
    x_ND[:, 1] += 1e-4 * torch.randn(300)  # moves, and counts as dead all the same
    assert vector_geometry(x_ND).dead == (1, 2)
    assert vector_geometry(x_ND, dead_below=1e-6).dead == (2,)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_model_gives_what_its_recorded_states_give(name: str) -> None:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).train()
    ids_WT = cut_windows(torch.randint(0, 37, (53,)), 10)
    found = measure_geometry(model, ids_WT, batch_size=2)
    assert model.training
    model.eval()
    with torch.no_grad(), analysis.record(model, [state_tap(model)]) as tape:
        model(ids_WT)
    recorded = tape[state_tap(model)]
    whole = vector_geometry(recorded)
    assert found.vectors == 50 and found.width == recorded.shape[-1]
    assert found.std == pytest.approx(whole.std, rel=1e-4)
    assert found.participation_ratio == pytest.approx(whole.participation_ratio, rel=1e-3)
    assert json.loads(json.dumps(found.to_dict()))["width"] == found.width


@pytest.mark.parametrize("name", ["gpnm", "gdn", "transformer", "triple-hybrid"])
def test_recorded_states_decode_to_the_models_own_logits(name: str) -> None:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).eval()
    ids = torch.randint(0, 37, (2, 9))
    with torch.no_grad(), analysis.record(model, [state_tap(model)]) as tape:
        logits = model(ids).logits
    features = decode_vectors(model, tape[state_tap(model)].flatten(0, 1))
    torch.testing.assert_close((features @ model.head_weight().T).view_as(logits), logits)


def test_windows() -> None:
    ids = torch.arange(23)
    assert cut_windows(ids, 5).shape == (4, 5)
    assert cut_windows(ids, 5, stride=2).shape == (10, 5)
    assert cut_windows(ids.numpy(), 5, stride=1, most=3)[:, 0].tolist() == [0, 9, 18]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="a text of 4 tokens fills no window of 5"):
        cut_windows(torch.arange(4), 5)
    with pytest.raises(InputError, match="stride=0"):
        cut_windows(torch.arange(4), 2, stride=0)
    with pytest.raises(InputError, match="must be one text"):
        cut_windows(torch.zeros(2, 2), 1)
    with pytest.raises(InputError, match="needs at least 2"):
        vector_geometry(torch.zeros(1, 3))
    with pytest.raises(InputError, match="variance is 0"):
        vector_geometry(torch.ones(4, 3))
    with pytest.raises(InputError, match="variance is nan"):
        vector_geometry(torch.full((4, 3), float("nan")))
    with pytest.raises(InputError, match="dead_below=1"):
        GeometryReducer(1.0)
    with pytest.raises(InputError, match="it needs one vector"):
        GeometryReducer().update(torch.zeros(4, 3, 2))
    model = palimpsest.build("transformer", **CONFIGS["transformer"]["learned"])
    with pytest.raises(InputError, match=r"has no such tap with one vector.*layers\.0\.residual"):
        measure_geometry(model, torch.zeros(2, 8, dtype=torch.long), tap="state.predicted")
    with pytest.raises(InputError, match="holds at most 73"):
        measure_geometry(model, torch.zeros(2, 80, dtype=torch.long))
    with pytest.raises(InputError, match="use cut_windows"):
        measure_geometry(model, torch.zeros(8, dtype=torch.long))
