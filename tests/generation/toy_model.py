"""A second, very different architecture for tests: a decayed sum and a history that grows.

It shows that evaluation and generation know nothing about the models they are given: its state has
an axis that grows with the text, it holds a bounded number of positions, and it can be told not to
be causal. It is not registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from palimpsest.errors import InputError
from palimpsest.models import LanguageModel, ModelConfig
from palimpsest.state import State


@dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    width: int = 12
    length: int | None = None
    causal: bool = True


@dataclass(frozen=True)
class ToyState(State):
    kind: ClassVar[str] = "toy"

    total: Tensor  # (B,E)
    history: Tensor  # (B,L)


class ToyModel(LanguageModel):
    registry_name = "toy"
    state_class = ToyState
    config: ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(config.vocab_size, config.width, generator=generator)
        self.embedding = nn.Embedding.from_pretrained(weight, freeze=False)

    @property
    def causal(self) -> bool:
        return self.config.causal

    @property
    def max_length(self) -> int | None:
        return self.config.length

    def room(self, state: State) -> Tensor | None:
        assert isinstance(state, ToyState)
        if self.config.length is None:
            return None
        return torch.full(
            (state.batch_size,), self.config.length - state.history.shape[1], dtype=torch.long
        )

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, ToyState) and reset_BT is None
        total_BE, features = state.total, []
        for t in range(input_ids.shape[1]):
            new_BE = 0.8 * total_BE + self.embedding(input_ids[:, t])
            if hold_BT is not None:
                new_BE = torch.where(hold_BT[:, t, None], total_BE, new_BE)
            total_BE = new_BE
            features.append(torch.tanh(total_BE))
        history_BL = torch.cat([state.history, input_ids.long()], 1)
        if self.max_length is not None and history_BL.shape[1] > self.max_length:
            raise InputError(f"the state of toy is full at {self.max_length} positions")
        return torch.stack(features, 1), ToyState(total_BE, history_BL)

    def state_features(self, state: State) -> Tensor:
        assert isinstance(state, ToyState)
        return torch.tanh(state.total)

    def head_weight(self) -> Tensor:
        return self.embedding.weight

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> ToyState:
        device, dtype = device or self.device, dtype or self.state_dtype
        return ToyState(
            torch.zeros(batch, self.config.width, device=device, dtype=dtype),
            torch.zeros(batch, 0, device=device, dtype=torch.long),
        )
