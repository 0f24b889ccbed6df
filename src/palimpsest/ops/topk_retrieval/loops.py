"""The compiled search for the best pairs; only loaded where numba is installed.

B batch, T positions, N pairs, U distinct keys, K pairs chosen. A row is one (batch, position).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from palimpsest.ops.threads import compiled

__all__ = ["choose_loop"]


def _choose(
    cosine_BTU: Any,
    ids_BN: Any,
    strength_BN: Any,
    usable_BN: Any,
    first_BT: Any,
    scale: float,
    offset: int,
    pairs_BTK: Any,
    low: int,
    high: int,
) -> None:
    """Walks from the newest pair to the oldest and keeps the K best, newer before older.

    A pair enters only with a score strictly above one that it displaces. Empty arrays stand for
    no strengths, no unusable pairs and no document starts. ``pairs_BTK`` comes filled with -1.
    """
    length = cosine_BTU.shape[1]
    top_k = pairs_BTK.shape[2]
    # as wide as a score: rounded to less, a score could exceed itself and an older tie win
    best = np.empty(top_k, dtype=np.float64)
    strengths = strength_BN.size > 0
    some_unusable = usable_BN.size > 0
    for row in range(low, high):
        b = row // length
        t = row % length
        cosine = cosine_BTU[b, t]
        ids = ids_BN[b]
        pairs = pairs_BTK[b, t]
        best[:] = -np.inf
        bar = best[top_k - 1]
        oldest = first_BT[b, t] if first_BT.size > 0 else 0
        for n in range(t + offset, oldest - 1, -1):
            score = scale * cosine[np.uint64(ids[n])]
            if strengths:
                score += strength_BN[b, n]
            if score > bar and (not some_unusable or usable_BN[b, n]):
                place = top_k - 1
                while place > 0 and score > best[place - 1]:
                    best[place] = best[place - 1]
                    pairs[place] = pairs[place - 1]
                    place -= 1
                best[place] = score
                pairs[place] = n
                bar = best[top_k - 1]


@functools.cache
def choose_loop() -> Callable[..., None]:
    """The loop, compiled."""
    return compiled(_choose)
