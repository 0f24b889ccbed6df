"""Effective context where it is known: a model that sees five tokens, and truncation by hand."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import palimpsest
from palimpsest import analysis
from palimpsest.analysis.context import measure_context, measure_influence
from palimpsest.analysis.passes import input_tap
from palimpsest.errors import InputError
from tests.contract.configs import CONFIGS


def model_of(name: str) -> palimpsest.LanguageModel:
    return palimpsest.build(name, **next(iter(CONFIGS[name].values())))


def five_tokens() -> palimpsest.LanguageModel:
    """A model whose layers mix no positions, so that its convolution of kernel 5 is all it sees."""
    model = palimpsest.build("triple-slot-hybrid", **CONFIGS["triple-slot-hybrid"]["unbounded"])
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.out.weight.zero_()
    return model.double()


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_truncation_and_gradient_by_hand(name: str) -> None:
    model = model_of(name).double().train()
    ids_WT = torch.randint(0, 37, (5, 13))
    found = measure_context(model, ids_WT, [1, 4, 12], batch_tokens=16)
    influence = measure_influence(model, ids_WT, batch_size=2)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    for kept, estimate in zip(found.lengths, found.loss, strict=True):
        with torch.no_grad():
            logits = model(ids_WT[:, 12 - kept : 12]).logits[:, -1]
        assert estimate.value == pytest.approx(float(F.cross_entropy(logits, ids_WT[:, 12])))
    assert found.excess[-1].value == 0.0
    # one target by finite differences, at lags near and far
    tap, row = input_tap(model), 3
    with torch.no_grad(), analysis.record(model, [tap]) as tape:
        model(ids_WT[row : row + 1, :12])
    x = tape[tap]

    def loss(moved: torch.Tensor) -> torch.Tensor:
        with analysis.intervene(model, {tap: lambda _: moved}):
            logits = model(ids_WT[row : row + 1, :12]).logits
        return F.cross_entropy(logits[:, -1], ids_WT[row : row + 1, 12])

    gradient = torch.autograd.grad(loss(x.requires_grad_()), x)[0]
    norms = gradient.norm(dim=-1)[0]
    alone = measure_influence(model, ids_WT[row : row + 1])
    assert [e.value for e in alone.norm] == pytest.approx(norms.flip(0).tolist(), rel=1e-9)
    for lag in (1, 5):
        step = torch.zeros_like(x)
        step[:, 12 - lag] = 1e-5 * F.normalize(gradient[:, 12 - lag], dim=-1)
        with torch.no_grad():
            slope = float(loss(x + step) - loss(x - step)) / 2e-5
        assert slope == pytest.approx(alone.norm[lag - 1].value, rel=1e-4, abs=1e-9)
    assert influence.targets == 5 and influence.lags == tuple(range(1, 13))
    assert sum(influence.share) == pytest.approx(1.0)
    json.dumps([found.to_dict(), influence.to_dict()])


def test_a_model_that_sees_five_tokens() -> None:
    model = five_tokens()
    ids_WT = torch.randint(0, 37, (40, 17))
    influence = measure_influence(model, ids_WT)
    assert min(influence.share[:5]) > 1e-3
    assert influence.share[5:] == pytest.approx([0.0] * 11, abs=1e-15)
    assert influence.most <= 5
    found = measure_context(model, ids_WT, [1, 2, 4, 5, 6, 16])
    assert [e.value for e in found.excess[3:]] == pytest.approx([0.0] * 3, abs=1e-12)
    assert min(abs(e.value) for e in found.excess[:3]) > 1e-6
    assert found.targets == 40 and found.excess[0].stderr is not None


def test_the_effective_length_is_where_the_excess_stays_low() -> None:
    model = five_tokens()
    ids_WT = torch.randint(0, 37, (8, 9))
    found = measure_context(model, ids_WT)
    assert found.lengths == (1, 2, 4, 8)
    tolerance = sorted(abs(e.value) for e in found.excess)[-1]
    assert measure_context(model, ids_WT, tolerance=2 * tolerance).effective == 1
    strict = measure_context(model, ids_WT, tolerance=0.0)
    above = [n for n, e in zip(strict.lengths, strict.excess, strict=True) if e.value > 0]
    later = [n for n in strict.lengths if n > max(above, default=0)]
    assert strict.effective == later[0]


def test_bad_input() -> None:
    model, ids_WT = model_of("gpnm"), torch.randint(0, 37, (2, 9))
    with pytest.raises(InputError, match=r"lengths=\[9\]: must lie between 1 and 8"):
        measure_context(model, ids_WT, [9])
    with pytest.raises(InputError, match="tolerance=-1"):
        measure_context(model, ids_WT, tolerance=-1.0)
    with pytest.raises(InputError, match="windows of 1 tokens: this needs at least 2"):
        measure_influence(model, ids_WT[:, :1])
    with pytest.raises(InputError, match="batch_size=0"):
        measure_influence(model, ids_WT, batch_size=0)
