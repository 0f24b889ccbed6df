"""The triple-latent layer: pair memory and feed-forward network, each added to the stream; and the
layer that retrieves exactly as well.

Legend: B batch, T time, D d_model, H heads, S state_dim, R slots.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.feed_forward import FeedForward
from palimpsest.layers.init import linear
from palimpsest.layers.memory_taps import STREAM
from palimpsest.layers.pair_memory import PairMemory
from palimpsest.layers.retrieval import PairView, Retrieval
from palimpsest.taps import Tap, tap

__all__ = ["Fusion", "RetrievingLayer", "TripleLayer"]

Fusion = Literal["logits", "sum", "concat"]


class TripleLayer(nn.Module):
    """x ← x + drop(PairMemory(LN(x))); x ← x + drop(FFN(LN(x))).

    Args:
        d_model: D.
        n_heads: H.
        state_dim: S.
        n_slots: R, or 0 for the memory in full.
        dropout: probability of dropping an entry while training.

    Source:
        arXiv 2606.05175.
    """

    def __init__(
        self, d_model: int, n_heads: int, state_dim: int, n_slots: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.mixer = PairMemory(d_model, n_heads, state_dim, n_slots)
        self.ffn_norm = nn.LayerNorm(d_model)
        self.ffn = FeedForward(d_model, dropout)
        self.dropout = dropout

    def forward(
        self,
        x_BTD: Tensor,
        running_BHS: Tensor,
        memory: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stream after the layer, and the layer's states (see :class:`PairMemory`)."""
        o_BTD, running_BHS, memory = self.mixer(
            self.norm(x_BTD), running_BHS, memory, hold_BT, reset_BT
        )
        o_BTD = tap(self, "read", o_BTD)
        return self.feed(x_BTD + self.drop(o_BTD)), running_BHS, memory

    def feed(self, x_BTD: Tensor) -> Tensor:
        """The second half of the layer."""
        y_BTD = tap(self, "ffn", self.ffn(self.ffn_norm(x_BTD)))
        return tap(self, "residual", x_BTD + self.drop(y_BTD))

    def describe_taps(self) -> dict[str, Tap]:
        return STREAM

    def drop(self, x_BTD: Tensor) -> Tensor:
        return dropout(x_BTD, self.dropout, self.training)


class RetrievingLayer(TripleLayer):
    """A triple-latent layer that also reads a :class:`Retrieval`.

    Args:
        d_model, n_heads, state_dim, n_slots, dropout: as in :class:`TripleLayer`.
        retrieval: what it reads.
        fusion: "logits" hands the read out; "sum" adds it to the pair memory's; "concat" maps
            both to the stream's width.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        state_dim: int,
        n_slots: int,
        dropout: float,
        retrieval: Retrieval,
        fusion: Fusion,
    ) -> None:
        super().__init__(d_model, n_heads, state_dim, n_slots, dropout)
        self.retrieval = retrieval
        self.fusion = fusion
        self.fuse = linear(2 * d_model, d_model) if fusion == "concat" else None

    def retrieve(
        self,
        x_BTD: Tensor,
        running_BHS: Tensor,
        memory: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
        embedding_VD: Tensor,
        view: PairView,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As ``forward``, with what was retrieved (B,T,D) as the last result.

        Args:
            embedding_VD: the raw token embeddings.
            view: the pairs.
        """
        n_BTD = self.norm(x_BTD)
        o_BTD, running_BHS, memory = self.mixer(n_BTD, running_BHS, memory, hold_BT, reset_BT)
        o_BTD = tap(self, "read", o_BTD)
        after_BTD = x_BTD + self.drop(o_BTD)
        asks = after_BTD if self.retrieval.asks == "serial" else n_BTD
        read_BTD = self.retrieval(embedding_VD, asks, view)
        if self.fuse is not None:
            after_BTD = x_BTD + self.drop(self.fuse(torch.cat([o_BTD, read_BTD], dim=-1)))
        elif self.fusion == "sum":
            after_BTD = after_BTD + self.drop(read_BTD)
        return self.feed(after_BTD), running_BHS, memory, read_BTD
