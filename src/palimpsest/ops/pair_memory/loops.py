"""The compiled loops of the pair memory; only loaded where numba is installed.

B batch, T positions, H value heads, K = G·H key heads, S width of keys, R width of values,
N checkpoints. A row is one (batch, head).
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
    """The forward for values of one width; rows are (batch, key head).

    ``state_BKSR`` goes from initial to final. A copy of it is kept before every ``stretch``-th
    position, none where that is 0.
    """

    def forward(
        keys_BTKS: Any,
        values_BTHR: Any,
        queries_BTKS: Any,
        decay_BTH: Any,
        state_BKSR: Any,
        checkpoints_BKNSR: Any,
        stretch: int,
        read_BTKR: Any,
        low: int,
        high: int,
    ) -> None:
        length, key_heads, key_width = keys_BTKS.shape[1:]
        heads = values_BTHR.shape[2]
        for b in range(low // key_heads, (high - 1) // key_heads + 1):
            first = max(low - b * key_heads, 0)
            last = min(high - b * key_heads, key_heads)
            for t in range(length):
                for k in range(first, last):
                    h = k % heads
                    if stretch > 0 and t % stretch == 0:
                        checkpoints_BKNSR[b, k, t // stretch] = state_BKSR[b, k]
                    decay = decay_BTH[b, t, h]
                    value = load(values_BTHR, ((b * length + t) * heads + h) * width, width)
                    read = zeros_like(value)
                    for s in range(key_width):
                        at = ((b * key_heads + k) * key_width + s) * width
                        entry = scale_add(
                            keys_BTKS[b, t, k, s], value, scale(decay, load(state_BKSR, at, width))
                        )
                        store(state_BKSR, at, entry)
                        read = scale_add(queries_BTKS[b, t, k, s], entry, read)
                    store(read_BTKR, ((b * length + t) * key_heads + k) * width, read)

    return compiled(forward)


@functools.cache
def backward_loop(key_width: int) -> Callable[..., None]:
    """The backward for keys of one width; rows are (batch, value head).

    ``d_memory_BKRS`` goes from the gradient of the final memory to that of the initial one. It is
    held transposed, as are the recomputed memories, so that vectors run along keys. The key heads
    that share a value head add into its gradients.
    """

    def backward(
        keys_BTKS: Any,
        values_BTHR: Any,
        queries_BTKS: Any,
        decay_BTH: Any,
        checkpoints_BKNSR: Any,
        stretch: int,
        d_read_BTKR: Any,
        d_memory_BKRS: Any,
        d_keys_BTKS: Any,
        d_values_BTHR: Any,
        d_queries_BTKS: Any,
        d_log_BTH: Any,
        low: int,
        high: int,
    ) -> None:
        length, key_heads = keys_BTKS.shape[1:3]
        heads, width = values_BTHR.shape[2:]
        memory_RS = width * key_width
        memories = np.empty((stretch + 1, width, key_width), dtype=keys_BTKS.dtype)
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for n in range((length - 1) // stretch, -1, -1):
                start = n * stretch
                stop = min(start + stretch, length)
                for k in range(key_heads):
                    h = k % heads
                    if h < first or h >= last:
                        continue
                    for r in range(width):
                        for s in range(key_width):
                            memories[0, r, s] = checkpoints_BKNSR[b, k, n, s, r]
                    for t in range(start, stop):
                        decay = decay_BTH[b, t, h]
                        before = (t - start) * memory_RS
                        key = load(
                            keys_BTKS, ((b * length + t) * key_heads + k) * key_width, key_width
                        )
                        for r in range(width):
                            at = before + r * key_width
                            kept = scale(decay, load(memories, at, key_width))
                            entry = scale_add(values_BTHR[b, t, h, r], key, kept)
                            store(memories, at + memory_RS, entry)
                    for t in range(stop - 1, start - 1, -1):
                        decay = decay_BTH[b, t, h]
                        before = (t - start) * memory_RS
                        place = ((b * length + t) * key_heads + k) * key_width
                        key = load(keys_BTKS, place, key_width)
                        query = load(queries_BTKS, place, key_width)
                        d_query = zeros_like(key)
                        d_key = zeros_like(key)
                        d_decay = zeros_like(key)
                        for r in range(width):
                            at = before + r * key_width
                            row = ((b * key_heads + k) * width + r) * key_width
                            d_read = d_read_BTKR[b, t, k, r]
                            d_entry = scale_add(d_read, query, load(d_memory_BKRS, row, key_width))
                            d_query = scale_add(
                                d_read, load(memories, at + memory_RS, key_width), d_query
                            )
                            d_key = scale_add(values_BTHR[b, t, h, r], d_entry, d_key)
                            d_values_BTHR[b, t, h, r] += dot(d_entry, key)
                            d_decay = multiply_add(d_entry, load(memories, at, key_width), d_decay)
                            store(d_memory_BKRS, row, scale(decay, d_entry))
                        store(d_keys_BTKS, place, d_key)
                        store(d_queries_BTKS, place, d_query)
                        d_log_BTH[b, t, h] += decay * total(d_decay)

    return compiled(backward)
