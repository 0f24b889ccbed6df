"""The pair memory as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, K key heads (a multiple of the H value heads), S width of keys and queries,
R width of values.
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
    initial_BKSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One step per position; arguments as in :func:`palimpsest.ops.pair_memory.pair_memory`."""
    groups = keys_BTKS.shape[2] // values_BTHR.shape[2]
    values_BTKR = values_BTHR.repeat(1, 1, groups, 1)
    decay_BTK = log_decay_BTH.exp().repeat(1, 1, groups)
    state_BKSR = initial_BKSR
    reads: list[Tensor] = []
    for t in range(keys_BTKS.shape[1]):
        if reset_BT is not None:
            state_BKSR = torch.where(reset_BT[:, t, None, None, None], 0.0, state_BKSR)
        pair_BKSR = keys_BTKS[:, t, :, :, None] * values_BTKR[:, t, :, None, :]
        written_BKSR = decay_BTK[:, t, :, None, None] * state_BKSR + pair_BKSR
        if hold_BT is None:
            state_BKSR = written_BKSR
        else:
            state_BKSR = torch.where(hold_BT[:, t, None, None, None], state_BKSR, written_BKSR)
        reads.append((queries_BTKS[:, t, :, :, None] * state_BKSR).sum(2))
    return torch.stack(reads, dim=1), state_BKSR
