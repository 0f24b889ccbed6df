"""The short convolution as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, C channels, W width of the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["short_conv_reference"]


def short_conv_reference(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor,
    window_BWC: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One window per position; arguments as in :func:`palimpsest.ops.short_conv.short_conv`."""
    outputs: list[Tensor] = []
    for t in range(x_BTC.shape[1]):
        if reset_BT is not None:
            window_BWC = torch.where(reset_BT[:, t, None, None], 0.0, window_BWC)
        inputs_BWC = torch.cat([window_BWC, x_BTC[:, t : t + 1]], dim=1)
        y_BC = bias_C + (inputs_BWC * weight_CW.T).sum(1)
        moved_BWC = inputs_BWC[:, 1:]
        if hold_BT is not None:
            held_B = hold_BT[:, t]
            y_BC = torch.where(held_B[:, None], 0.0, y_BC)
            moved_BWC = torch.where(held_B[:, None, None], window_BWC, moved_BWC)
        window_BWC = moved_BWC
        outputs.append(y_BC)
    return torch.stack(outputs, dim=1), window_BWC
