"""Horizons of planted states, decays and pools, and of every model that has them."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import palimpsest
from palimpsest import analysis
from palimpsest.analysis.horizons import (
    decay_taps,
    half_life,
    lag_grid,
    measure_retention,
    measure_state_cosines,
    retention_curves,
    state_cosines,
)
from palimpsest.analysis.passes import cut_windows, state_tap
from palimpsest.analysis.pools import largest_gap_probability, split_pools
from palimpsest.errors import InputError
from tests.contract.configs import CONFIGS

WITH_DECAYS = {
    "gpnm": 3,
    "gdn": 6,
    "mamba2": 12,
    "triple-latent": 12,
    "triple-slot-hybrid": 12,
    "transformer-triple": 6,
    "gated-hybrid": 12,
}
"""Architecture → heads with a decay in its first configuration."""


def model_of(name: str) -> palimpsest.LanguageModel:
    return palimpsest.build(name, **next(iter(CONFIGS[name].values()))).eval()


# -- states ---------------------------------------------------------------------------------------


def test_cosines_of_a_turning_state() -> None:
    angle = 0.1 * torch.arange(63, dtype=torch.float64)
    turning = torch.stack([angle.cos(), angle.sin()], -1)
    found = state_cosines(turning[None].expand(3, -1, -1), lags=[1, 5, 20])
    assert [e.value for e in found.raw] == pytest.approx([math.cos(0.1 * k) for k in (1, 5, 20)])
    assert found.raw[0].stderr == pytest.approx(0.0, abs=1e-12)


def test_centring_removes_what_a_window_has_in_common() -> None:
    noise = torch.randn(16, 200, 40, dtype=torch.float64)
    common = torch.randn(16, 1, 40, dtype=torch.float64) * 2.0
    found = state_cosines(noise + common, lags=[1, 50])
    for raw, centred in zip(found.raw, found.centred, strict=True):
        assert raw.value == pytest.approx(0.8, abs=0.03)  # 4 / (4 + 1)
        assert centred.value == pytest.approx(-1 / 199, abs=0.01)


def test_a_first_order_process_forgets_at_its_rate() -> None:
    state, rows = torch.zeros(4, 64), []
    for _ in range(3000):
        state = 0.9 * state + math.sqrt(1 - 0.81) * torch.randn(4, 64)
        rows.append(state)
    found = state_cosines(torch.stack(rows, 1)[:, 100:], lags=[1, 4, 16])
    for k, estimate in zip(found.lags, found.centred, strict=True):
        assert estimate.value == pytest.approx(0.9**k, abs=0.02)


@pytest.mark.parametrize("name", ["gpnm", "transformer"])
def test_cosines_of_a_model_are_those_of_its_recorded_states(name: str) -> None:
    model = model_of(name)
    ids_WT = cut_windows(torch.randint(0, 37, (5 * 24,)), 24)
    found = measure_state_cosines(model, ids_WT, batch_size=2)
    assert found.lags == (1, 2, 4, 8, 12)
    with torch.no_grad(), analysis.record(model, [state_tap(model)]) as tape:
        model(ids_WT)
    states = tape[state_tap(model)].double()
    assert found.raw[2].value == pytest.approx(
        float(F.cosine_similarity(states[:, :-4], states[:, 4:], -1).mean()), rel=1e-5
    )
    centred = states - states.mean(1, keepdim=True)
    assert found.centred[4].value == pytest.approx(
        float(F.cosine_similarity(centred[:, :-12], centred[:, 12:], -1).mean()), abs=1e-5
    )
    json.dumps(found.to_dict())


# -- memories -------------------------------------------------------------------------------------


def test_lag_grid() -> None:
    assert lag_grid(5) == [1, 2, 3, 4, 5]
    grid = lag_grid(1000)
    assert grid[:32] == list(range(1, 33)) and grid[-1] == 1000
    assert all(1 <= b - a <= max(1, 0.06 * a) + 1 for a, b in pairwise(grid))
    assert len(grid) < 120


def test_half_life_of_constant_decays_is_exact() -> None:
    lags = [0, *lag_grid(500)]
    decays = torch.tensor([0.05, 0.5, 0.9, 0.99, 0.9999], dtype=torch.float64)
    curves = retention_curves(decays.log().expand(2, 600, 5), lags).tolist()
    found = [half_life(lags, curve) for curve in curves]
    for value, decay in zip(found[:4], decays.tolist(), strict=False):
        assert value == pytest.approx(-1 / math.log(decay), rel=1e-9)
    assert found[4] is None
    assert half_life([0, 1, 2], [1.0, 0.0, 0.0]) == pytest.approx(1 / 690.8, rel=1e-3)


def test_retention_is_the_mean_of_products_not_the_product_of_means() -> None:
    logs = -torch.rand(3, 41, 2, dtype=torch.float64) * 3.0
    lags = [0, 1, 7, 41]
    found = retention_curves(logs, lags)
    decay = logs.exp()
    for column, k in enumerate(lags):
        products = [decay[:, t : t + k].prod(1) for t in range(41 - k + 1)]
        expected = torch.stack(products).mean((0, 1))
        torch.testing.assert_close(found[:, column], expected)


@pytest.mark.parametrize("name", sorted(WITH_DECAYS))
def test_every_model_with_decays(name: str) -> None:
    model = model_of(name)
    ids_WT = cut_windows(torch.randint(0, 37, (5 * 30,)), 30)
    found = measure_retention(model, ids_WT, batch_size=2)
    assert len(found.heads) == WITH_DECAYS[name]
    assert found.longest == 15 and found.lags[0] == 0
    tap = found.heads[-1].tap
    with torch.no_grad(), analysis.record(model, [tap]) as tape:
        model(ids_WT)
    logs = tape[tap].double()
    logs = logs if tap.endswith("log_decay") else logs.log()
    expected = retention_curves(logs, found.lags)[-1]
    assert found.heads[-1].curve == pytest.approx(expected.tolist(), rel=1e-5)
    assert all(h.curve[0] == 1.0 and h.curve == tuple(sorted(h.curve)[::-1]) for h in found.heads)
    json.dumps(found.to_dict())


def test_planted_decay_of_a_model() -> None:
    model = palimpsest.build("triple-latent", **CONFIGS["triple-latent"]["unbounded"]).double()
    wanted = torch.tensor([0.2, 0.9, 0.99], dtype=torch.float64)
    mixer = model.layers[0].mixer
    with torch.no_grad():  # the last rows are those of γ
        mixer.weight[-3:] = 0.0
        mixer.bias[-3:] = wanted.logit()
    found = measure_retention(
        model, torch.randint(0, 37, (2, 300)), names=["*.decay.pair"], longest=200
    )
    expected = [-1 / math.log(v) for v in wanted.tolist()]
    assert found.half_lives() == pytest.approx(expected, rel=1e-6)


# -- pools ----------------------------------------------------------------------------------------


def test_planted_pools_are_found() -> None:
    half_lives = [1.4, 120.0, 2.0, 90.0, 1.7, 200.0, 150.0, 2.6, None]
    found = split_pools(half_lives, longest=300)
    assert found.split
    assert found.fast == (0, 2, 4, 7) and found.slow == (1, 3, 5, 6, 8)
    assert found.boundary == pytest.approx((2.6 * 90.0) ** 0.5)
    assert found.gap == pytest.approx(90.0 / 2.6)
    assert found.otsu_agrees and found.separability > 0.95
    assert found.otsu_fast == found.fast and found.otsu_slow == found.slow
    assert found.censored == 1
    assert "4 fast and 5 slow heads" in str(found)


def test_even_heads_are_no_pools() -> None:
    found = split_pools([2.0**i for i in range(9)], longest=1000)
    assert not found.split and found.fast == found.slow == ()
    assert found.probability == pytest.approx(1.0)
    assert 0.74 < found.separability < 0.85 and found.otsu_slow
    assert "no split" in str(found)


def test_few_equal_or_instant_heads_are_no_pools() -> None:
    assert not split_pools([1.0, 300.0], longest=400).split
    same = split_pools([7.0] * 12, longest=400)
    assert not same.split and same.boundary is None and same.otsu_boundary is None
    # a factor of a thousand below one token is no difference
    assert not split_pools([0.001, 0.9, 0.5, 0.9, 0.8], longest=400).split


def test_chance_splits_at_the_stated_rate() -> None:
    drawn = np.exp(6.0 * np.random.default_rng(1).random((1500, 9)))
    share = np.mean([split_pools(row.tolist(), longest=500).split for row in drawn])
    assert share == pytest.approx(0.05, abs=0.02)


def test_gap_probability() -> None:
    assert largest_gap_probability(0.75, 3) == pytest.approx(0.5)
    assert largest_gap_probability(1.0, 2) == 1.0
    assert 0.0 <= largest_gap_probability(0.03, 200) <= 1.0


# -- bad input ------------------------------------------------------------------------------------


def test_bad_input() -> None:
    model, ids_WT = model_of("gpnm"), torch.randint(0, 37, (2, 12))
    with pytest.raises(InputError, match="lags up to 12: windows of this length have lags up to 1"):
        measure_state_cosines(model, ids_WT, [1, 12])
    with pytest.raises(InputError, match=r"lags=\[0\]"):
        measure_state_cosines(model, ids_WT, [0])
    with pytest.raises(
        InputError, match="lags up to 13: windows of this length have lags up to 12"
    ):
        measure_retention(model, ids_WT, longest=13)
    with pytest.raises(InputError, match=r"lags=\[0\]"):
        measure_retention(model, ids_WT, longest=0)
    with pytest.raises(InputError, match=r"tap='memory\.beta': is no decay"):
        measure_retention(model, ids_WT, names=["memory.beta"])
    with pytest.raises(InputError, match="transformer: has no heads with a decay"):
        measure_retention(model_of("transformer"), ids_WT)
    with pytest.raises(InputError, match="windows of 1 tokens: this needs at least 2"):
        measure_state_cosines(model, ids_WT[:, :1])
    assert decay_taps(model) == ["memory.log_decay"]
    found = measure_retention(model, ids_WT)
    assert found.of("memory.log_decay", 2).head == 2
    with pytest.raises(
        InputError, match=r"head=3: 'memory\.log_decay' has 3 heads, numbered 0 to 2"
    ):
        found.of("memory.log_decay", 3)
    with pytest.raises(InputError, match="tap='memory': not measured"):
        found.of("memory", 0)
    with pytest.raises(InputError, match="no heads to split"):
        split_pools([], longest=4)
    with pytest.raises(InputError, match=r"half_lives hold 0\.0"):
        split_pools([0.0, 1.0], longest=4)
    with pytest.raises(InputError, match="level=1"):
        split_pools([1.0], longest=4, level=1.0)
