"""What the baselines share: a stack of residual layers between an embedding and a head.

Sources: those of the architectures, :mod:`palimpsest.models.transformerpp`,
:mod:`palimpsest.models.gdn` and :mod:`palimpsest.models.mamba2`.

Legend: B batch, T time, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.init import linear, normal_, uninitialised
from palimpsest.layers.memory_taps import EMBEDDING
from palimpsest.layers.norm import RMSNorm
from palimpsest.models.config import ModelConfig, between, one_of, positive, probability
from palimpsest.models.language_model import LanguageModel
from palimpsest.taps import Tap, tap

__all__ = ["StackConfig", "StackModel"]


@dataclass(frozen=True, kw_only=True)
class StackConfig(ModelConfig):
    """Sizes that every stack has.

    Attributes:
        d_model: width of the stream.
        n_layers: layers.
        norm_eps: what the norms add to the mean square.
        dropout: probability of dropping an entry of the embeddings, and of what each part of a
            layer adds to the stream, while training.
        tie_embeddings: whether the head is the embedding's own matrix.
    """

    d_model: int
    n_layers: int
    norm_eps: float = 1e-6
    dropout: float = 0.0
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "d_model", "n_layers")
        between(self, "norm_eps", 0.0, 1.0)
        probability(self, "dropout")
        one_of(self, "tie_embeddings", False, True)


class StackModel(LanguageModel):
    """Embedding, layers, RMSNorm and head; what runs through the layers is the architecture's own.

    Weights are drawn in that order.
    """

    config: StackConfig

    def __init__(self, config: StackConfig, layer: Callable[[], nn.Module]) -> None:
        super().__init__(config)
        c = config
        self.embedding = uninitialised(nn.Embedding, c.vocab_size, c.d_model)
        normal_(self.embedding.weight, 0.02)
        self.layers = nn.ModuleList(layer() for _ in range(c.n_layers))
        self.final_norm = RMSNorm(c.d_model, c.norm_eps)
        self.head = None if c.tie_embeddings else linear(c.d_model, c.vocab_size)

    def embed(self, input_ids: Tensor) -> Tensor:
        """(B,T,D) the stream at the bottom."""
        x_BTD = tap(self, "embedding", self.embedding(input_ids))
        return dropout(x_BTD, self.config.dropout, self.training)

    def features(self, x_BTD: Tensor) -> Tensor:
        """(B,T,D) the stream at the top, as the head reads it."""
        features_BTD: Tensor = self.final_norm(x_BTD).to(x_BTD.dtype)
        return features_BTD

    def describe_taps(self) -> dict[str, Tap]:
        return {"embedding": EMBEDDING}

    def head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight
