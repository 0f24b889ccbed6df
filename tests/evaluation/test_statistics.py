"""Intervals against closed forms and against drawing again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from palimpsest.evaluation.statistics import (
    Estimate,
    exponential,
    mean,
    ratio,
    share,
    share_in_groups,
)


def test_mean() -> None:
    found = mean(np.array([1.0, 2.0, 4.0]))
    assert found.value == pytest.approx(7 / 3)
    assert found.stderr == pytest.approx(math.sqrt(7 / 3) / math.sqrt(3))
    assert found.high - found.value == pytest.approx(1.959964 * found.stderr)
    assert mean(np.array([5.0])) == Estimate(5.0, None, 5.0, 5.0)


def test_share_is_wilson() -> None:
    found = share(8, 10)
    assert found.value == 0.8 and found.stderr == pytest.approx(math.sqrt(0.16 / 9))
    assert (found.low, found.high) == pytest.approx((0.490163, 0.943318), abs=1e-5)
    assert share(0, 5).low == 0.0 and share(0, 5).high == pytest.approx(0.434482, abs=1e-5)
    assert share(5, 5).high == 1.0 and share(1, 1).stderr is None


def test_ratio_agrees_with_drawing_again() -> None:
    random = np.random.default_rng(0)
    bottoms = random.integers(1, 9, 400)
    tops = bottoms * 2.0 + random.normal(0, 3, 400)
    found = ratio(tops, bottoms)
    assert found.value == pytest.approx(tops.sum() / bottoms.sum())
    rows = random.integers(0, 400, (3000, 400))
    drawn = tops[rows].sum(1) / bottoms[rows].sum(1)
    assert found.stderr == pytest.approx(drawn.std(), rel=0.08)


def test_exponential() -> None:
    found = exponential(Estimate(2.0, 0.1, 1.8, 2.2))
    assert (found.value, found.low, found.high) == pytest.approx(
        (math.exp(2), math.exp(1.8), math.exp(2.2))
    )
    assert found.stderr == pytest.approx(0.1 * math.exp(2))
    assert exponential(Estimate(800.0, 1.0, 700.0, 900.0)).value == math.inf


def test_answers_of_one_example_count_as_fewer() -> None:
    asked = np.full(64, 4)
    # all right: 64 examples, not 256 answers, and not certain
    assert share_in_groups(asked, asked).low == pytest.approx(share(64, 64).low)
    assert share_in_groups(np.zeros(64), asked).high == pytest.approx(share(0, 64).high)
    # answers of an example always alike: as many as there are examples
    alike = np.where(np.arange(64) < 48, 4, 0)
    found, single = share_in_groups(alike, asked), share(48, 64)
    assert (found.value, found.stderr) == (single.value, pytest.approx(single.stderr))
    assert found.low == pytest.approx(single.low, abs=2e-3)
    # never more than there are answers, however even
    even = share_in_groups(np.where(np.arange(64) % 8 < 7, 3, 4), asked)
    assert even.low >= share(int(even.value * 256), 256).low - 1e-3


def test_one_example_alone_has_no_standard_error() -> None:
    found = share_in_groups(np.array([3]), np.array([4]))
    assert found == share(3, 4)
