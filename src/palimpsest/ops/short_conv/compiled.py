"""The short convolution as a compiled loop (numba), forward and backward.

One pass over the inputs and one over the outputs, where PyTorch takes one of each per tap. What the
backward needs is the inputs alone: C numbers a position.

B batch, T positions, C channels, W width of the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.short_conv.sources import final_window, tap_sources
from palimpsest.ops.threads import as_array, require_cpu, run_rows

__all__ = ["short_conv_numba"]


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BTC: Tensor,
        weight_CW: Tensor,
        bias_C: Tensor,
        window_BWC: Tensor,
        sources_BTW: Tensor,
    ) -> Tensor:
        from palimpsest.ops.short_conv.loops import forward_loop

        inputs = (x_BTC.contiguous(), weight_CW.T.contiguous(), window_BWC.contiguous())
        y_BTC = torch.empty_like(inputs[0])
        run_rows(
            forward_loop(),
            (*map(as_array, (*inputs, bias_C, sources_BTW, y_BTC)),),
            x_BTC.shape[0],
            x_BTC.numel() * weight_CW.shape[1],
        )
        ctx.save_for_backward(*inputs, sources_BTW)
        return y_BTC

    @staticmethod
    @first_derivatives_only("short_conv")
    def backward(ctx: Any, d_y_BTC: Tensor) -> tuple[Tensor | None, ...]:
        from palimpsest.ops.short_conv.loops import backward_loop

        x_BTC, weight_WC, window_BWC, sources_BTW = ctx.saved_tensors
        batch, _, channels = x_BTC.shape
        width = weight_WC.shape[0]
        d_x_BTC, d_window_BWC = torch.empty_like(x_BTC), torch.zeros_like(window_BWC)
        d_weights_BWC = x_BTC.new_zeros(batch, width, channels)
        d_biases_BC = x_BTC.new_zeros(batch, channels)
        inputs = (d_y_BTC, x_BTC, weight_WC, window_BWC, sources_BTW)
        outputs = (d_x_BTC, d_weights_BWC, d_biases_BC, d_window_BWC)
        run_rows(
            backward_loop(),
            (*map(as_array, (*inputs, *outputs)),),
            batch,
            x_BTC.numel() * width * 3,
        )
        return d_x_BTC, d_weights_BWC.sum(0).T, d_biases_BC.sum(0), d_window_BWC, None


def short_conv_numba(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor,
    window_BWC: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The compiled loop; arguments as in :func:`palimpsest.ops.short_conv.short_conv`."""
    require_cpu("short_conv", x_BTC)
    last_BW = None
    if hold_BT is None and reset_BT is None:
        # each tap meets its own neighbour
        sources_BTW = torch.empty(0, 0, 0, dtype=torch.long, device="cpu")
    else:
        sources_BTW, last_BW = tap_sources(hold_BT, reset_BT, weight_CW.shape[1])
    y_BTC = _ShortConv.apply(x_BTC, weight_CW, bias_C, window_BWC, sources_BTW)  # type: ignore[no-untyped-call]
    return y_BTC, final_window(window_BWC, x_BTC, last_BW)
