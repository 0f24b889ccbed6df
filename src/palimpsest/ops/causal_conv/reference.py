"""The causal convolution as a plain loop over time: the truth the fast forms are held to.

B batch, T positions, D input channels, E output channels, W width of the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["causal_conv_reference"]


def causal_conv_reference(
    x_BTD: Tensor,
    weight: Tensor,
    bias_E: Tensor | None,
    carry_BWD: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One window per position; arguments as in :func:`palimpsest.ops.causal_conv.causal_conv`."""
    outputs: list[Tensor] = []
    for t in range(x_BTD.shape[1]):
        if reset_BT is not None:
            carry_BWD = torch.where(reset_BT[:, t, None, None], 0.0, carry_BWD)
        window_BWD = torch.cat([carry_BWD, x_BTD[:, t : t + 1]], dim=1)
        if weight.shape[1] == 1:  # depthwise
            output_BE = (window_BWD * weight[:, 0].T).sum(1)
        else:
            output_BE = (window_BWD[:, None] * weight.mT).sum((2, 3))
        if bias_E is not None:
            output_BE = output_BE + bias_E
        if hold_BT is None:
            carry_BWD = window_BWD[:, 1:]
        else:
            held_B = hold_BT[:, t]
            output_BE = torch.where(held_B[:, None], 0.0, output_BE)
            carry_BWD = torch.where(held_B[:, None, None], carry_BWD, window_BWD[:, 1:])
        outputs.append(output_BE)
    return torch.stack(outputs, dim=1), carry_BWD
