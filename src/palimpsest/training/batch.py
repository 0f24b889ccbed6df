"""What the loop asks of data: a batch per step, and a validation.

Shapes: B rows, T tokens of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from palimpsest.models import LanguageModel
from palimpsest.text import Tokenizer

__all__ = ["Autocast", "Source", "TrainBatch", "TrainingData", "Validation"]

Autocast = Callable[[], AbstractContextManager[Any]]


class TrainBatch(NamedTuple):
    """inputs and targets (B,T) int64, aligned with the logits; reset (B,T) bool or None."""

    inputs: Tensor
    targets: Tensor
    reset: Tensor | None

    @property
    def n_targets(self) -> int:
        """How many targets count."""
        return int((self.targets != -100).sum())

    def pieces(self, count: int) -> Iterator[TrainBatch]:
        """Cut the rows into ``count`` equal parts."""
        rows = len(self.inputs) // count
        for start in range(0, len(self.inputs), rows):
            part = slice(start, start + rows)
            yield self._cut(part, slice(None))

    def segments(self, length: int) -> Iterator[TrainBatch]:
        """Cut the time into stretches of ``length`` tokens; 0 gives one, the last may be short."""
        total = self.inputs.shape[1]
        length = length or total
        for start in range(0, total, length):
            yield self._cut(slice(None), slice(start, start + length))

    def to(self, device: torch.device) -> TrainBatch:
        """Move to a device."""
        reset = None if self.reset is None else self.reset.to(device, non_blocking=True)
        return TrainBatch(
            self.inputs.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
            reset,
        )

    def _cut(self, rows: slice, time: slice) -> TrainBatch:
        reset = None if self.reset is None else self.reset[rows, time]
        return TrainBatch(self.inputs[rows, time], self.targets[rows, time], reset)


class Source(Protocol):
    """The batches of a run, in an order that the recipe and the seed decide alone."""

    @property
    def carries_state(self) -> bool:
        """Whether a row goes on where it stopped at the step before."""

    def batch_at(self, step: int) -> TrainBatch:
        """The batch of a step, counted from 0."""

    def state_dict(self) -> dict[str, Any]:
        """What makes going on quick; tensors and plain values. May be empty."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


class Validation(Protocol):
    """A fixed measurement of a model."""

    def measure(self, model: LanguageModel, autocast: Autocast) -> dict[str, Any]:
        """Measure; the model is in evaluation mode and no gradients are kept.

        Returns:
            ``loss`` in nats per target, and what else this data has, as JSON values.
        """


@dataclass(frozen=True)
class TrainingData:
    """Everything a run reads.

    Attributes:
        source: the batches.
        validation: None where nothing is held out.
        vocab_size: ids that the data has.
        tokenizer: None for a task.
        description: what it is, with hashes and sizes, for ``run.json``.
        label: a few words for the title of a plot.
    """

    source: Source
    validation: Validation | None
    vocab_size: int
    tokenizer: Tokenizer | None
    description: dict[str, Any]
    label: str
