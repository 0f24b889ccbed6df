"""Triple-Latent models: a running state and a compressed memory of pairs in every layer.

Source: Xiao, arXiv 2606.05175. ``triple-latent`` keeps the pair memory in full, ``triple-slot`` in
slots; the hybrids put a local convolution before the layers. The published convolution sees two
tokens ahead: here it is causal, and the published form, ``conv_padding="same"``, only serves to
reproduce the paper's rows.

Legend: B batch, T time, D d_model, H heads, S state_dim, R slots, W kernel of the convolution.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palimpsest.errors import InputError
from palimpsest.layers.local_conv import KERNEL, LocalConv
from palimpsest.layers.triple_layer import TripleLayer
from palimpsest.models import flops
from palimpsest.models.registry import preset, register
from palimpsest.models.scaling import Scaling, head_width
from palimpsest.models.triple_config import (
    TripleHybridConfig,
    TripleLatentConfig,
    TripleSlotConfig,
    TripleSlotHybridConfig,
)
from palimpsest.models.trunk import TrunkModel
from palimpsest.state import State

__all__ = ["TripleModel", "TripleState"]


@dataclass(frozen=True)
class TripleState(State):
    """Constant in the length of the text.

    Attributes:
        running: for each layer (B,H,S), the running state s.
        memory: for each layer the pair memory, (B,H,S,S) in full or (B,2,H,S,R) in slots.
        window: hybrids only: (B,W-1,D), the last inputs of the convolution.
        position: (B,) tokens of the current document so far.
    """

    kind: ClassVar[str] = "triple-latent"

    running: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    window: tuple[Tensor, ...]
    position: Tensor


def sizes(width: int, layers: int) -> dict[str, Any]:
    """Heads whose features are together half as wide as the stream, as in the paper's best size."""
    heads = max(1, round(width / head_width(width)))
    return {
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads,
        "state_dim": max(2, round(width / (2 * heads))),
        "positions": "none",
    }


class TripleModel(TrunkModel):
    """The whole family; what a configuration does not have is left out."""

    scaling = Scaling(
        widths=range(16, 4097, 4),
        fields=sizes,
        layers=lambda width: max(1, round(3 * math.sqrt(width / 64))),  # 3 at 64, as in the paper
        fine="state_dim",
        fine_step=1,
    )

    state_class: ClassVar[type[State]] = TripleState
    config: TripleLatentConfig

    def __init__(self, config: TripleLatentConfig) -> None:
        super().__init__(config)
        self.local_conv: LocalConv | None = None
        if isinstance(config, TripleHybridConfig):
            self.local_conv = LocalConv(config.d_model, config.conv_padding, config.dropout)
        if not self.causal:
            warnings.warn(
                f"{self.registry_name} with conv_padding='same' is not causal: its convolution "
                "sees two tokens ahead, so its losses are no language-model results",
                stacklevel=2,
            )
        self.layers = nn.ModuleList(self.make_layer(i) for i in range(config.n_layers))

    def make_layer(self, index: int) -> TripleLayer:
        c = self.config
        return TripleLayer(c.d_model, c.n_heads, c.state_dim, self.n_slots, c.dropout)

    @property
    def n_slots(self) -> int:
        """Slots of a head, 0 where the pair memory is kept in full."""
        return getattr(self.config, "n_slots", 0)

    @property
    def causal(self) -> bool:
        return getattr(self.config, "conv_padding", "causal") == "causal"

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, TripleState)
        x_BTD, window, position_B = self.bottom(input_ids, state, hold_BT, reset_BT)
        running, memory = [], []
        for layer, run, mem in zip(self.layers, state.running, state.memory, strict=True):
            x_BTD, run, mem = layer(x_BTD, run, mem, hold_BT, reset_BT)
            running.append(run)
            memory.append(mem)
        state = TripleState(tuple(running), tuple(memory), window, position_B)
        return self.final_norm(x_BTD), state

    def bottom(
        self,
        input_ids: Tensor,
        state: TripleState,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """The stream below the layers, and the convolution's and the positions' states."""
        if not self.causal and bool(state.position.any()):
            raise InputError(
                "state that has read tokens: conv_padding='same' needs the whole text in one "
                "call; use state=None, or a model with conv_padding='causal'"
            )
        x_BTD, position_B = self.embed(input_ids, state.position, hold_BT, reset_BT)
        if self.local_conv is None:
            return x_BTD, (), position_B
        x_BTD, window_BWD = self.local_conv(x_BTD, state.window[0], hold_BT, reset_BT)
        return x_BTD, (window_BWD,), position_B

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        counts = {"projections": flops.products(length, *self.multiplied())}
        if self.local_conv is not None:
            counts["convolution"] = flops.products(length, self.local_conv)
        layer = flops.pair_memory(length, c.n_heads, c.state_dim, self.n_slots)
        return {**counts, "recurrence": c.n_layers * layer}

    def multiplied(self) -> Iterator[nn.Module]:
        """The parts of the layers whose matrices meet every position."""
        for layer in self.layers:
            assert isinstance(layer, TripleLayer)
            yield from (layer.mixer, layer.ffn)

    def published_flops(self, length: int) -> dict[str, int]:
        """The convention of arXiv 2606.05175, found from its figures: dominant terms only.

        Of the recurrence, 4 operations an entry of the pair memory for the write, 2 for the read,
        and 1 an entry of what is read; none for the running state.
        """
        c = self.config
        if self.n_slots:
            return super().published_flops(length)
        features = c.n_heads * c.state_dim
        recurrence = length * c.n_layers * features * (6 * c.state_dim + 1)
        # spelled out: a subclass adds parts to flops() that the paper counts otherwise
        counts = TripleModel.body_flops(self, length)
        head = 2 * length * self.head_weight().numel()
        return {**counts, "recurrence": recurrence, "head": head}

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TripleState:
        c, (device, dtype) = self.config, self.where(device, dtype)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, device=device, dtype=dtype)

        heads, width, slots = c.n_heads, c.state_dim, self.n_slots
        shape = (2, heads, width, slots) if slots else (heads, width, width)
        return TripleState(
            running=tuple(zeros(heads, width) for _ in range(c.n_layers)),
            memory=tuple(zeros(*shape) for _ in range(c.n_layers)),
            window=() if self.local_conv is None else (zeros(KERNEL - 1, c.d_model),),
            position=torch.zeros(batch, device=device, dtype=torch.long),
        )


@register("triple-latent", TripleLatentConfig)
class TripleLatent(TripleModel):
    """The pair memory in full."""


@register("triple-slot", TripleSlotConfig)
class TripleSlot(TripleModel):
    """The pair memory in slots."""


@register("triple-hybrid", TripleHybridConfig)
class TripleHybrid(TripleModel):
    """A local convolution, then the pair memory in full."""


@register("triple-slot-hybrid", TripleSlotHybridConfig)
class TripleSlotHybrid(TripleModel):
    """A local convolution, then the pair memory in slots."""


BYTES: dict[str, Any] = {"vocab_size": 259, "d_model": 64, "n_layers": 3, "n_heads": 4}
preset(
    "triple-latent-188k",
    "triple-latent",
    "the paper's Triple-Latent on bytes, 187,928 parameters",
    **BYTES,
    state_dim=16,
)
preset(
    "triple-slot-188k",
    "triple-slot",
    "the paper's Triple-Slot on bytes, 188,024 parameters",
    **BYTES,
    state_dim=16,
)
preset(
    "triple-hybrid-178k",
    "triple-hybrid",
    "the paper's Triple-Hybrid on bytes at its best size, 177,752 parameters, here causal",
    **BYTES,
    state_dim=8,
)
