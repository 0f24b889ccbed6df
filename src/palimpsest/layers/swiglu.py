"""The gated feed-forward network.

Legend: B batch, T time, D d_model, F d_ffn.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.init import linear

__all__ = ["SwiGLU"]


class SwiGLU(nn.Module):
    """(silu(x W_gate) · x W_up) W_down, without biases.

    ``rise`` (2F,D) holds the rows of the gate, then those of up: one product makes both.

    Args:
        d_model: D.
        d_ffn: F.
        out_std: standard deviation with which W_down starts; the others start with 0.02.

    Source:
        arXiv 2002.05202.
    """

    def __init__(self, d_model: int, d_ffn: int, out_std: float = 0.02) -> None:
        super().__init__()
        self.rise = linear(d_model, 2 * d_ffn)
        self.fall = linear(d_ffn, d_model, std=out_std)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.rise(x_BTD).chunk(2, dim=-1)
        y_BTD: Tensor = self.fall(F.silu(gate_BTF) * up_BTF)
        return y_BTD
