"""Counts of tokens, and rank correlation.

Legend: N values, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.errors import InputError

__all__ = ["count_tokens", "spearman"]


def count_tokens(ids: Tensor | NDArray[Any] | Sequence[int], vocab_size: int) -> Tensor:
    """How often each token occurs.

    Args:
        ids: tokens, of any shape.
        vocab_size: V.

    Returns:
        (V) int64.

    Raises:
        InputError: an id outside the vocabulary, or no ids.
    """
    flat_N = torch.as_tensor(np.asarray(ids)).long().flatten()
    if not len(flat_N):
        raise InputError("ids: holds no token to count")
    low, high = (int(x) for x in flat_N.aminmax())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"ids contains {low if low < 0 else high}: must be in [0, {vocab_size}), the vocabulary"
        )
    return torch.bincount(flat_N, minlength=vocab_size)


def spearman(x: Tensor | Sequence[float], y: Tensor | Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, ties at the mean of their ranks.

    Args:
        x, y: (N) values that belong together.

    Returns:
        In [-1, 1]; None where one side has only equal values, or N < 2.

    Raises:
        InputError: different lengths.
    """
    a, b = (np.asarray(torch.as_tensor(v).detach().double().cpu()) for v in (x, y))
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"spearman: of shapes {a.shape} and {b.shape}; both must be (N)")
    a, b = _ranks(a), _ranks(b)
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / scale) if scale > 0 else None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse.reshape(-1)]
    return ranks - (len(values) + 1) / 2
