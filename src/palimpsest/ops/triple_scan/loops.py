"""The compiled loops of the triple-latent layer; only loaded where numba is installed.

B batch, T positions, H heads, S width of the state, N checkpoints. A row is one (batch, head).
The features of a position are four blocks of H·S numbers, a, b, qˡ and qʳ; its gates are two blocks
of H numbers, one for the state (λ) and one for the pairs (γ).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from palimpsest.ops.threads import compiled
from palimpsest.ops.triple_scan.activation import gates, squash
from palimpsest.ops.vectors import (
    dot,
    load,
    multiply,
    multiply_add,
    one_minus_square,
    scale,
    scale_add,
    store,
    total,
    zeros_like,
)

__all__ = ["backward_loop", "forward_loop"]


@functools.cache
def forward_loop(heads: int, width: int) -> Callable[..., None]:
    """The forward for one number of heads and one width.

    Both states go from initial to final in place. They are copied before every ``stretch``-th
    position, and what the backward reads of each position is kept; where ``stretch`` is 0, nothing
    is written but the output and the states. ``hold_BT`` and ``reset_BT`` are empty where there is
    no padding, or where no document starts.
    """
    block = heads * width
    columns = 4 * block + 2 * heads

    def forward(
        projected_BTX: Any,
        hold_BT: Any,
        reset_BT: Any,
        state_BHS: Any,
        pairs_BHSS: Any,
        states_BNHS: Any,
        pairs_BNHSS: Any,
        stretch: int,
        features_BT4HS: Any,
        keep_BT2H: Any,
        write_BT2H: Any,
        read_BTHS: Any,
        out_BTHS: Any,
        low: int,
        high: int,
    ) -> None:
        length = projected_BTX.shape[1]
        dtype = projected_BTX.dtype
        projected = projected_BTX.reshape(-1)
        features = features_BT4HS.reshape(-1) if stretch > 0 else np.empty(4 * block, dtype)
        keeps, writes = np.empty(2 * heads, dtype), np.empty(2 * heads, dtype)
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for t in range(length):
                if reset_BT.size > 0 and reset_BT[b, t]:
                    state_BHS[b, first:last] = 0
                    pairs_BHSS[b, first:last] = 0
                if stretch > 0 and t % stretch == 0:
                    states_BNHS[b, t // stretch, first:last] = state_BHS[b, first:last]
                    pairs_BNHSS[b, t // stretch, first:last] = pairs_BHSS[b, first:last]
                start = (b * length + t) * columns
                to = (b * length + t) * 4 * block if stretch > 0 else 0
                for own in range(first * width, 4 * block, block):
                    squash(projected, start + own, features, to + own, (last - first) * width)
                held = hold_BT.size > 0 and hold_BT[b, t]
                gates(projected, start + 4 * block, held, keeps, writes)
                for h in range(first, last):
                    at = to + h * width
                    own = (b * heads + h) * width
                    keep = keeps[heads + h]
                    value = scale(writes[heads + h], load(features, at + block, width))
                    read = zeros_like(value)
                    for s in range(width):
                        row = (own + s) * width
                        kept = scale(keep, load(pairs_BHSS, row, width))
                        entry = scale_add(state_BHS[b, h, s], value, kept)
                        store(pairs_BHSS, row, entry)
                        read = scale_add(features[at + 2 * block + s], entry, read)
                    place = (b * length + t) * block + h * width
                    store(out_BTHS, place, multiply(read, load(features, at + 3 * block, width)))
                    kept = scale(keeps[h], load(state_BHS, own, width))
                    left = load(features, at, width)
                    store(state_BHS, own, scale_add(writes[h], left, kept))
                    if stretch > 0:
                        store(read_BTHS, place, read)
                        keep_BT2H[b, t, 0, h] = keeps[h]
                        keep_BT2H[b, t, 1, h] = keep
                        write_BT2H[b, t, 0, h] = writes[h]
                        write_BT2H[b, t, 1, h] = writes[heads + h]

    return compiled(forward)


@functools.cache
def backward_loop(width: int) -> Callable[..., None]:
    """The backward for one width.

    ``d_state_BHS`` and ``d_pairs_BHSS`` go from the gradients of the final states to those of the
    initial ones. Pairs and their gradients are held transposed, (b side, s side), so that vectors
    run along the state. Gradients of the features are those before their tanh.
    """

    def backward(
        features_BT4HS: Any,
        keep_BT2H: Any,
        write_BT2H: Any,
        reset_BT: Any,
        states_BNHS: Any,
        pairs_BNHSS: Any,
        stretch: int,
        read_BTHS: Any,
        d_out_BTHS: Any,
        d_state_BHS: Any,
        d_pairs_BHSS: Any,
        d_features_BTX: Any,
        low: int,
        high: int,
    ) -> None:
        _, length, _, heads, _ = features_BT4HS.shape
        dtype = features_BT4HS.dtype
        block = heads * width
        columns = 4 * block + 2 * heads
        size = width * width
        # what each position finds (after its reset) and what it leaves
        found_s = np.empty((stretch + 1, width), dtype=dtype)
        found = np.empty((stretch + 1, width, width), dtype=dtype)
        left_by = np.empty((stretch, width, width), dtype=dtype)
        d_b = np.empty(width, dtype=dtype)
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for n in range((length - 1) // stretch, -1, -1):
                start = n * stretch
                stop = min(start + stretch, length)
                for h in range(first, last):
                    for s in range(width):
                        found_s[0, s] = states_BNHS[b, n, h, s]
                        for r in range(width):
                            found[0, r, s] = pairs_BNHSS[b, n, h, s, r]
                    for t in range(start, stop):
                        i = t - start
                        if i > 0 and reset_BT.size > 0 and reset_BT[b, t]:
                            found_s[i] = 0
                            found[i] = 0
                        at = (b * length + t) * 4 * block + h * width
                        keep = keep_BT2H[b, t, 1, h]
                        write = write_BT2H[b, t, 1, h]
                        state = load(found_s, i * width, width)
                        for r in range(width):
                            row = i * size + r * width
                            kept = scale(keep, load(found, row, width))
                            entry = scale_add(write * features_BT4HS[b, t, 1, h, r], state, kept)
                            store(left_by, row, entry)
                            store(found, row + size, entry)
                        kept = scale(keep_BT2H[b, t, 0, h], state)
                        left = load(features_BT4HS, at, width)
                        store(
                            found_s, (i + 1) * width, scale_add(write_BT2H[b, t, 0, h], left, kept)
                        )
                    own = (b * heads + h) * width
                    for t in range(stop - 1, start - 1, -1):
                        i = t - start
                        at = (b * length + t) * 4 * block + h * width
                        to = (b * length + t) * columns + h * width
                        place = (b * length + t) * block + h * width
                        keep = keep_BT2H[b, t, 1, h]
                        write = write_BT2H[b, t, 1, h]
                        state = load(found_s, i * width, width)
                        query = load(features_BT4HS, at + 2 * block, width)
                        right = load(features_BT4HS, at + 3 * block, width)
                        d_out = load(d_out_BTHS, place, width)
                        d_right = multiply(d_out, load(read_BTHS, place, width))
                        store(
                            d_features_BTX,
                            to + 3 * block,
                            multiply(d_right, one_minus_square(right)),
                        )
                        d_query = zeros_like(state)
                        d_found = zeros_like(state)
                        d_keep = zeros_like(state)
                        d_write = keep * 0
                        for r in range(width):
                            row = i * size + r * width
                            own_row = (own + r) * width
                            feature = features_BT4HS[b, t, 1, h, r]
                            d_read = d_out_BTHS[b, t, h, r] * features_BT4HS[b, t, 3, h, r]
                            d_entry = scale_add(d_read, query, load(d_pairs_BHSS, own_row, width))
                            d_query = scale_add(d_read, load(left_by, row, width), d_query)
                            d_found = scale_add(write * feature, d_entry, d_found)
                            d_keep = multiply_add(d_entry, load(found, row, width), d_keep)
                            d_value = dot(d_entry, state)
                            d_write += d_value * feature
                            d_b[r] = d_value * write * (1 - feature * feature)
                            store(d_pairs_BHSS, own_row, scale(keep, d_entry))
                        store(d_features_BTX, to + block, load(d_b, 0, width))
                        store(
                            d_features_BTX,
                            to + 2 * block,
                            multiply(d_query, one_minus_square(query)),
                        )
                        gate = (b * length + t) * columns + 4 * block + h
                        slope = keep * write  # of the gate's sigmoid; 0 at padding
                        d_features_BTX.flat[gate + heads] = (total(d_keep) - d_write) * slope

                        keep = keep_BT2H[b, t, 0, h]
                        write = write_BT2H[b, t, 0, h]
                        left = load(features_BT4HS, at, width)
                        d_state = load(d_state_BHS, own, width)
                        store(
                            d_features_BTX,
                            to,
                            multiply(scale(write, d_state), one_minus_square(left)),
                        )
                        d_features_BTX.flat[gate] = (
                            (dot(d_state, state) - dot(d_state, left)) * keep * write
                        )
                        store(d_state_BHS, own, scale_add(keep, d_state, d_found))
                        if reset_BT.size > 0 and reset_BT[b, t]:
                            d_state_BHS[b, h] = 0
                            d_pairs_BHSS[b, h] = 0

    return compiled(backward)
