"""Gradients of the folded weights: one product per weight and block, never inside a step.

dW = Σ_t dY_tᵀ X_t over a block's steps and rows at once (spec "fast recurrence", §2).

Legend: S steps of a block, B batch, D d_state, N columns of a first product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.grounded_loop.folding import Folded
from palimpsest.ops.grounded_loop.workspace import BackwardBuffers, Window

__all__ = ["WeightGrads"]


class WeightGrads:
    """Sums over blocks, in at least fp32."""

    def __init__(self, folded: Folded, w: Window) -> None:
        wide, lay = w.drive.dtype, w.layout
        self.ground = torch.zeros_like(folded.ground_DD, dtype=wide)
        self.ground_bias = w.drive.new_zeros(lay.D)
        self.dt_bias = w.drive.new_zeros(lay.H)
        self.first = [torch.zeros_like(x.first_ND, dtype=wide) for x in folded.layers]
        self.second = [torch.zeros_like(x.second_DZ, dtype=wide) for x in folded.layers]
        self.gate_bias = [w.drive.new_zeros(lay.D) for _ in folded.layers]
        self.query_bias = [w.drive.new_zeros(lay.P) for _ in folded.layers]

    def add(self, b: BackwardBuffers, w: Window, origin: int, size: int) -> None:
        """Add a block of ``size`` steps that starts at step ``origin`` of the window."""
        lay, wide = w.layout, w.drive.dtype
        dground = b.dground[:size].flatten(0, 1)
        self.ground += dground.t() @ b.ground_in[:size].flatten(0, 1)
        self.ground_bias += dground.sum(0, dtype=wide)
        for i in range(len(b.dy)):
            x = (w.mid[i - 1] if i else w.unit)[origin : origin + size].flatten(0, 1)
            dy, dout = b.dy[i][:size].flatten(0, 1), b.dout[i][:size].flatten(0, 1)
            self.first[i] += dy.t() @ x
            self.second[i] += dout.t() @ b.z[i][:size].flatten(0, 1)
            self.gate_bias[i] += dy[:, : lay.D].sum(0, dtype=wide)
            self.query_bias[i] += dy[:, lay.query : lay.read_gate].sum(0, dtype=wide)
            if i == 0:
                self.dt_bias += dy[:, lay.decay : lay.key].sum(0, dtype=wide)

    def result(self, dkey_bias: Tensor, dA_log: Tensor) -> list[Tensor]:
        """In the order in which the autograd function takes the folded weights."""
        parts = zip(self.first, self.second, self.gate_bias, self.query_bias, strict=True)
        layers = [tensor for layer in parts for tensor in layer]
        return [self.ground, self.ground_bias, dkey_bias, dA_log, self.dt_bias, *layers]
