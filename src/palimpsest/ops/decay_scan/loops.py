"""The compiled loops of the decayed running sum; only loaded where numba is installed.

B batch, T positions, H heads, S width of the state. A row is one (batch, head).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from palimpsest.ops.threads import compiled
from palimpsest.ops.vectors import dot, load, scale_add, store

__all__ = ["backward_loop", "forward_loop"]


@functools.cache
def forward_loop(width: int) -> Callable[..., None]:
    """The forward for states of one width: ``state_BHS`` goes from initial to final."""

    def forward(
        values_BTHS: Any, decay_BTH: Any, state_BHS: Any, found_BTHS: Any, low: int, high: int
    ) -> None:
        length, heads = decay_BTH.shape[1:]
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for t in range(length):
                for h in range(first, last):
                    at = ((b * length + t) * heads + h) * width
                    kept = (b * heads + h) * width
                    state = load(state_BHS, kept, width)
                    store(found_BTHS, at, state)
                    value = load(values_BTHS, at, width)
                    store(state_BHS, kept, scale_add(decay_BTH[b, t, h], state, value))

    return compiled(forward)


@functools.cache
def backward_loop(width: int) -> Callable[..., None]:
    """The backward: ``d_state_BHS`` goes from the final state's gradient to the initial one's."""

    def backward(
        decay_BTH: Any,
        found_BTHS: Any,
        d_found_BTHS: Any,
        d_state_BHS: Any,
        d_values_BTHS: Any,
        d_log_BTH: Any,
        low: int,
        high: int,
    ) -> None:
        length, heads = decay_BTH.shape[1:]
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for t in range(length - 1, -1, -1):
                for h in range(first, last):
                    at = ((b * length + t) * heads + h) * width
                    kept = (b * heads + h) * width
                    decay = decay_BTH[b, t, h]
                    d_state = load(d_state_BHS, kept, width)
                    store(d_values_BTHS, at, d_state)
                    d_log_BTH[b, t, h] = decay * dot(d_state, load(found_BTHS, at, width))
                    d_found = load(d_found_BTHS, at, width)
                    store(d_state_BHS, kept, scale_add(decay, d_state, d_found))

    return compiled(backward)
