"""What the Triple-Latent family and its Transformer share: embeddings, tied head, positions.

Source: arXiv 2606.05175.

Legend: B batch, T time, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.memory_taps import EMBEDDING
from palimpsest.layers.token_embedding import TokenEmbedding
from palimpsest.models.config import ModelConfig, one_of, positive, probability
from palimpsest.models.context import ContextLimit
from palimpsest.models.language_model import LanguageModel
from palimpsest.taps import Tap, tap

__all__ = ["TrunkConfig", "TrunkModel"]


@dataclass(frozen=True, kw_only=True)
class TrunkConfig(ModelConfig):
    """Sizes that the whole family has.

    Attributes:
        d_model: width of the stream.
        n_layers: layers.
        n_heads: heads of each layer.
        max_seq_len: longest text in tokens with learned positions; without positions not used.
        positions: "learned", or "none": the recurrence already orders tokens, and no text is too
            long.
        dropout: probability of dropping an entry while training.
    """

    d_model: int
    n_layers: int
    n_heads: int
    max_seq_len: int = 128
    positions: Literal["learned", "none"] = "learned"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "d_model", "n_layers", "n_heads", "max_seq_len")
        one_of(self, "positions", "learned", "none")
        probability(self, "dropout")


class TrunkModel(LanguageModel):
    """Embeddings with positions at the bottom, the final norm and the tied head at the top."""

    config: TrunkConfig

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__(config)
        bound = config.max_seq_len if config.positions == "learned" else None
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, bound)
        self.final_norm = nn.LayerNorm(config.d_model)

    def embed(
        self,
        input_ids: Tensor,
        position_B: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The stream at the bottom, and the document's length after the last position."""
        x_BTD, position_B = self.embedding(input_ids, position_B, hold_BT, reset_BT)
        x_BTD = tap(self, "embedding", x_BTD)
        return dropout(x_BTD, self.config.dropout, self.training), position_B

    def describe_taps(self) -> dict[str, Tap]:
        return {"embedding": EMBEDDING}

    def head_weight(self) -> Tensor:
        return self.embedding.token.weight

    @property
    def max_length(self) -> int | None:
        bound = self.position_bound
        return bound if bound is None or not self.window else min(bound, self.window)

    @property
    def position_bound(self) -> int | None:
        return self.config.max_seq_len if self.config.positions == "learned" else None

    @property
    def context_limit(self) -> ContextLimit:
        return "positions" if self.config.positions == "learned" else "none"

    def where(
        self, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> tuple[torch.device | str, torch.dtype]:
        """Device and dtype of a new state."""
        return device or self.device, dtype or self.state_dtype
