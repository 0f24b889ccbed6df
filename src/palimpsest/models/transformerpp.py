"""Transformer++: rotary positions, RMSNorm, SwiGLU, no biases; the baseline of recurrent models.

Source: the architecture of Llama (arXiv 2302.13971), with grouped queries as an option
(arXiv 2305.13245); the name is that of arXiv 2312.00752.

Legend: B batch, T time, D d_model, H heads, G heads of keys and values, K = D / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from palimpsest.layers.attention import AttentionCache
from palimpsest.layers.documents import place_in_document
from palimpsest.layers.dropout import dropout
from palimpsest.layers.grouped_attention import GroupedAttention
from palimpsest.layers.growing import Growing
from palimpsest.layers.memory_taps import STREAM
from palimpsest.layers.norm import RMSNorm
from palimpsest.layers.rotary import rotary_angles
from palimpsest.layers.swiglu import SwiGLU
from palimpsest.models import flops
from palimpsest.models.context import ContextLimit
from palimpsest.models.registry import register
from palimpsest.models.stack import StackModel
from palimpsest.models.transformerpp_config import SCALING, TransformerPPConfig
from palimpsest.state import State
from palimpsest.taps import Tap, tap

__all__ = ["TransformerPP", "TransformerPPState"]


@dataclass(frozen=True)
class TransformerPPState(State):
    """The key-value cache, which grows with the text.

    Attributes:
        cache: turned keys, and values, of every layer.
        position: (B,) tokens of the current document so far.
    """

    kind: ClassVar[str] = "transformerpp"

    cache: AttentionCache
    position: Tensor

    @property
    def window(self) -> int:
        """Tokens that attention reads, 0 for all."""
        return self.cache.window


class Layer(nn.Module):
    """x ← x + drop(Attention(norm(x))); x ← x + drop(SwiGLU(norm(x)))."""

    def __init__(self, config: TransformerPPConfig) -> None:
        super().__init__()
        c = config
        assert c.n_kv_heads is not None and c.d_ffn is not None  # filled in by the configuration
        # each layer adds to the stream twice: so deep a sum starts no wider than a shallow one
        out_std = 0.02 / (2 * c.n_layers) ** 0.5
        self.norm = RMSNorm(c.d_model, c.norm_eps)
        self.attention = GroupedAttention(c.d_model, c.n_heads, c.n_kv_heads, out_std)
        self.ffn_norm = RMSNorm(c.d_model, c.norm_eps)
        self.ffn = SwiGLU(c.d_model, c.d_ffn, out_std)
        self.dropout = c.dropout

    def forward(
        self, x_BTD: Tensor, past: Growing, mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Growing]:
        n_BTD = self.norm(x_BTD).to(x_BTD.dtype)
        read_BTD, past = self.attention(n_BTD, past, mask, angles)
        read_BTD = tap(self, "read", read_BTD)
        x_BTD = x_BTD + dropout(read_BTD, self.dropout, self.training)
        y_BTD = tap(self, "ffn", self.ffn(self.ffn_norm(x_BTD).to(x_BTD.dtype)))
        x_BTD = x_BTD + dropout(y_BTD, self.dropout, self.training)
        return tap(self, "residual", x_BTD), past

    def describe_taps(self) -> dict[str, Tap]:
        return STREAM


@register("transformerpp", TransformerPPConfig)
class TransformerPP(StackModel):
    """Matrices start normal with std 0.02, those that add to the stream with 0.02 / √(2 layers)."""

    state_class = TransformerPPState
    own_ops = False  # attention is torch's own
    scaling = SCALING
    config: TransformerPPConfig

    def __init__(self, config: TransformerPPConfig) -> None:
        super().__init__(config, lambda: Layer(config))

    @property
    def context_limit(self) -> ContextLimit:
        return "window"

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, TransformerPPState)
        c, length = self.config, input_ids.shape[1]
        x_BTD = self.embed(input_ids)
        place_BT, position_B = place_in_document(state.position, length, hold_BT, reset_BT)
        angles = rotary_angles(place_BT, c.head_width, c.rope_base, self.state_dtype)
        extended, mask = state.cache.extend(length, hold_BT, reset_BT)
        layers = []
        for layer, past in zip(self.layers, state.cache.keys_values, strict=True):
            x_BTD, past = layer(x_BTD, past, mask, angles)
            layers.append(past)
        cache = extended.with_layers(layers, forget=reset_BT is not None)
        return self.features(x_BTD), TransformerPPState(cache, position_B)

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        return {
            "projections": flops.products(length, self.layers),
            "attention": c.n_layers * flops.attention(length, c.d_model),
        }

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TransformerPPState:
        c, device, dtype = self.config, device or self.device, dtype or self.state_dtype
        assert c.n_kv_heads is not None
        cache = AttentionCache.empty(
            batch, c.n_layers, c.n_kv_heads, c.head_width, device, dtype, self.window
        )
        position_B = torch.zeros(batch, device=device, dtype=torch.long)
        return TransformerPPState(cache, position_B)

    def state_bytes(self, batch: int = 1, length: int = 0) -> int:
        c = self.config
        assert c.n_kv_heads is not None
        # keys and values of every layer, and one byte that says whether they are padding
        numbers = 2 * c.n_layers * c.n_kv_heads * c.head_width
        per_token = numbers * self.compute_dtype.itemsize + 1
        return super().state_bytes(batch) + batch * self.cached(length) * per_token
