"""The triple-slot layer's recurrence as a plain loop over time: the truth.

B batch, T positions, H heads, S width of the state, R slots, X = H·(4·S + 2 + R) columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.triple_scan.reference import split_columns

__all__ = ["slot_scan_reference", "split_slot_columns"]


def split_slot_columns(
    projected_BTX: Tensor, n_heads: int, n_slots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Features before their tanh, (B, T, 4, H, S), gate logits, (B, T, 2, H), and the weights of
    the slots, (B, T, H, R)."""
    logits = n_heads * n_slots
    features, gates = split_columns(projected_BTX[..., :-logits], n_heads)
    return features, gates, projected_BTX[..., -logits:].unflatten(-1, (n_heads, -1)).softmax(-1)


def slot_scan_reference(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    slots_B2HSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step per position; see :func:`palimpsest.ops.slot_scan.slot_scan`."""
    heads, _, slots = slots_B2HSR.shape[2:]
    features, gates, weights_BTHR = split_slot_columns(projected_BTX, heads, slots)
    left_BTHS, right_BTHS, *queries = features.tanh().unbind(2)
    keep_state_BTH, keep_slots_BTH = gates.sigmoid().unbind(2)
    outputs: list[Tensor] = []
    for t in range(projected_BTX.shape[1]):
        if reset_BT is not None:
            state_BHS = torch.where(reset_BT[:, t, None, None], 0.0, state_BHS)
            slots_B2HSR = torch.where(reset_BT[:, t, None, None, None, None], 0.0, slots_B2HSR)
        keys_B2HS = torch.stack([state_BHS, right_BTHS[:, t]], dim=1)
        keep_B1H11 = keep_slots_BTH[:, t, None, :, None, None]
        write_B2HSR = keys_B2HS.unsqueeze(-1) * weights_BTHR[:, t, None, :, None, :]
        new_slots_B2HSR = keep_B1H11 * slots_B2HSR + (1 - keep_B1H11) * write_B2HSR
        keep_BH1 = keep_state_BTH[:, t, :, None]
        new_state_BHS = keep_BH1 * state_BHS + (1 - keep_BH1) * left_BTHS[:, t]
        if hold_BT is not None:
            held_B11 = hold_BT[:, t, None, None]
            new_slots_B2HSR = torch.where(held_B11[..., None, None], slots_B2HSR, new_slots_B2HSR)
            new_state_BHS = torch.where(held_B11, state_BHS, new_state_BHS)
        state_BHS, slots_B2HSR = new_state_BHS, new_slots_B2HSR
        queries_B2HS = torch.stack([query[:, t] for query in queries], dim=1)
        reads_B2HR = (queries_B2HS.unsqueeze(-1) * slots_B2HSR).sum(3)
        outputs.append(reads_B2HR[:, 0] * reads_B2HR[:, 1])
    return torch.stack(outputs, dim=1), state_BHS, slots_B2HSR
