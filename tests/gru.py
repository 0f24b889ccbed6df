"""An architecture written after CONTRIBUTING, with nothing that is optional: no taps.

``registered()`` puts it into the registry for one test, to find what the library demands of a new
architecture beyond the steps that CONTRIBUTING lists.

Legend: B batch, T time, W width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from palimpsest.models import LanguageModel, ModelConfig, registry
from palimpsest.models.config import positive
from palimpsest.models.scaling import Scaling
from palimpsest.state import State

NAME = "gru"


@dataclass(frozen=True, kw_only=True)
class GRUConfig(ModelConfig):
    """One gated recurrent unit of a width."""

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "width")


@dataclass(frozen=True)
class GRUState(State):
    """(B,W) the hidden vector."""

    kind: ClassVar[str] = "gru"

    hidden: Tensor


class GRU(LanguageModel):
    """Embedding, one GRU cell over time, tied head."""

    state_class = GRUState
    own_ops = False
    scaling = Scaling(
        widths=range(8, 4096), fields=lambda width, _: {"width": width}, layers=lambda _: 1
    )
    config: GRUConfig

    def __init__(self, config: GRUConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.cell = nn.GRUCell(config.width, config.width)

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, GRUState)
        x_BTW, h_BW, features = self.embedding(input_ids), state.hidden.to(self.dtype), []
        for t in range(input_ids.shape[1]):
            if reset_BT is not None:
                h_BW = h_BW.masked_fill(reset_BT[:, t, None], 0.0)
            new_BW = self.cell(x_BTW[:, t], h_BW)
            h_BW = new_BW if hold_BT is None else torch.where(hold_BT[:, t, None], h_BW, new_BW)
            features.append(h_BW)
        return torch.stack(features, 1), GRUState(h_BW.to(self.state_dtype))

    def head_weight(self) -> Tensor:
        return self.embedding.weight

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GRUState:
        shape = (batch, self.config.width)
        device, dtype = device or self.device, dtype or self.state_dtype
        return GRUState(torch.zeros(shape, device=device, dtype=dtype))

    def body_flops(self, length: int) -> dict[str, int]:
        weights = self.cell.weight_ih.numel() + self.cell.weight_hh.numel()
        return {"projections": 2 * length * weights}


@contextmanager
def registered(model_class: type[LanguageModel] = GRU) -> Iterator[None]:
    """Register the architecture while the block runs."""
    registry.register(NAME, GRUConfig)(model_class)
    try:
        yield
    finally:
        del registry._models[NAME]
