"""Transformer+Triple: a Transformer with one triple-latent layer on top.

Attention keeps the look-up of keys and values; the triple-latent layer adds third-order features,
h ← h + Triple(h), before the final norm and the head. Triple(h) is what the layer adds to the
stream: its pair read and its feed-forward network.

Source: the compatibility baseline of arXiv 2606.05175.

Legend: B batch, T time, D d_model, H heads, S state_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from palimpsest.layers.triple_layer import TripleLayer
from palimpsest.models import flops
from palimpsest.models.config import positive
from palimpsest.models.registry import register
from palimpsest.models.scaling import Scaling
from palimpsest.models.transformer import (
    TRANSFORMER_WIDTHS,
    TransformerBase,
    TransformerConfig,
    TransformerState,
    transformer_layers,
    transformer_sizes,
)
from palimpsest.state import State

__all__ = ["TransformerTriple", "TransformerTripleConfig", "TransformerTripleState"]


@dataclass(frozen=True, kw_only=True)
class TransformerTripleConfig(TransformerConfig):
    """Transformer+Triple.

    Attributes:
        state_dim: width of a head's running state in the triple-latent layer.
    """

    state_dim: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "state_dim")


@dataclass(frozen=True)
class TransformerTripleState(TransformerState):
    """The key-value cache, and the constant state of the triple-latent layer.

    Attributes:
        running: (B,H,S) the running state.
        memory: (B,H,S,S) the pair memory.
    """

    kind: ClassVar[str] = "transformer-triple"

    running: Tensor
    memory: Tensor


def sizes(width: int, layers: int) -> dict[str, Any]:
    """The Transformer of this width, and on top features half as wide as the stream."""
    fields = transformer_sizes(width, layers)
    return {**fields, "state_dim": max(2, round(width / (2 * fields["n_heads"])))}


@register("transformer-triple", TransformerTripleConfig)
class TransformerTriple(TransformerBase):
    """Attention layers, then one triple-latent layer."""

    state_class = TransformerTripleState
    scaling = Scaling(
        widths=TRANSFORMER_WIDTHS,
        fields=sizes,
        layers=transformer_layers,
        fine="state_dim",
        fine_step=1,
    )
    config: TransformerTripleConfig

    def __init__(self, config: TransformerTripleConfig) -> None:
        super().__init__(config)
        c = config
        self.triple = TripleLayer(c.d_model, c.n_heads, c.state_dim, 0, c.dropout)

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, TransformerTripleState)
        x_BTD, position_B = self.embed(input_ids, state.position, hold_BT, reset_BT)
        x_BTD, cache = self.attend(x_BTD, state.cache, hold_BT, reset_BT)
        x_BTD, running, memory = self.triple(x_BTD, state.running, state.memory, hold_BT, reset_BT)
        features_BTD = self.final_norm(x_BTD)
        return features_BTD, TransformerTripleState(cache, position_B, running, memory)

    def body_flops(self, length: int) -> dict[str, int]:
        c, counts = self.config, super().body_flops(length)
        counts["projections"] += flops.products(length, self.triple)
        return {**counts, "recurrence": flops.pair_memory(length, c.n_heads, c.state_dim, 0)}

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TransformerTripleState:
        c, (device, dtype) = self.config, self.where(device, dtype)
        return TransformerTripleState(
            self.empty_cache(batch, device, dtype),
            torch.zeros(batch, device=device, dtype=torch.long),
            torch.zeros(batch, c.n_heads, c.state_dim, device=device, dtype=dtype),
            torch.zeros(batch, c.n_heads, c.state_dim, c.state_dim, device=device, dtype=dtype),
        )
