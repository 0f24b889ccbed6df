"""The causal convolution as matrix products, without copying windows.

The carry and the inputs of all rows lie behind one another in one matrix of B·(W-1+T) rows. The
inputs that tap w meets are that matrix moved by w rows, which is a plain view of it: one product
per tap, added up in place. The W-1 outputs between two rows of the batch mix both and are dropped.
Where documents start inside the batch, windows are formed and masked instead.

B batch, T positions, D input channels, E output channels, W width of the kernel, L = W - 1 + T.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import without_autocast
from palimpsest.ops.first_order import first_derivatives_only

__all__ = ["causal_conv_products"]


class _ShiftedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded_BLD: Tensor, weight_EDW: Tensor, bias_E: Tensor) -> Tensor:
        batch, length, channels = padded_BLD.shape
        taps_WDE = weight_EDW.permute(2, 1, 0).contiguous()
        width = taps_WDE.shape[0]
        rows = batch * length - width + 1
        flat = padded_BLD.view(batch * length, channels)
        output = flat.new_zeros(batch * length, taps_WDE.shape[2])
        used = output[:rows]
        torch.addmm(bias_E, flat[:rows], taps_WDE[0], out=used)
        for w in range(1, width):
            used.addmm_(flat[w : w + rows], taps_WDE[w])
        ctx.save_for_backward(padded_BLD, taps_WDE)
        return output.view(batch, length, -1)[:, : length - width + 1]

    @staticmethod
    @first_derivatives_only("causal_conv")
    def backward(ctx: Any, d_output_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        padded_BLD, taps_WDE = ctx.saved_tensors
        batch, length, channels = padded_BLD.shape
        width, _, outputs = taps_WDE.shape
        rows = batch * length - width + 1
        flat = padded_BLD.view(batch * length, channels)
        with without_autocast(flat.device):
            # the dropped outputs have no gradient
            d_used = F.pad(d_output_BTE, (0, 0, 0, width - 1)).view(-1, outputs)[:rows]
            d_flat = torch.zeros_like(flat)
            d_taps_WDE = torch.empty_like(taps_WDE)
            for w in range(width):
                d_flat[w : w + rows].addmm_(d_used, taps_WDE[w].T)
                torch.mm(flat[w : w + rows].T, d_used, out=d_taps_WDE[w])
        return d_flat.view_as(padded_BLD), d_taps_WDE.permute(2, 1, 0), d_used.sum(0)


def _convolve(padded_BLD: Tensor, weight: Tensor, bias_E: Tensor | None) -> Tensor:
    """Every full window of the padded input, no boundaries."""
    if weight.shape[1] == 1:  # depthwise
        channels = padded_BLD.shape[2]
        return F.conv1d(padded_BLD.mT, weight, bias_E, groups=channels).mT
    bias_E = padded_BLD.new_zeros(weight.shape[0]) if bias_E is None else bias_E
    output_BTE: Tensor = _ShiftedProducts.apply(padded_BLD.contiguous(), weight, bias_E)  # type: ignore[no-untyped-call]
    return output_BTE


def _convolve_documents(
    padded_BLD: Tensor, document_BL: Tensor, weight: Tensor, bias_E: Tensor | None
) -> Tensor:
    """Every full window, in which inputs of earlier documents count as zeros."""
    width = weight.shape[2]
    length = padded_BLD.shape[1] - width + 1
    own_BT = document_BL[:, width - 1 :]
    taps = []
    for w in range(width):
        same_BT = document_BL[:, w : w + length] == own_BT
        taps.append(padded_BLD[:, w : w + length] * same_BT.unsqueeze(-1))
    if weight.shape[1] == 1:
        output_BTE = sum(tap * weight[:, 0, w] for w, tap in enumerate(taps))
        assert isinstance(output_BTE, Tensor)
        return output_BTE if bias_E is None else output_BTE + bias_E
    return F.linear(torch.cat(taps, dim=-1), weight.transpose(1, 2).flatten(1), bias_E)


def causal_conv_products(
    x_BTD: Tensor,
    weight: Tensor,
    bias_E: Tensor | None,
    carry_BWD: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Products per tap; arguments as in :func:`palimpsest.ops.causal_conv.causal_conv`."""
    with without_autocast(x_BTD.device):
        if hold_BT is None and reset_BT is None:
            padded_BLD = torch.cat([carry_BWD, x_BTD], dim=1)
            # of its own: a state must not keep the whole text that it is the end of
            carry_BWD = padded_BLD[:, x_BTD.shape[1] :].clone()
            return _convolve(padded_BLD, weight, bias_E), carry_BWD
        return _gated(x_BTD, weight, bias_E, carry_BWD, hold_BT, reset_BT)


def _gated(
    x_BTD: Tensor,
    weight: Tensor,
    bias_E: Tensor | None,
    carry_BWD: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Padding is moved to the end, in order, convolved over and put back as zeros."""
    batch, length, channels = x_BTD.shape
    past = carry_BWD.shape[1]
    document_BT = None if reset_BT is None else reset_BT.cumsum(1)
    kept_B = None
    own_document_BT = document_BT
    if hold_BT is not None:
        order_BT = hold_BT.to(torch.int8).sort(dim=1, stable=True).indices
        kept_B = length - hold_BT.sum(1)
        x_BTD = x_BTD.gather(1, order_BT.unsqueeze(-1).expand(-1, -1, channels))
        if document_BT is not None:
            own_document_BT = document_BT.gather(1, order_BT)
    padded_BLD = torch.cat([carry_BWD, x_BTD], dim=1)
    document_BL = None if own_document_BT is None else F.pad(own_document_BT, (past, 0))
    if document_BL is None:
        output_BTE = _convolve(padded_BLD, weight, bias_E)
    else:
        output_BTE = _convolve_documents(padded_BLD, document_BL, weight, bias_E)

    # the last inputs of the row that are not padding, and not of an earlier document
    last_BW = torch.arange(past, device=x_BTD.device).expand(batch, past)
    last_BW = last_BW + (length if kept_B is None else kept_B.unsqueeze(1))
    carry_BWD = padded_BLD.gather(1, last_BW.unsqueeze(-1).expand(-1, -1, channels))
    if document_BL is not None and document_BT is not None:
        current_BW = document_BL.gather(1, last_BW) == document_BT[:, -1:]
        carry_BWD = carry_BWD * current_BW.unsqueeze(-1)
    if hold_BT is not None:
        place_BT = (~hold_BT).cumsum(1).sub_(1).clamp_(min=0)
        outputs = output_BTE.shape[2]
        output_BTE = output_BTE.gather(1, place_BT.unsqueeze(-1).expand(-1, -1, outputs))
        output_BTE = output_BTE.masked_fill(hold_BT.unsqueeze(-1), 0.0)
    return output_BTE, carry_BWD
