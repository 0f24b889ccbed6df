"""The triple-latent layer's recurrence as a plain loop over time: the truth.

B batch, T positions, H heads, S width of the state, X = 4·H·S + 2·H columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["split_columns", "triple_scan_reference"]


def split_columns(projected_BTX: Tensor, n_heads: int) -> tuple[Tensor, Tensor]:
    """Features before their tanh, (B, T, 4, H, S), and gate logits, (B, T, 2, H)."""
    gates = 2 * n_heads
    features = projected_BTX[..., :-gates].unflatten(-1, (4, n_heads, -1))
    return features, projected_BTX[..., -gates:].unflatten(-1, (2, n_heads))


def triple_scan_reference(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    pairs_BHSS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step per position; see :func:`palimpsest.ops.triple_scan.triple_scan`."""
    features, gates = split_columns(projected_BTX, state_BHS.shape[1])
    left_BTHS, right_BTHS, query_left_BTHS, query_right_BTHS = features.tanh().unbind(2)
    keep_state_BTH, keep_pairs_BTH = gates.sigmoid().unbind(2)
    outputs: list[Tensor] = []
    for t in range(projected_BTX.shape[1]):
        if reset_BT is not None:
            state_BHS = torch.where(reset_BT[:, t, None, None], 0.0, state_BHS)
            pairs_BHSS = torch.where(reset_BT[:, t, None, None, None], 0.0, pairs_BHSS)
        keep_BH1 = keep_pairs_BTH[:, t, :, None, None]
        pair_BHSS = state_BHS[..., :, None] * right_BTHS[:, t, :, None, :]
        new_pairs_BHSS = keep_BH1 * pairs_BHSS + (1 - keep_BH1) * pair_BHSS
        keep_BH = keep_state_BTH[:, t, :, None]
        new_state_BHS = keep_BH * state_BHS + (1 - keep_BH) * left_BTHS[:, t]
        if hold_BT is not None:
            new_pairs_BHSS = torch.where(
                hold_BT[:, t, None, None, None], pairs_BHSS, new_pairs_BHSS
            )
            new_state_BHS = torch.where(hold_BT[:, t, None, None], state_BHS, new_state_BHS)
        state_BHS, pairs_BHSS = new_state_BHS, new_pairs_BHSS
        read_BHS = (query_left_BTHS[:, t, :, :, None] * pairs_BHSS).sum(2)
        outputs.append(read_BHS * query_right_BTHS[:, t])
    return torch.stack(outputs, dim=1), state_BHS, pairs_BHSS
