"""The running state and the compressed memory of pairs, as a module.

Legend: B batch, T time, D d_model, H heads, S state_dim, R slots, X columns of the projection.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.init import linear, normal_
from palimpsest.layers.memory_taps import pair_taps, show_pairs
from palimpsest.ops.slot_scan import slot_scan
from palimpsest.ops.triple_scan import triple_scan
from palimpsest.taps import Tap, listening, tap

__all__ = ["PairMemory"]


class PairMemory(nn.Module):
    """Third-order features of a sequence: what came before × what is here × what is asked.

    a, b, qˡ, qʳ = tanh(n W), λ, γ = σ(n W + bias), one of each gate per head. The state runs as
    s = λ s + (1 - λ) a; the memory keeps pairs of the state that a token finds with b, either in
    full, P = γ P + (1 - γ) s ⊗ b, read as (Pᵀ qˡ) ⊙ qʳ, or in R slots that w = softmax(n W + bias)
    spreads the pair over, read as (qˡ·Sˡ) ⊙ (qʳ·Sʳ).

    All projections of n are one product: ``weight`` (X,D) holds the rows of a, b, qˡ, qʳ (H·S
    each, head by head), λ, γ (H each) and the slots (H·R); ``bias`` those of λ, γ and the slots.

    Args:
        d_model: D.
        n_heads: H.
        state_dim: S.
        n_slots: R, or 0 for the memory in full.

    Source:
        arXiv 2606.05175, the triple-latent layer and its slots.
    """

    def __init__(self, d_model: int, n_heads: int, state_dim: int, n_slots: int = 0) -> None:
        super().__init__()
        self.n_heads, self.state_dim, self.n_slots = n_heads, state_dim, n_slots
        self.n_features = 4 * n_heads * state_dim
        n_biased = n_heads * (2 + n_slots)
        self.weight = nn.Parameter(torch.empty(self.n_features + n_biased, d_model))
        self.bias = nn.Parameter(torch.zeros(n_biased))
        self.out = linear(n_heads * (n_slots or state_dim), d_model)
        normal_(self.weight, 0.02)

    def forward(
        self,
        n_BTD: Tensor,
        running_BHS: Tensor,
        memory: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What each position reads (B,T,D), and both states after the last position.

        Args:
            n_BTD: the normed input.
            running_BHS: the running state before position 0.
            memory: (B,H,S,S) in full; (B,2,H,S,R) in slots, the left ones first.
            hold_BT: True at padding.
            reset_BT: True where a document starts.
        """
        bias_X = F.pad(self.bias, (self.n_features, 0))
        projected_BTX = F.linear(n_BTD, self.weight, bias_X)
        if listening():
            given = (running_BHS, memory, hold_BT, reset_BT)
            show_pairs(self, projected_BTX, self.n_heads, self.n_slots, *given)
        if self.n_slots:
            read, running_BHS, memory = slot_scan(
                projected_BTX,
                self.n_heads,
                self.n_slots,
                running_BHS,
                memory,
                hold=hold_BT,
                reset=reset_BT,
            )
        else:
            read, running_BHS, memory = triple_scan(
                projected_BTX, self.n_heads, running_BHS, memory, hold=hold_BT, reset=reset_BT
            )
        read = tap(self, "memory_read", read)
        return self.out(read.flatten(2)), running_BHS, memory

    def describe_taps(self) -> dict[str, Tap]:
        shape = "(B,T,H,R)" if self.n_slots else "(B,T,H,S)"
        read = Tap(shape, "what each head reads, before the projection", replaceable=True)
        return {**pair_taps(self.n_slots), "memory_read": read}
