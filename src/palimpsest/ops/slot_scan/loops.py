"""The compiled loops of the triple-slot layer; only loaded where numba is installed.

B batch, T positions, H heads, S width of the state, R slots, N checkpoints. A row is one
(batch, head). The features of a position are four blocks of H·S numbers, a, b, qˡ and qʳ; its gates
are two blocks of H numbers, one for the state (λ) and one for the slots (γ). Side 0 is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from palimpsest.ops.threads import compiled
from palimpsest.ops.triple_scan.activation import gates, softmax, squash
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
def forward_loop(heads: int, width: int, slots: int) -> Callable[..., None]:
    """The forward for one number of heads, one width and one number of slots.

    Both states go from initial to final in place. They are copied before every ``stretch``-th
    position, and what the backward reads of each position is kept; where ``stretch`` is 0, nothing
    is written but the output and the states. ``hold_BT`` and ``reset_BT`` are empty where there is
    no padding, or where no document starts.
    """
    block = heads * width
    columns = 4 * block + (2 + slots) * heads

    def forward(
        projected_BTX: Any,
        hold_BT: Any,
        reset_BT: Any,
        state_BHS: Any,
        slots_B2HSR: Any,
        states_BNHS: Any,
        slots_BN2HSR: Any,
        stretch: int,
        features_BT4HS: Any,
        keep_BT2H: Any,
        write_BT2H: Any,
        weights_BTHR: Any,
        reads_BT2HR: Any,
        out_BTHR: Any,
        low: int,
        high: int,
    ) -> None:
        length = projected_BTX.shape[1]
        dtype = projected_BTX.dtype
        projected = projected_BTX.reshape(-1)
        features = features_BT4HS.reshape(-1) if stretch > 0 else np.empty(4 * block, dtype)
        keeps, writes = np.empty(2 * heads, dtype), np.empty(2 * heads, dtype)
        weights = np.empty(slots, dtype)
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for t in range(length):
                if reset_BT.size > 0 and reset_BT[b, t]:
                    state_BHS[b, first:last] = 0
                    slots_B2HSR[b, :, first:last] = 0
                if stretch > 0 and t % stretch == 0:
                    states_BNHS[b, t // stretch, first:last] = state_BHS[b, first:last]
                    slots_BN2HSR[b, t // stretch, :, first:last] = slots_B2HSR[b, :, first:last]
                start = (b * length + t) * columns
                to = (b * length + t) * 4 * block if stretch > 0 else 0
                for own in range(first * width, 4 * block, block):
                    squash(projected, start + own, features, to + own, (last - first) * width)
                held = hold_BT.size > 0 and hold_BT[b, t]
                gates(projected, start + 4 * block, held, keeps, writes)
                for h in range(first, last):
                    at = to + h * width
                    softmax(projected, start + columns - (heads - h) * slots, weights, 0, slots)
                    share = load(weights, 0, slots)
                    keep = keeps[heads + h]
                    value = scale(writes[heads + h], share)
                    left = zeros_like(value)
                    right = zeros_like(value)
                    for s in range(width):
                        row = ((b * 2 * heads + h) * width + s) * slots
                        kept = scale(keep, load(slots_B2HSR, row, slots))
                        entry = scale_add(state_BHS[b, h, s], value, kept)
                        store(slots_B2HSR, row, entry)
                        left = scale_add(features[at + 2 * block + s], entry, left)
                        row += block * slots
                        kept = scale(keep, load(slots_B2HSR, row, slots))
                        entry = scale_add(features[at + block + s], value, kept)
                        store(slots_B2HSR, row, entry)
                        right = scale_add(features[at + 3 * block + s], entry, right)
                    place = ((b * length + t) * heads + h) * slots
                    store(out_BTHR, place, multiply(left, right))
                    own = (b * heads + h) * width
                    kept = scale(keeps[h], load(state_BHS, own, width))
                    store(state_BHS, own, scale_add(writes[h], load(features, at, width), kept))
                    if stretch > 0:
                        side = ((b * length + t) * 2 * heads + h) * slots
                        store(reads_BT2HR, side, left)
                        store(reads_BT2HR, side + heads * slots, right)
                        store(weights_BTHR, place, share)
                        keep_BT2H[b, t, 0, h] = keeps[h]
                        keep_BT2H[b, t, 1, h] = keep
                        write_BT2H[b, t, 0, h] = writes[h]
                        write_BT2H[b, t, 1, h] = writes[heads + h]

    return compiled(forward)


@functools.cache
def backward_loop(width: int) -> Callable[..., None]:
    """The backward for one width of the state.

    ``d_state_BHS`` and ``d_slots_B2HRS`` go from the gradients of the final states to those of the
    initial ones. Slots and their gradients are held transposed, (R, S), so that vectors run along
    the state. The gradient of the projection is that before tanh, sigmoid and softmax.
    """

    def backward(
        features_BT4HS: Any,
        keep_BT2H: Any,
        write_BT2H: Any,
        weights_BTHR: Any,
        reset_BT: Any,
        states_BNHS: Any,
        slots_BN2HSR: Any,
        stretch: int,
        reads_BT2HR: Any,
        d_out_BTHR: Any,
        d_state_BHS: Any,
        d_slots_B2HRS: Any,
        d_projected_BTX: Any,
        low: int,
        high: int,
    ) -> None:
        _, length, _, heads, _ = features_BT4HS.shape
        slots = weights_BTHR.shape[3]
        dtype = features_BT4HS.dtype
        block = heads * width
        columns = 4 * block + (2 + slots) * heads
        size = slots * width
        # what each position finds (after its reset) and what it leaves, per side
        found_s = np.empty((stretch + 1, width), dtype=dtype)
        found = np.empty((stretch + 1, 2, slots, width), dtype=dtype)
        left_by = np.empty((stretch, 2, slots, width), dtype=dtype)
        d_weights = np.empty(slots, dtype=dtype)  # without the factor that all share
        for b in range(low // heads, (high - 1) // heads + 1):
            first = max(low - b * heads, 0)
            last = min(high - b * heads, heads)
            for n in range((length - 1) // stretch, -1, -1):
                start = n * stretch
                stop = min(start + stretch, length)
                for h in range(first, last):
                    for s in range(width):
                        found_s[0, s] = states_BNHS[b, n, h, s]
                        for r in range(slots):
                            found[0, 0, r, s] = slots_BN2HSR[b, n, 0, h, s, r]
                            found[0, 1, r, s] = slots_BN2HSR[b, n, 1, h, s, r]
                    for t in range(start, stop):
                        i = t - start
                        if i > 0 and reset_BT.size > 0 and reset_BT[b, t]:
                            found_s[i] = 0
                            found[i] = 0
                        at = (b * length + t) * 4 * block + h * width
                        keep = keep_BT2H[b, t, 1, h]
                        write = write_BT2H[b, t, 1, h]
                        state = load(found_s, i * width, width)
                        right = load(features_BT4HS, at + block, width)
                        for r in range(slots):
                            value = write * weights_BTHR[b, t, h, r]
                            row = i * 2 * size + r * width
                            kept = scale(keep, load(found, row, width))
                            entry = scale_add(value, state, kept)
                            store(left_by, row, entry)
                            store(found, row + 2 * size, entry)
                            row += size
                            kept = scale(keep, load(found, row, width))
                            entry = scale_add(value, right, kept)
                            store(left_by, row, entry)
                            store(found, row + 2 * size, entry)
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
                        keep = keep_BT2H[b, t, 1, h]
                        write = write_BT2H[b, t, 1, h]
                        state = load(found_s, i * width, width)
                        right = load(features_BT4HS, at + block, width)
                        query_left = load(features_BT4HS, at + 2 * block, width)
                        query_right = load(features_BT4HS, at + 3 * block, width)
                        d_query_left = zeros_like(state)
                        d_query_right = zeros_like(state)
                        d_found = zeros_like(state)
                        d_right = zeros_like(state)
                        d_keep = zeros_like(state)
                        d_write = keep * 0
                        for r in range(slots):
                            weight = weights_BTHR[b, t, h, r]
                            value = write * weight
                            d_left_read = d_out_BTHR[b, t, h, r] * reads_BT2HR[b, t, 1, h, r]
                            d_right_read = d_out_BTHR[b, t, h, r] * reads_BT2HR[b, t, 0, h, r]

                            row = i * 2 * size + r * width
                            own_row = ((b * 2 * heads + h) * slots + r) * width
                            d_entry = scale_add(
                                d_left_read, query_left, load(d_slots_B2HRS, own_row, width)
                            )
                            d_query_left = scale_add(
                                d_left_read, load(left_by, row, width), d_query_left
                            )
                            d_found = scale_add(value, d_entry, d_found)
                            d_keep = multiply_add(d_entry, load(found, row, width), d_keep)
                            d_value = multiply(d_entry, state)
                            store(d_slots_B2HRS, own_row, scale(keep, d_entry))

                            row += size
                            own_row += heads * size
                            d_entry = scale_add(
                                d_right_read, query_right, load(d_slots_B2HRS, own_row, width)
                            )
                            d_query_right = scale_add(
                                d_right_read, load(left_by, row, width), d_query_right
                            )
                            d_right = scale_add(value, d_entry, d_right)
                            d_keep = multiply_add(d_entry, load(found, row, width), d_keep)
                            d_sum = total(multiply_add(d_entry, right, d_value))
                            store(d_slots_B2HRS, own_row, scale(keep, d_entry))

                            d_weights[r] = d_sum
                            d_write += weight * d_sum
                        to_slots = (b * length + t + 1) * columns - (heads - h) * slots
                        for r in range(slots):
                            d_logit = weights_BTHR[b, t, h, r] * (d_weights[r] - d_write)
                            d_projected_BTX.flat[to_slots + r] = write * d_logit
                        store(
                            d_projected_BTX, to + block, multiply(d_right, one_minus_square(right))
                        )
                        store(
                            d_projected_BTX,
                            to + 2 * block,
                            multiply(d_query_left, one_minus_square(query_left)),
                        )
                        store(
                            d_projected_BTX,
                            to + 3 * block,
                            multiply(d_query_right, one_minus_square(query_right)),
                        )
                        gate = (b * length + t) * columns + 4 * block + h
                        slope = keep * write  # of the gate's sigmoid; 0 at padding
                        d_projected_BTX.flat[gate + heads] = (total(d_keep) - d_write) * slope

                        keep = keep_BT2H[b, t, 0, h]
                        write = write_BT2H[b, t, 0, h]
                        left = load(features_BT4HS, at, width)
                        d_state = load(d_state_BHS, own, width)
                        store(
                            d_projected_BTX,
                            to,
                            multiply(scale(write, d_state), one_minus_square(left)),
                        )
                        d_projected_BTX.flat[gate] = (
                            (dot(d_state, state) - dot(d_state, left)) * keep * write
                        )
                        store(d_state_BHS, own, scale_add(keep, d_state, d_found))
                        if reset_BT.size > 0 and reset_BT[b, t]:
                            d_state_BHS[b, h] = 0
                            d_slots_B2HRS[b, :, h] = 0

    return compiled(backward)
