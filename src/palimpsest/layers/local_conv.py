"""The local convolution that a hybrid applies before its layers.

Legend: B batch, T time, D d_model, W width of the kernel.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.errors import InputError
from palimpsest.layers.dropout import dropout
from palimpsest.layers.init import normal_
from palimpsest.ops.causal_conv import causal_conv
from palimpsest.taps import Tap, tap

__all__ = ["KERNEL", "ConvPadding", "LocalConv"]

ConvPadding = Literal["causal", "same"]
KERNEL = 5


class LocalConv(nn.Module):
    """x + drop(GELU(conv(x))), kernel 5, between all channels.

    Args:
        d_model: channels.
        padding: "causal" pads on the left only. "same" is the published padding on both sides,
            with which a position sees the next two: it needs the whole text at once.
        dropout: probability of dropping an output while training.

    Source:
        arXiv 2606.05175.
    """

    def __init__(self, d_model: int, padding: ConvPadding, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model, d_model, KERNEL))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.padding, self.dropout = padding, dropout
        normal_(self.weight, 0.02)

    def forward(
        self,
        x_BTD: Tensor,
        window_BWD: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The output, and the last W - 1 inputs (which "same" padding leaves as they are)."""
        if self.padding == "causal":
            y_BTD, window_BWD = causal_conv(
                x_BTD, self.weight, self.bias, window_BWD, hold=hold_BT, reset=reset_BT
            )
        else:
            y_BTD = self._two_sided(x_BTD, hold_BT, reset_BT)
        y_BTD = tap(self, "added", F.gelu(y_BTD))
        return x_BTD + dropout(y_BTD, self.dropout, self.training), window_BWD

    def describe_taps(self) -> dict[str, Tap]:
        doc = "what the convolution adds to the stream"
        return {"added": Tap("(B,T,D)", doc, replaceable=True)}

    def _two_sided(self, x_BTD: Tensor, hold_BT: Tensor | None, reset_BT: Tensor | None) -> Tensor:
        if reset_BT is not None:
            raise InputError(
                "reset_mask with conv_padding='same': that convolution sees past the end of a "
                "document; give each document as a row of its own"
            )
        order = None
        if hold_BT is not None:  # real tokens first, in order, so that they are neighbours
            order = hold_BT.to(torch.int8).argsort(dim=1, stable=True)[..., None].expand_as(x_BTD)
            x_BTD = x_BTD.masked_fill(hold_BT[..., None], 0.0).gather(1, order)
        y_BTD = F.conv1d(x_BTD.mT, self.weight, self.bias, padding=KERNEL // 2).mT
        return y_BTD if order is None else torch.zeros_like(y_BTD).scatter(1, order, y_BTD)
