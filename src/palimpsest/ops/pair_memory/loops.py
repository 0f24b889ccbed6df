"""The compiled loops of the pair memory; only loaded where numba is installed.

B batch, T positions, H value heads, K key heads, M = max(H, K) memories, S width of keys, R width
of values, N checkpoints. A row is one (batch, memory) forward; backward, it is one (batch, head of
the kind there are fewer of), with all memories that share this head: no two rows add to one place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from palimpsest.ops.threads import compiled
from palimpsest.ops.vectors import (
    dot,
    load,
    multiply_add,
    scale,
    scale_add,
    store,
    total,
    zeros_like,
)

__all__ = ["backward_loop", "forward_loop"]


@functools.cache
def forward_loop(width: int) -> Callable[..., None]:
    """The forward for values of one width; rows are (batch, memory).

    ``state_BMSR`` goes from initial to final. A copy of it is kept before every ``stretch``-th
    position, none where that is 0.
    """

    def forward(
        keys_BTKS: Any,
        values_BTHR: Any,
        queries_BTKS: Any,
        decay_BTH: Any,
        state_BMSR: Any,
        checkpoints_BMNSR: Any,
        stretch: int,
        read_BTMR: Any,
        low: int,
        high: int,
    ) -> None:
        length, key_heads, key_width = keys_BTKS.shape[1:]
        heads = values_BTHR.shape[2]
        memories = max(heads, key_heads)
        sharing = memories // key_heads
        for b in range(low // memories, (high - 1) // memories + 1):
            first = max(low - b * memories, 0)
            last = min(high - b * memories, memories)
            for t in range(length):
                for m in range(first, last):
                    h = m % heads
                    k = m // sharing
                    if stretch > 0 and t % stretch == 0:
                        checkpoints_BMNSR[b, m, t // stretch] = state_BMSR[b, m]
                    decay = decay_BTH[b, t, h]
                    value = load(values_BTHR, ((b * length + t) * heads + h) * width, width)
                    read = zeros_like(value)
                    for s in range(key_width):
                        at = ((b * memories + m) * key_width + s) * width
                        entry = scale_add(
                            keys_BTKS[b, t, k, s], value, scale(decay, load(state_BMSR, at, width))
                        )
                        store(state_BMSR, at, entry)
                        read = scale_add(queries_BTKS[b, t, k, s], entry, read)
                    store(read_BTMR, ((b * length + t) * memories + m) * width, read)

    return compiled(forward)


@functools.cache
def backward_loop(key_width: int) -> Callable[..., None]:
    """The backward for keys of one width; rows are (batch, min(H, K) heads).

    ``d_memory_BMRS`` goes from the gradient of the final memory to that of the initial one. It is
    held transposed, as are the recomputed memories, so that vectors run along keys. Memories that
    share a head add into its gradients, which start as zeros.
    """

    def backward(
        keys_BTKS: Any,
        values_BTHR: Any,
        queries_BTKS: Any,
        decay_BTH: Any,
        checkpoints_BMNSR: Any,
        stretch: int,
        d_read_BTMR: Any,
        d_memory_BMRS: Any,
        d_keys_BTKS: Any,
        d_values_BTHR: Any,
        d_queries_BTKS: Any,
        d_log_BTH: Any,
        low: int,
        high: int,
    ) -> None:
        length, key_heads = keys_BTKS.shape[1:3]
        heads, width = values_BTHR.shape[2:]
        memories = max(heads, key_heads)
        sharing = memories // key_heads
        fewer = min(heads, key_heads)
        memory_RS = width * key_width
        states = np.empty((stretch + 1, width, key_width), dtype=keys_BTKS.dtype)
        for b in range(low // fewer, (high - 1) // fewer + 1):
            first = max(low - b * fewer, 0)
            last = min(high - b * fewer, fewer)
            for n in range((length - 1) // stretch, -1, -1):
                start = n * stretch
                stop = min(start + stretch, length)
                for m in range(memories):
                    h = m % heads
                    k = m // sharing
                    row = min(h, k)
                    if row < first or row >= last:
                        continue
                    for r in range(width):
                        for s in range(key_width):
                            states[0, r, s] = checkpoints_BMNSR[b, m, n, s, r]
                    for t in range(start, stop):
                        decay = decay_BTH[b, t, h]
                        before = (t - start) * memory_RS
                        key = load(
                            keys_BTKS, ((b * length + t) * key_heads + k) * key_width, key_width
                        )
                        for r in range(width):
                            at = before + r * key_width
                            kept = scale(decay, load(states, at, key_width))
                            entry = scale_add(values_BTHR[b, t, h, r], key, kept)
                            store(states, at + memory_RS, entry)
                    for t in range(stop - 1, start - 1, -1):
                        decay = decay_BTH[b, t, h]
                        before = (t - start) * memory_RS
                        here = ((b * length + t) * key_heads + k) * key_width
                        key = load(keys_BTKS, here, key_width)
                        query = load(queries_BTKS, here, key_width)
                        d_query = load(d_queries_BTKS, here, key_width)
                        d_key = load(d_keys_BTKS, here, key_width)
                        d_decay = zeros_like(key)
                        for r in range(width):
                            at = before + r * key_width
                            place = ((b * memories + m) * width + r) * key_width
                            d_read = d_read_BTMR[b, t, m, r]
                            d_entry = scale_add(
                                d_read, query, load(d_memory_BMRS, place, key_width)
                            )
                            d_query = scale_add(
                                d_read, load(states, at + memory_RS, key_width), d_query
                            )
                            d_key = scale_add(values_BTHR[b, t, h, r], d_entry, d_key)
                            d_values_BTHR[b, t, h, r] += dot(d_entry, key)
                            d_decay = multiply_add(d_entry, load(states, at, key_width), d_decay)
                            store(d_memory_BMRS, place, scale(decay, d_entry))
                        store(d_keys_BTKS, here, d_key)
                        store(d_queries_BTKS, here, d_query)
                        d_log_BTH[b, t, h] += decay * total(d_decay)

    return compiled(backward)
