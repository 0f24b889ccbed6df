"""Mamba-2: layers of state-space duality (SSD), whose state is constant in the text's length.

Source: Dao & Gu, arXiv 2405.21060. No feed-forward network, no positions, tied head.

Legend: B batch, T time, D d_model, H heads, P head_dim, N state_dim, W kernel of the
convolutions, C their channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.memory_taps import STREAM
from palimpsest.layers.norm import RMSNorm
from palimpsest.layers.ssd import SSD
from palimpsest.models import flops
from palimpsest.models.mamba2_config import SCALING, Mamba2Config
from palimpsest.models.registry import register
from palimpsest.models.stack import StackModel
from palimpsest.state import State
from palimpsest.taps import Tap, tap

__all__ = ["Mamba2", "Mamba2State"]


@dataclass(frozen=True)
class Mamba2State(State):
    """Constant in the length of the text.

    Attributes:
        window: for each layer (B,W-1,C), the last inputs of the convolution.
        memory: for each layer (B,H,N,P), the heads' matrices.
    """

    kind: ClassVar[str] = "mamba2"

    window: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]


class Mamba2Layer(nn.Module):
    """x ← x + drop(SSD(norm(x)))."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        c = config
        self.norm = RMSNorm(c.d_model, c.norm_eps)
        self.mixer = SSD(
            c.d_model,
            c.d_inner,
            c.head_dim,
            c.state_dim,
            c.n_groups,
            c.conv_size,
            c.norm_eps,
            out_scale=c.n_layers**-0.5,
        )
        self.dropout = c.dropout

    def forward(
        self,
        x_BTD: Tensor,
        window_BWC: Tensor,
        memory_BHNP: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_BTD = self.norm(x_BTD).to(x_BTD.dtype)
        y_BTD, window_BWC, memory_BHNP = self.mixer(
            n_BTD, window_BWC, memory_BHNP, hold_BT, reset_BT
        )
        y_BTD = tap(self, "read", y_BTD)
        x_BTD = x_BTD + dropout(y_BTD, self.dropout, self.training)
        return tap(self, "residual", x_BTD), window_BWC, memory_BHNP

    def describe_taps(self) -> dict[str, Tap]:
        return {name: STREAM[name] for name in ("read", "residual")}


@register("mamba2", Mamba2Config)
class Mamba2(StackModel):
    """Pre-norm residual stack of SSD layers."""

    state_class = Mamba2State
    scaling = SCALING
    config: Mamba2Config

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config, lambda: Mamba2Layer(config))

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, Mamba2State)
        x_BTD = self.embed(input_ids)
        windows, memories = [], []
        for layer, window, memory in zip(self.layers, state.window, state.memory, strict=True):
            x_BTD, window, memory = layer(x_BTD, window, memory, hold_BT, reset_BT)
            windows.append(window)
            memories.append(memory)
        return self.features(x_BTD), Mamba2State(tuple(windows), tuple(memories))

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        entries = c.n_layers * c.d_inner * c.state_dim
        return {
            "projections": flops.products(length, self.layers),
            "memory": flops.memory_write(length, entries) + flops.memory_read(length, entries),
        }

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Mamba2State:
        c, device, dtype = self.config, device or self.device, dtype or self.state_dtype

        def zeros(*shape: int) -> tuple[Tensor, ...]:
            return tuple(
                torch.zeros(batch, *shape, device=device, dtype=dtype) for _ in range(c.n_layers)
            )

        return Mamba2State(
            window=zeros(c.conv_size - 1, c.conv_channels),
            memory=zeros(c.n_heads, c.state_dim, c.head_dim),
        )
