"""Choosing a token: each filter against its definition, the order, the seeds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.generation.sampling import (
    GREEDY,
    SamplingConfig,
    draw_uniforms,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    row_generators,
    sample,
)

INF = math.inf


def kept(logits: Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


def row(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_top_k_keeps_ties() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    assert kept(keep_top_k(logits, 1)) == [[1], [3]]
    assert kept(keep_top_k(logits, 2)) == [[1, 2, 3], [2, 3]]
    assert torch.equal(keep_top_k(logits, 4), logits)
    with pytest.raises(InputError, match="top_k=5: the model has 4 ids"):
        keep_top_k(logits, 5)


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1e-9, [1]), (0.49, [1]), (0.51, [1, 3]), (0.81, [0, 1, 3]), (0.96, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, expected: list[int]) -> None:
    assert kept(keep_top_p(row(0.15, 0.5, 0.05, 0.3), p)) == [expected]


def test_top_p_prefers_the_smaller_id_among_equals() -> None:
    assert kept(keep_top_p(row(0.25, 0.25, 0.25, 0.25), 0.5)) == [[0, 1]]


@pytest.mark.parametrize(("p", "expected"), [(0.0, 4), (0.09, 4), (0.2, 3), (0.5, 2), (1.0, 1)])
def test_min_p_is_relative_to_the_most_probable(p: float, expected: int) -> None:
    assert len(kept(keep_min_p(row(0.15, 0.5, 0.05, 0.3), p))[0]) == expected


def test_repetition_penalty_lowers_both_signs() -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0, -INF]])
    seen = torch.tensor([[True, True, False, True]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[1.0, -4.0, 3.0, -INF]]


def test_temperature_zero_is_argmax_after_the_penalty() -> None:
    logits = torch.randn(5, 11)
    assert torch.equal(sample(logits, GREEDY), logits.argmax(-1))
    seen = torch.zeros(1, 3, dtype=torch.bool)
    seen[0, 2] = True
    config = SamplingConfig(temperature=0.0, repetition_penalty=10.0, top_k=1, top_p=0.1)
    assert sample(torch.tensor([[1.0, 2.0, 3.0]]), config, seen_BV=seen).tolist() == [1]


def test_a_tiny_temperature_is_nearly_greedy_and_finite() -> None:
    logits = torch.randn(4, 9) * 1e4
    config = SamplingConfig(temperature=1e-300)
    assert torch.equal(sample(logits, config, torch.full((4,), 0.999)), logits.argmax(-1))


def test_filters_apply_one_after_another() -> None:
    # top-k leaves {0.5, 0.3}, renormalised 0.625 and 0.375: top-p 0.6 then keeps the first only
    config = SamplingConfig(top_k=2, top_p=0.6)
    picked = sample(row(0.15, 0.5, 0.05, 0.3), config, torch.tensor([0.9999]))
    assert picked.tolist() == [1]


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=12), st.floats(0, 1, exclude_max=True))
def test_the_pick_is_the_inverse_of_the_cumulative_probability(
    logits: list[float], uniform: float
) -> None:
    picked = int(sample(torch.tensor([logits]), SamplingConfig(), torch.tensor([uniform]))[0])
    probability = torch.tensor(logits).double().softmax(-1)
    edges = probability.cumsum(-1)
    low = float(edges[picked] - probability[picked])
    assert low - 1e-9 <= uniform * float(edges[-1]) <= float(edges[picked]) + 1e-9
    assert probability[picked] > 0


@settings(max_examples=30)
@given(st.floats(0, 1, exclude_max=True))
def test_an_impossible_id_is_never_picked(uniform: float) -> None:
    logits = torch.tensor([[-INF, 0.0, -INF, 1.0, -INF, -INF]])
    picked = sample(logits, SamplingConfig(), torch.tensor([uniform], dtype=torch.float64))
    assert picked.item() in (1, 3)


def test_frequencies_follow_the_probabilities() -> None:
    generators = row_generators(0, 4000)
    picked = sample(row(0.1, 0.6, 0.3).expand(4000, 3), SamplingConfig(), draw_uniforms(generators))
    share = torch.bincount(picked, minlength=3) / 4000
    assert torch.allclose(share, torch.tensor([0.1, 0.6, 0.3]), atol=0.03)


def test_a_row_is_the_row_alone_with_its_own_seed() -> None:
    together = row_generators(10, 3)
    drawn = torch.stack([draw_uniforms(together) for _ in range(5)])
    for i in range(3):
        alone = row_generators(10 + i, 1)
        assert torch.equal(drawn[:, i], torch.cat([draw_uniforms(alone) for _ in range(5)]))
    assert len(set(drawn.flatten().tolist())) == 15


def test_a_stopped_row_draws_nothing() -> None:
    two = row_generators(0, 2)
    draw_uniforms(two, [False, True])
    assert torch.equal(two[0].get_state(), row_generators(0, 1)[0].get_state())


def test_forbidden_ids_are_never_chosen() -> None:
    forbidden = torch.tensor([False, True, False])
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    assert sample(logits, GREEDY, forbidden_V=forbidden).tolist() == [2]
    with pytest.raises(InputError, match="all 3 ids are forbidden"):
        sample(logits, GREEDY, forbidden_V=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"temperature": True}, "temperature=True"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"min_p": -1}, "min_p=-1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty=inf"),
    ],
)
def test_nonsense_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        SamplingConfig(**fields)


@pytest.mark.parametrize("seed", [-1, 2**32 - 1])
def test_seeds_that_would_repeat_are_refused(seed: int) -> None:
    with pytest.raises(InputError, match=f"seed={seed}"):
        row_generators(seed, 2)


def test_broken_logits_and_missing_arguments_are_named() -> None:
    logits = torch.tensor([[0.0, math.nan]])
    with pytest.raises(InputError, match="the logits hold NaN"):
        sample(logits, GREEDY)
    with pytest.raises(InputError, match="needs uniforms_B"):
        sample(torch.zeros(1, 2), SamplingConfig())
    with pytest.raises(InputError, match="needs seen_BV"):
        sample(torch.zeros(1, 2), SamplingConfig(repetition_penalty=2.0), torch.zeros(1))
