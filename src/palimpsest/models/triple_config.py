"""Configurations of the Triple-Latent family.

Source: arXiv 2606.05175.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from palimpsest.errors import ConfigError
from palimpsest.layers.local_conv import ConvPadding
from palimpsest.layers.retrieval import Query, RetrievalStart
from palimpsest.layers.triple_layer import Fusion
from palimpsest.models.config import one_of, positive
from palimpsest.models.trunk import TrunkConfig

__all__ = [
    "GatedHybridConfig",
    "TripleHybridConfig",
    "TripleLatentConfig",
    "TripleSlotConfig",
    "TripleSlotHybridConfig",
]


@dataclass(frozen=True, kw_only=True)
class TripleLatentConfig(TrunkConfig):
    """Triple-latent.

    Attributes:
        state_dim: width of a head's running state; its pair memory has the square of it.
    """

    state_dim: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "state_dim")


@dataclass(frozen=True, kw_only=True)
class TripleSlotConfig(TripleLatentConfig):
    """Triple-slot.

    Attributes:
        n_slots: slots of a head, which stand for its pair memory.
    """

    n_slots: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "n_slots")


@dataclass(frozen=True, kw_only=True)
class TripleHybridConfig(TripleLatentConfig):
    """Triple-hybrid.

    Attributes:
        conv_padding: "causal"; or "same", the published convolution, which sees two tokens ahead:
            such a model is no language model and cannot generate.
    """

    conv_padding: ConvPadding = "causal"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "conv_padding", "causal", "same")


@dataclass(frozen=True, kw_only=True)
class TripleSlotHybridConfig(TripleHybridConfig, TripleSlotConfig):
    """Triple-hybrid with slots."""


@dataclass(frozen=True, kw_only=True)
class GatedHybridConfig(TripleHybridConfig):
    """Triple-hybrid with exact retrieval.

    Attributes:
        n_slots: slots of a head; 0 keeps the pair memory in full, as published.
        assoc_dim: width of the retrieval's queries and keys.
        top_k: pairs read at each position, at most.
        query: what asks: the token before ("previous"), the layer's normed input ("parallel"), or
            the stream after the layer's pair read ("serial").
        layers: whether the "last" layer retrieves or "all" do. Also with "last" every layer has
            the parameters, as published; those of the others stay as they start.
        fusion: what was read joins the features before the head ("logits", averaged over the
            layers), the stream ("sum"), or both pass through one more matrix ("concat").
        read_gate: whether a gate scales what is read.
        write_gate: whether a gate scales each pair's value and, through its logarithm, its score.
        init: "stable" starts queries and keys as one orthogonal matrix, values as the identity
            and the temperature at 8; "published" starts them at random, where recall is found
            by one seed in three.
        learned_temperature: whether the temperature of the cosine is learned, at a rate of its own;
            None: where the start is stable. It is the one parameter that the published model lacks.
        memory_cap: most pairs kept in the state and read from, the oldest dropped; 0: all.
    """

    n_slots: int = 0
    assoc_dim: int = 64
    top_k: int = 8
    query: Query = "previous"
    layers: Literal["last", "all"] = "last"
    fusion: Fusion = "logits"
    read_gate: bool = True
    write_gate: bool = False
    init: RetrievalStart = "stable"
    learned_temperature: bool | None = None
    memory_cap: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "assoc_dim", "top_k")
        for name in ("n_slots", "memory_cap"):
            if getattr(self, name) != 0:
                positive(self, name)
        one_of(self, "query", "previous", "parallel", "serial")
        one_of(self, "layers", "last", "all")
        one_of(self, "fusion", "logits", "sum", "concat")
        one_of(self, "init", "stable", "published")
        for name in ("read_gate", "write_gate"):
            one_of(self, name, True, False)
        one_of(self, "learned_temperature", None, True, False)
        if self.learned_temperature is None:
            object.__setattr__(self, "learned_temperature", self.init == "stable")
        if 0 < self.memory_cap < self.top_k:
            raise ConfigError(
                f"memory_cap={self.memory_cap}: must be at least top_k={self.top_k}, or 0 for no "
                "cap"
            )
