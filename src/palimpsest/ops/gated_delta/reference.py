"""The gated delta rule as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, H heads, K width of keys, V width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gated_delta_reference"]


def gated_delta_reference(
    queries_BTHK: Tensor,
    keys_BTHK: Tensor,
    values_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    initial_BHKV: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """One write and one read a position; see :func:`palimpsest.ops.gated_delta.gated_delta`."""
    memory_BHKV = initial_BHKV
    reads: list[Tensor] = []
    for t in range(values_BTHV.shape[1]):
        if reset_BT is not None:
            memory_BHKV = torch.where(reset_BT[:, t, None, None, None], 0.0, memory_BHKV)
        key_BHK = keys_BTHK[:, t]
        kept_BHKV = memory_BHKV * log_decay_BTH[:, t, :, None, None].exp()
        error_BHV = values_BTHV[:, t] - torch.einsum("bhkv,bhk->bhv", kept_BHKV, key_BHK)
        update_BHV = beta_BTH[:, t, :, None] * error_BHV
        written_BHKV = kept_BHKV + key_BHK.unsqueeze(-1) * update_BHV.unsqueeze(-2)
        if hold_BT is not None:
            held_B = hold_BT[:, t, None, None, None]
            written_BHKV = torch.where(held_B, memory_BHKV, written_BHKV)
        memory_BHKV = written_BHKV
        reads.append(torch.einsum("bhkv,bhk->bhv", memory_BHKV, queries_BTHK[:, t]) * scale)
    return torch.stack(reads, dim=1), memory_BHKV
