"""Multi-query associative recall (MQAR): many pairs, then every key once more, in any order.

    key value  key value …  (pairs)   then, in the rest:  … key₃ … key₁ … key₂ …

Each later key is a question, and the label at its position is its value. How far a question lies
from the pairs follows a power law: most are close, some far.

Ids: 0 blank, 1 … V/2 - 1 keys, V/2 … V - 1 values.

Source: Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
arXiv 2312.04927 (the MQAR task).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.tasks.base import IGNORED, RecallScore, check_batch_size, recall_score

__all__ = ["MQARBatch", "MQARTask"]

BLANK = 0


@dataclass(frozen=True, eq=False)
class MQARBatch:
    """Examples of multi-query recall.

    Args:
        inputs: (B, T) int64.
        labels: (B, T) int64: a question's value at its key's position, -100 elsewhere. It is
            the answer at that position, not the next token of the sequence.
    """

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class MQARTask:
    """Multi-query associative recall.

    The first 2·pairs positions are the pairs (distinct keys, distinct values). The rest is cut
    into places of two positions; a question takes the first position of a place. The places are
    drawn without replacement, place i = 1, 2 … with weight i^(power_a - 1).

    Args:
        length: T, even; the published range is 64 … 1024.
        pairs: how many pairs and questions, at most T / 4; the published range is 4 … 256.
        vocab_size: V.
        power_a: the exponent of the gaps; small puts the questions close behind the pairs, 1
            spreads them evenly.
        random_filler: fill the positions after the pairs that hold no question with ids drawn from
            the whole vocabulary, or leave them 0.

    Raises:
        ValueError: an odd length, pairs that fit neither the length nor the vocabulary, a
            ``power_a`` that is not above 0.
    """

    length: int = 64
    pairs: int = 4
    vocab_size: int = 8192
    power_a: float = 0.01
    random_filler: bool = True

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ValueError(f"pairs={self.pairs}: must be at least 1")
        if self.length % 2:
            raise ValueError(f"length={self.length}: must be even")
        if 4 * self.pairs > self.length:
            raise ValueError(
                f"pairs={self.pairs} take 4 positions each and need a length of at least "
                f"{4 * self.pairs}, and length={self.length}"
            )
        if self.pairs > self.vocab_size // 2 - 1:
            raise ValueError(
                f"pairs={self.pairs} need as many distinct keys, and vocab_size={self.vocab_size} "
                f"has {max(self.vocab_size // 2 - 1, 0)}"
            )
        if not self.power_a > 0:
            raise ValueError(f"power_a={self.power_a}: must be above 0")

    @property
    def name(self) -> str:
        """What logs and results call it."""
        return f"mqar-{self.pairs}pairs-{self.length}"

    @property
    def chance(self) -> float:
        """The accuracy of a guess among all values."""
        return 1.0 / (self.vocab_size - self.vocab_size // 2)

    def batch(self, batch_size: int, generator: torch.Generator) -> MQARBatch:
        """Draw examples.

        Draws, in this order: keys, values, places, filler; each for the whole batch at once.

        Args:
            batch_size: B.
            generator: a CPU generator; it is advanced.

        Returns:
            inputs (B, T) and labels (B, T).
        """
        check_batch_size(batch_size)
        half, shown = self.vocab_size // 2, 2 * self.pairs
        keys = 1 + _distinct(torch.ones(half - 1), self.pairs, batch_size, generator)
        values = half + _distinct(
            torch.ones(self.vocab_size - half), self.pairs, batch_size, generator
        )
        places = torch.arange(1, (self.length - shown) // 2 + 1, dtype=torch.float64)
        gaps = _distinct(places ** (self.power_a - 1.0), self.pairs, batch_size, generator)
        inputs = torch.full((batch_size, self.length), BLANK)
        labels = torch.full((batch_size, self.length), IGNORED)
        inputs[:, 0:shown:2] = keys
        inputs[:, 1:shown:2] = values
        asked = shown + 2 * gaps
        inputs.scatter_(1, asked, keys)
        labels.scatter_(1, asked, values)
        if self.random_filler:
            drawn = torch.randint(0, self.vocab_size, inputs.shape, generator=generator)
            inputs = torch.where(inputs == BLANK, drawn, inputs)
        return MQARBatch(inputs, labels)

    def accuracy(self, logits: Tensor, labels: Tensor) -> RecallScore:
        """Score logits (B, T, V) against ``batch.labels``.

        Raises:
            ValueError: the shapes do not fit.
        """
        return recall_score(self.pairs, logits, labels)


def _distinct(weights: Tensor, count: int, rows: int, generator: torch.Generator) -> Tensor:
    """(rows, count) indices, distinct within a row, drawn one after another by weight."""
    return torch.multinomial(
        weights.expand(rows, -1), count, replacement=False, generator=generator
    )
