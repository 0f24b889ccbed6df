"""The pair memory as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, H value heads, K key heads, M = max(H, K) memories, S width of keys and
queries, R width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pair_memory_reference"]


def pair_memory_reference(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    log_decay_BTH: Tensor,
    initial_BMSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One step per position; arguments as in :func:`palimpsest.ops.pair_memory.pair_memory`."""
    heads, key_heads = values_BTHR.shape[2], keys_BTKS.shape[2]
    repeats = max(key_heads // heads, 1)  # key heads that meet one value head
    sharing = max(heads // key_heads, 1)  # value heads that meet one key head
    values_BTMR = values_BTHR.repeat(1, 1, repeats, 1)
    decay_BTM = log_decay_BTH.exp().repeat(1, 1, repeats)
    state_BMSR = initial_BMSR
    reads: list[Tensor] = []
    for t in range(keys_BTKS.shape[1]):
        if reset_BT is not None:
            state_BMSR = torch.where(reset_BT[:, t, None, None, None], 0.0, state_BMSR)
        key_BMS = keys_BTKS[:, t].repeat_interleave(sharing, dim=1)
        query_BMS = queries_BTKS[:, t].repeat_interleave(sharing, dim=1)
        pair_BMSR = key_BMS[:, :, :, None] * values_BTMR[:, t, :, None, :]
        written_BMSR = decay_BTM[:, t, :, None, None] * state_BMSR + pair_BMSR
        if hold_BT is None:
            state_BMSR = written_BMSR
        else:
            state_BMSR = torch.where(hold_BT[:, t, None, None, None], state_BMSR, written_BMSR)
        reads.append((query_BMS[:, :, :, None] * state_BMSR).sum(2))
    return torch.stack(reads, dim=1), state_BMSR
