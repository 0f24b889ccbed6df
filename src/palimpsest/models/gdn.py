"""Gated DeltaNet: layers of a gated delta-rule memory and SwiGLU; a baseline with a constant state.

Source: arXiv 2412.06464 (Yang, Kautz, Hatamizadeh, 2024).

Legend: B batch, T time, D d_model, H heads, K = head_dim, V = expand_v · K, W conv_size,
C = 2·H·K + H·V channels of the convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.gated_delta import GatedDelta
from palimpsest.layers.memory_taps import STREAM
from palimpsest.layers.norm import RMSNorm
from palimpsest.layers.swiglu import SwiGLU
from palimpsest.models import flops
from palimpsest.models.gdn_config import SCALING, GDNConfig
from palimpsest.models.registry import register
from palimpsest.models.stack import StackModel
from palimpsest.state import State
from palimpsest.taps import Tap, tap

__all__ = ["GDN", "GDNState"]


@dataclass(frozen=True)
class GDNState(State):
    """What is left of the text, as large after a thousand tokens as after one.

    Attributes:
        memories: for each layer (B,H,K,V).
        windows: for each layer (B,W-1,C), what its convolution saw last; none without one.
    """

    kind: ClassVar[str] = "gdn"

    memories: tuple[Tensor, ...]
    windows: tuple[Tensor, ...]


class Layer(nn.Module):
    """x ← x + drop(GatedDelta(norm(x))); x ← x + drop(SwiGLU(norm(x)))."""

    def __init__(self, c: GDNConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(c.d_model, c.norm_eps)
        self.delta = GatedDelta(
            c.d_model, c.n_heads, c.head_dim, c.value_width, c.conv_size, c.norm_eps
        )
        self.ffn_norm = RMSNorm(c.d_model, c.norm_eps)
        self.ffn = SwiGLU(c.d_model, c.d_ffn)
        self.dropout = c.dropout

    def forward(
        self,
        x_BTD: Tensor,
        memory_BHKV: Tensor,
        window_BWC: Tensor | None,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        n_BTD = self.norm(x_BTD).to(x_BTD.dtype)
        read_BTD, memory_BHKV, window_BWC = self.delta(
            n_BTD, memory_BHKV, window_BWC, hold_BT, reset_BT
        )
        read_BTD = tap(self, "read", read_BTD)
        x_BTD = x_BTD + dropout(read_BTD, self.dropout, self.training)
        y_BTD = tap(self, "ffn", self.ffn(self.ffn_norm(x_BTD).to(x_BTD.dtype)))
        x_BTD = x_BTD + dropout(y_BTD, self.dropout, self.training)
        return tap(self, "residual", x_BTD), memory_BHKV, window_BWC

    def describe_taps(self) -> dict[str, Tap]:
        return STREAM


@register("gdn", GDNConfig)
class GDN(StackModel):
    """Matrices start normal with std 0.02; for the rest see the layer."""

    state_class = GDNState
    scaling = SCALING
    config: GDNConfig

    def __init__(self, config: GDNConfig) -> None:
        super().__init__(config, lambda: Layer(config))

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, GDNState)
        x_BTD = self.embed(input_ids)
        memories, windows = [], []
        for i, layer in enumerate(self.layers):
            window_BWC = state.windows[i] if state.windows else None
            x_BTD, memory_BHKV, window_BWC = layer(
                x_BTD, state.memories[i], window_BWC, hold_BT, reset_BT
            )
            memories.append(memory_BHKV)
            if window_BWC is not None:
                windows.append(window_BWC)
        return self.features(x_BTD), GDNState(tuple(memories), tuple(windows))

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        entries = c.n_layers * c.n_heads * c.head_dim * c.value_width
        # decay and write, and two reads: what the key recalls, what the query asks for
        memory = flops.memory_write(length, entries) + 2 * flops.memory_read(length, entries)
        return {"projections": flops.products(length, self.layers), "memory": memory}

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GDNState:
        c = self.config
        memory = torch.zeros(
            batch,
            c.n_heads,
            c.head_dim,
            c.value_width,
            device=device or self.device,
            dtype=dtype or self.state_dtype,
        )
        channels = c.n_heads * (2 * c.head_dim + c.value_width)
        window = memory.new_zeros(batch, max(c.conv_size - 1, 0), channels)
        return GDNState(
            tuple(memory.clone() for _ in range(c.n_layers)),
            tuple(window.clone() for _ in range(c.n_layers if c.conv_size else 0)),
        )
