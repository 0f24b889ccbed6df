"""Folding the norms into the matrices behind them, and gathering matrices that share an input.

norm_w(x) @ Wᵀ = rms(x)⁻¹ x @ (W diag(w))ᵀ, so every norm of one vector shares one rms, and all
products of it are ONE product (exact; spec §1 of the fast recurrence). Folding is ordinary
autograd: it happens once per window, outside the loop.

Legend: D d_state, F d_ffn, H heads, K d_key, U d_val, P = H·K, Q = H·U, N columns of one product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.ops.grounded_loop.params import GroundedParams, PredictParams, WriteParams
from palimpsest.ops.grounded_loop.reference import RMS_EPS

__all__ = ["Folded", "FoldedLayer", "Layout", "fold", "initial_key_input"]


@dataclass(frozen=True)
class Layout:
    """Where each part of the first product's columns lies.

    Order: gate p (D), a (F), b (F), query (P), read gate (Q); in the first layer also value (Q),
    β (H), decay (H) and the NEXT step's key (P).
    """

    D: int
    F: int
    H: int
    K: int
    U: int

    @property
    def P(self) -> int:
        return self.H * self.K

    @property
    def Q(self) -> int:
        return self.H * self.U

    @property
    def query(self) -> int:
        return self.D + 2 * self.F

    @property
    def read_gate(self) -> int:
        return self.query + self.P

    @property
    def value(self) -> int:
        return self.read_gate + self.Q

    @property
    def beta(self) -> int:
        return self.value + self.Q

    @property
    def decay(self) -> int:
        return self.beta + self.H

    @property
    def key(self) -> int:
        return self.decay + self.H

    def columns(self, layer: int) -> int:
        """N of a layer's first product."""
        return self.value if layer else self.key + self.P


class FoldedLayer(NamedTuple):
    """One layer's two products."""

    first_ND: Tensor
    second_DZ: Tensor  # Z = F + Q
    gate_bias_D: Tensor
    query_bias_P: Tensor


class Folded(NamedTuple):
    """A block ready for the loop: tensors only, in the order that the autograd function takes."""

    ground_DD: Tensor
    ground_bias_D: Tensor
    key_bias_P: Tensor
    A_log_H: Tensor
    dt_bias_H: Tensor
    layers: tuple[FoldedLayer, ...]


def fold(params: GroundedParams) -> tuple[Folded, Layout]:
    """Fold a block's parameters; differentiable."""
    write = params.write
    d_ffn = params.layers[0].ffn_out_DF.shape[1]
    layout = Layout(params.d_state, d_ffn, params.n_heads, params.d_key, params.d_val)
    empty = params.ground.norm_D.new_zeros(0)
    folded = Folded(
        params.ground.gate_DD * params.ground.norm_D,
        params.ground.gate_bias_D,
        empty if write is None else write.key_bias_P,
        empty if write is None else write.A_log_H,
        empty if write is None else write.dt_bias_H,
        tuple(
            _fold_layer(layer, write if i == 0 else None) for i, layer in enumerate(params.layers)
        ),
    )
    return folded, layout


def _fold_layer(layer: PredictParams, write: WriteParams | None) -> FoldedLayer:
    parts = [layer.gate_DD * layer.gate_norm_D, layer.ffn_in_2FD * layer.ffn_norm_D]
    second_DZ, query_bias_P = layer.ffn_out_DF, layer.gate_bias_D.new_zeros(0)
    if layer.read is not None:
        parts += [layer.read.query_PD * layer.read.norm_D, layer.read.gate_QD * layer.read.norm_D]
        second_DZ = torch.cat([second_DZ, layer.read.out_DQ * layer.read.out_norm_Q], 1)
        query_bias_P = layer.read.query_bias_P
    if write is not None:
        matrices = (write.value_QD, write.beta_HD, write.decay_HD, write.key_PD)
        parts += [w * write.norm_D for w in matrices]
    return FoldedLayer(torch.cat(parts), second_DZ, layer.gate_bias_D, query_bias_P)


def initial_key_input(grounded_BD: Tensor, write: WriteParams | None) -> Tensor:
    """(B,P) the first step's key before bias and relu: it comes from the state carried in."""
    if write is None:
        return grounded_BD.new_zeros(len(grounded_BD), 0)
    unit_BD = grounded_BD * torch.rsqrt(grounded_BD.square().mean(-1, keepdim=True) + RMS_EPS)
    weight_PD = write.key_PD * write.norm_D
    key: Tensor = functional.linear(unit_BD.to(weight_PD.dtype), weight_PD).to(grounded_BD.dtype)
    return key
