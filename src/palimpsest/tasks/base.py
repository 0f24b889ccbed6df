"""What every synthetic task has in common.

Shapes: B examples, T positions, V vocabulary. ``labels`` (B, T) hold the right answer at the
positions that ask for one and ``IGNORED`` elsewhere; the logits at a position are for its label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["IGNORED", "RecallScore", "Task", "TaskBatch", "recall_score"]

IGNORED = -100  # the label that torch's cross-entropy leaves out by default


class TaskBatch(Protocol):
    """A batch of examples."""

    @property
    def inputs(self) -> Tensor:
        """(B, T) int64 token ids."""

    @property
    def labels(self) -> Tensor:
        """(B, T) int64: the answers, and ``IGNORED`` where nothing is asked."""


@dataclass(frozen=True)
class RecallScore:
    """How many of the asked answers were right; scores of the same number of pairs add up.

    Args:
        pairs: how many key-value pairs an example shows.
        correct: right answers.
        asked: answers asked for.
    """

    pairs: int
    correct: int
    asked: int

    @property
    def accuracy(self) -> float:
        """The share of right answers, 0 … 1."""
        return self.correct / self.asked

    def __add__(self, other: RecallScore) -> RecallScore:
        if other.pairs != self.pairs:
            raise ValueError(f"scores of {self.pairs} and of {other.pairs} pairs do not add up")
        return RecallScore(self.pairs, self.correct + other.correct, self.asked + other.asked)


class Task(Protocol):
    """A synthetic task: batches of any size from any generator, and their score."""

    @property
    def name(self) -> str:
        """What logs and results call it."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def chance(self) -> float:
        """The accuracy of a guess among all answers."""

    def batch(self, batch_size: int, generator: torch.Generator) -> TaskBatch:
        """Draw B examples."""

    def accuracy(self, logits: Tensor, labels: Tensor) -> RecallScore:
        """Score logits (B, T, V) against labels (B, T)."""


def recall_score(pairs: int, logits: Tensor, labels: Tensor) -> RecallScore:
    """Count the positions whose largest logit is the label.

    Args:
        pairs: the number of pairs of these examples.
        logits: (B, T, V).
        labels: (B, T), ``IGNORED`` where nothing is asked.

    Raises:
        ValueError: the shapes do not fit, or nothing is asked.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}: "
            "must be (B, T, V) and (B, T)"
        )
    asked = labels != IGNORED
    count = int(asked.sum())
    if count == 0:
        raise ValueError("labels ask for no answer: every one is the ignored label")
    return RecallScore(pairs, int((logits.argmax(-1) == labels)[asked].sum()), count)


def check_batch_size(batch_size: int) -> None:
    """Raise ValueError for a batch without examples."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
