"""The decayed running sum as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, H heads, S width of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["decay_scan_reference"]


def decay_scan_reference(
    values_BTHS: Tensor,
    log_decay_BTH: Tensor,
    initial_BHS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    exclusive: bool,
) -> tuple[Tensor, Tensor]:
    """One step per position; arguments as in :func:`palimpsest.ops.decay_scan.decay_scan`."""
    state_BHS = initial_BHS
    states: list[Tensor] = []
    for t in range(values_BTHS.shape[1]):
        if reset_BT is not None:
            state_BHS = torch.where(reset_BT[:, t, None, None], 0.0, state_BHS)
        found_BHS = state_BHS
        written_BHS = log_decay_BTH[:, t, :, None].exp() * state_BHS + values_BTHS[:, t]
        if hold_BT is None:
            state_BHS = written_BHS
        else:
            state_BHS = torch.where(hold_BT[:, t, None, None], state_BHS, written_BHS)
        states.append(found_BHS if exclusive else state_BHS)
    return torch.stack(states, dim=1), state_BHS
