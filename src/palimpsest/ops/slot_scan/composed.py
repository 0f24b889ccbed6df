"""The triple-slot layer's recurrence out of the running sum and the pair memory, by chunks.

B batch, T positions, H heads, S width of the state, R slots, X = H·(4·S + 2 + R) columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.pair_memory import pair_memory
from palimpsest.ops.slot_scan.reference import split_slot_columns

__all__ = ["slot_scan_composed"]


def slot_scan_composed(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    slots_B2HSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Two ops, each choosing its own backend; both sides' slots are one pair memory."""
    heads, _, n_slots = slots_B2HSR.shape[2:]
    features, gates, weights_BTHR = split_slot_columns(projected_BTX, heads, n_slots)
    features = features.tanh()
    log_keep_state_BTH, log_keep_slots_BTH = F.logsigmoid(gates).unbind(2)
    write_state, write_slots = (-gates).sigmoid().unsqueeze(-1).unbind(2)
    found_BTHS, state_BHS = decay_scan(
        features[:, :, 0] * write_state,
        log_keep_state_BTH,
        state_BHS,
        exclusive=True,
        hold=hold_BT,
        reset=reset_BT,
    )
    reads, slots = pair_memory(
        torch.cat([found_BTHS, features[:, :, 1]], dim=2),
        weights_BTHR * write_slots,
        features[:, :, 2:].flatten(2, 3),
        log_keep_slots_BTH,
        slots_B2HSR.flatten(1, 2),
        hold=hold_BT,
        reset=reset_BT,
    )
    left_BTHR, right_BTHR = reads.unflatten(2, (2, heads)).unbind(2)
    return left_BTHR * right_BTHR, state_BHS, slots.unflatten(1, (2, heads))
