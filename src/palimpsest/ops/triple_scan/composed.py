"""The triple-latent layer's recurrence out of the running sum and the pair memory, by chunks.

B batch, T positions, H heads, S width of the state, X = 4·H·S + 2·H columns.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.pair_memory import pair_memory
from palimpsest.ops.triple_scan.reference import split_columns

__all__ = ["triple_scan_composed"]


def triple_scan_composed(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    pairs_BHSS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Two ops, each choosing its own backend."""
    features, gates = split_columns(projected_BTX, state_BHS.shape[1])
    features = features.tanh()
    log_keep_state_BTH, log_keep_pairs_BTH = F.logsigmoid(gates).unbind(2)
    written = features[:, :, :2] * (-gates).sigmoid().unsqueeze(-1)
    found_BTHS, state_BHS = decay_scan(
        written[:, :, 0],
        log_keep_state_BTH,
        state_BHS,
        exclusive=True,
        hold=hold_BT,
        reset=reset_BT,
    )
    read_BTHS, pairs_BHSS = pair_memory(
        found_BTHS,
        written[:, :, 1],
        features[:, :, 2],
        log_keep_pairs_BTH,
        pairs_BHSS,
        hold=hold_BT,
        reset=reset_BT,
    )
    return read_BTHS * features[:, :, 3], state_BHS, pairs_BHSS
