"""Rank correlation of ranks that are known, and counts."""

from __future__ import annotations

import pytest
import torch

from palimpsest.analysis.ranks import count_tokens, spearman
from palimpsest.errors import InputError


def test_spearman_with_ties_averaged() -> None:
    assert spearman([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0, 4.0], [8.0, 6.0, 3.0, 1.0]) == pytest.approx(-1.0)
    # by hand: ranks 1, 2.5, 2.5, 4 against 2, 1, 3, 4
    assert spearman([1.0, 5.0, 5.0, 9.0], [2.0, 1.0, 3.0, 4.0]) == pytest.approx(
        3.0 / (4.5 * 5.0) ** 0.5
    )
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    with pytest.raises(InputError, match=r"of shapes \(2,\) and \(3,\)"):
        spearman([1.0, 2.0], [1.0, 2.0, 3.0])


def test_spearman_does_not_see_a_monotone_change() -> None:
    x, y = torch.randn(101).round(decimals=1), torch.randn(101).round(decimals=1)
    assert spearman(x, y) == pytest.approx(spearman(x.exp(), 3 * y - 1), abs=1e-12)


def test_count_tokens() -> None:
    assert count_tokens([0, 3, 3], 5).tolist() == [1, 0, 0, 2, 0]
    with pytest.raises(InputError, match=r"ids contains 5: must be in \[0, 5\)"):
        count_tokens([5], 5)
    with pytest.raises(InputError, match="no token"):
        count_tokens([], 5)
