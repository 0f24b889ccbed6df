"""The short convolution as a sum over taps of moved inputs, in plain PyTorch.

B batch, T positions, C channels, W width of the kernel, L = W - 1 + T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.short_conv.sources import final_window, tap_sources

__all__ = ["short_conv_taps"]


def short_conv_taps(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor,
    window_BWC: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One product per tap; arguments as in :func:`palimpsest.ops.short_conv.short_conv`."""
    length, channels = x_BTC.shape[1:]
    inputs_BLC = torch.cat([window_BWC, x_BTC], dim=1)
    y_BTC = bias_C.expand_as(x_BTC)
    if hold_BT is None and reset_BT is None:
        for w, weight_C in enumerate(weight_CW.unbind(1)):
            y_BTC = torch.addcmul(y_BTC, inputs_BLC[:, w : w + length], weight_C)
        return y_BTC, final_window(window_BWC, x_BTC, None)
    sources_BTW, last_BW = tap_sources(hold_BT, reset_BT, weight_CW.shape[1])
    for w, weight_C in enumerate(weight_CW.unbind(1)):
        source_BT1 = sources_BTW[:, :, w, None]
        met_BTC = inputs_BLC.gather(1, source_BT1.clamp(min=0).expand(-1, -1, channels))
        y_BTC = y_BTC + met_BTC.masked_fill(source_BT1 < 0, 0.0) * weight_C
    if hold_BT is not None:
        y_BTC = y_BTC.masked_fill(hold_BT.unsqueeze(-1), 0.0)
    return y_BTC, final_window(window_BWC, x_BTC, last_BW)
