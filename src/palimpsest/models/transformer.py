"""The paper's Transformer: pre-norm attention and GELU feed-forward, learned positions, tied head.

Source: the baseline of arXiv 2606.05175; attention is that of Vaswani et al., arXiv 1706.03762.

Legend: B batch, T time, D d_model, H heads, K = D / H, N positions so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palimpsest.errors import ConfigError
from palimpsest.layers.attention import AttentionCache, CausalSelfAttention
from palimpsest.layers.dropout import dropout
from palimpsest.layers.feed_forward import FeedForward
from palimpsest.layers.growing import Growing
from palimpsest.layers.memory_taps import STREAM
from palimpsest.models import flops
from palimpsest.models.context import ContextLimit
from palimpsest.models.registry import preset, register
from palimpsest.models.scaling import Scaling, head_width
from palimpsest.models.trunk import TrunkConfig, TrunkModel
from palimpsest.state import State
from palimpsest.taps import Tap, tap

__all__ = ["Transformer", "TransformerConfig", "TransformerState"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TrunkConfig):
    """The Transformer; ``n_heads`` divides ``d_model``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"n_heads={self.n_heads}: must divide d_model={self.d_model}, which each head "
                "takes an equal part of"
            )


@dataclass(frozen=True)
class TransformerState(State):
    """The key-value cache, which grows with the text.

    Attributes:
        cache: keys and values of every layer.
        position: (B,) tokens of the current document so far.
    """

    kind: ClassVar[str] = "transformer"

    cache: AttentionCache
    position: Tensor

    @property
    def window(self) -> int:
        """Tokens that attention reads, 0 for all."""
        return self.cache.window


class TransformerLayer(nn.Module):
    """x ← x + drop(Attention(LN(x))); x ← x + drop(FFN(LN(x)))."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.attention = CausalSelfAttention(config.d_model, config.n_heads, config.dropout)
        self.ffn_norm = nn.LayerNorm(config.d_model)
        self.ffn = FeedForward(config.d_model, config.dropout)
        self.dropout = config.dropout

    def forward(self, x_BTD: Tensor, past: Growing, mask: Tensor | None) -> tuple[Tensor, Growing]:
        read_BTD, past = self.attention(self.norm(x_BTD), past, mask)
        read_BTD = tap(self, "read", read_BTD)
        x_BTD = x_BTD + dropout(read_BTD, self.dropout, self.training)
        y_BTD = tap(self, "ffn", self.ffn(self.ffn_norm(x_BTD)))
        x_BTD = x_BTD + dropout(y_BTD, self.dropout, self.training)
        return tap(self, "residual", x_BTD), past

    def describe_taps(self) -> dict[str, Tap]:
        return STREAM


class TransformerBase(TrunkModel):
    """The stack of attention layers over its cache.

    Without positions, attention reads a sliding window where the model has one.
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.n_layers)])

    @property
    def context_limit(self) -> ContextLimit:
        return "positions" if self.config.positions == "learned" else "window"

    def attend(
        self,
        x_BTD: Tensor,
        cache: AttentionCache,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, AttentionCache]:
        """All layers; earlier documents and padding are not attended to."""
        extended, mask = cache.extend(x_BTD.shape[1], hold_BT, reset_BT)
        layers = []
        for layer, past in zip(self.layers, cache.keys_values, strict=True):
            x_BTD, past = layer(x_BTD, past, mask)
            layers.append(past)
        return x_BTD, extended.with_layers(layers, forget=reset_BT is not None)

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        return {
            "projections": flops.products(length, self.layers),
            "attention": c.n_layers * flops.attention(length, c.d_model),
        }

    def empty_cache(
        self, batch: int, device: torch.device | str, dtype: torch.dtype
    ) -> AttentionCache:
        c = self.config
        # keys of learned positions cannot move, so such a text ends where its window is full
        window = self.window if self.context_limit == "window" else 0
        return AttentionCache.empty(
            batch, c.n_layers, c.n_heads, c.d_model // c.n_heads, device, dtype, window
        )

    def state_bytes(self, batch: int = 1, length: int = 0) -> int:
        # keys and values of every layer, and one byte that says whether they are padding
        numbers = 2 * self.config.n_layers * self.config.d_model
        per_token = numbers * self.compute_dtype.itemsize + 1
        return super().state_bytes(batch) + batch * self.cached(length) * per_token


def heads_of(width: int) -> int:
    """The number of heads, which divides the width, with which they are nearest to as usual."""
    usual = head_width(width)
    near = (n for n in range(1, 2 * width // usual + 2) if width % n == 0)
    return min(near, key=lambda n: abs(width / n - usual))


# those that divide into heads of about the usual width
TRANSFORMER_WIDTHS = tuple(
    width
    for width in (*range(16, 256, 2), *range(256, 4097, 4))
    if 0.6 <= width / heads_of(width) / head_width(width) <= 1.6
)


def transformer_sizes(width: int, layers: int) -> dict[str, Any]:
    """Positions for 2,048 tokens.

    The feed-forward network is four times as wide as the stream, so that only the stream's width
    tells sizes apart; it moves in small steps.
    """
    return {
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads_of(width),
        "max_seq_len": 2048,
    }


def transformer_layers(width: int) -> int:
    """3 at 64, as in the paper."""
    return max(1, round(3 * math.sqrt(width / 64)))


@register("transformer", TransformerConfig)
class Transformer(TransformerBase):
    """Pre-norm Transformer with a key-value cache as its state."""

    state_class = TransformerState
    own_ops = False  # attention is torch's own
    scaling = Scaling(
        widths=TRANSFORMER_WIDTHS, fields=transformer_sizes, layers=transformer_layers
    )

    def published_flops(self, length: int) -> dict[str, int]:
        """Arithmetic of arXiv 2606.05175, which here is the full count."""
        return self.flops(length)

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, TransformerState)
        x_BTD, position_B = self.embed(input_ids, state.position, hold_BT, reset_BT)
        x_BTD, cache = self.attend(x_BTD, state.cache, hold_BT, reset_BT)
        return self.final_norm(x_BTD), TransformerState(cache, position_B)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TransformerState:
        device, dtype = self.where(device, dtype)
        position_B = torch.zeros(batch, device=device, dtype=torch.long)
        return TransformerState(self.empty_cache(batch, device, dtype), position_B)


preset(
    "transformer-175k",
    "transformer",
    "the Triple-Latent paper's Transformer on bytes, 174,848 parameters",
    vocab_size=259,
    d_model=64,
    n_layers=3,
    n_heads=4,
)
