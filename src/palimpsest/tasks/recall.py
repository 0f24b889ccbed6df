"""Associative recall: a few key-value pairs, filler, and one question at the end.

    BOS  (key value SEP) × pairs  filler …  QUERY key ANSWER  →  value

Ids: PAD 0, BOS 1, SEP 2, QUERY 3, ANSWER 4, then the keys, the values and the filler. With the
published 8 keys, 8 values and 10 fillers these are 5–12, 13–20 and 21–30 of a vocabulary of 64.

Source: Xiao, arXiv 2606.05175 (the associative recall task).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.tasks.base import IGNORED, RecallScore, check_batch_size, recall_score

__all__ = ["ANSWER", "BOS", "PAD", "QUERY", "SEP", "RecallBatch", "RecallTask"]

PAD, BOS, SEP, QUERY, ANSWER = range(5)
FIRST_KEY = 5
PUBLISHED_VOCABULARY = 64


@dataclass(frozen=True, eq=False)
class RecallBatch:
    """Examples of the recall task.

    Args:
        inputs: (B, T) int64, the sequence without its last token.
        targets: (B, T) int64, the sequence without its first token; the answer is at the end.
    """

    inputs: Tensor
    targets: Tensor

    @property
    def labels(self) -> Tensor:
        """(B, T): the answer at the last position, -100 elsewhere."""
        labels = torch.full_like(self.targets, IGNORED)
        labels[:, -1] = self.targets[:, -1]
        return labels


@dataclass(frozen=True, kw_only=True)
class RecallTask:
    """The task, with its published form as the default.

    The vocabulary is 64, or as large as the ids need (5 + keys + values + fillers) where that is
    more. For a curriculum over lengths use ``dataclasses.replace(task, length=…)``.

    Args:
        length: T, the inputs of an example.
        pairs: how many pairs an example shows.
        keys: how many keys there are to choose from.
        values: how many values there are to choose from.
        fillers: how many filler ids there are.
        distractors: how many filler places hold a key that no pair of the example has, and that
            is never asked for (not in the published task).

    Raises:
        ValueError: the pairs do not fit the length, the keys or the values; the distractors do not
            fit the filler, or leave no key.
    """

    length: int = 128
    pairs: int = 4
    keys: int = 8
    values: int = 8
    fillers: int = 10
    distractors: int = 0

    def __post_init__(self) -> None:
        for name in ("pairs", "keys", "values", "fillers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("keys", "values"):
            if self.pairs > getattr(self, name):
                raise ValueError(
                    f"pairs={self.pairs} need as many distinct {name}, "
                    f"and {name}={getattr(self, name)}"
                )
        if self.filler_length < 0:
            raise ValueError(
                f"pairs={self.pairs} need a length of at least {self.length - self.filler_length}, "
                f"and length={self.length}"
            )
        if not 0 <= self.distractors <= self.filler_length:
            raise ValueError(
                f"distractors={self.distractors}: must be from 0 to the {self.filler_length} "
                "filler places"
            )
        if self.distractors and self.pairs == self.keys:
            raise ValueError(
                f"distractors={self.distractors} need a key that is in no pair, "
                f"and pairs={self.pairs} use all keys={self.keys}"
            )

    @property
    def name(self) -> str:
        """What logs and results call it."""
        extra = f"-{self.distractors}distractors" if self.distractors else ""
        return f"recall-{self.pairs}pairs-{self.length}{extra}"

    @property
    def filler_length(self) -> int:
        """The filler tokens of an example: what BOS, the pairs and QUERY key ANSWER leave."""
        return self.length - 4 - 3 * self.pairs

    @property
    def first_value(self) -> int:
        """The id of the first value."""
        return FIRST_KEY + self.keys

    @property
    def first_filler(self) -> int:
        """The id of the first filler."""
        return self.first_value + self.values

    @property
    def vocab_size(self) -> int:
        """V."""
        return max(PUBLISHED_VOCABULARY, self.first_filler + self.fillers)

    @property
    def chance(self) -> float:
        """The accuracy of a guess among all values (1 / pairs among those that were shown)."""
        return 1.0 / self.values

    def batch(self, batch_size: int, generator: torch.Generator) -> RecallBatch:
        """Draw examples, one after another, in the published order of draws.

        Per example: ``randperm(keys)[:pairs]``, ``randperm(values)[:pairs]``, ``randint(0, pairs)``
        for the query, ``randint`` over the filler ids; then, only where there are distractors,
        ``randperm`` of the filler places and ``randint`` over the keys that no pair has.

        Args:
            batch_size: B.
            generator: a CPU generator; it is advanced.

        Returns:
            inputs (B, T) and targets (B, T).
        """
        check_batch_size(batch_size)
        sequences = torch.stack([self._example(generator) for _ in range(batch_size)])
        return RecallBatch(sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous())

    def accuracy(self, logits: Tensor, labels: Tensor) -> RecallScore:
        """Score logits (B, T, V) against ``batch.labels``.

        Raises:
            ValueError: the shapes do not fit.
        """
        return recall_score(self.pairs, logits, labels)

    def _example(self, generator: torch.Generator) -> Tensor:
        key_order = torch.randperm(self.keys, generator=generator) + FIRST_KEY
        value_order = torch.randperm(self.values, generator=generator) + self.first_value
        asked = int(torch.randint(0, self.pairs, (1,), generator=generator))
        filler_ids = (self.first_filler, self.first_filler + self.fillers)
        filler = torch.randint(*filler_ids, (self.filler_length,), generator=generator)
        shown, values = key_order[: self.pairs], value_order[: self.pairs]
        if self.distractors:
            places = torch.randperm(self.filler_length, generator=generator)[: self.distractors]
            unused = key_order[self.pairs :]
            chosen = torch.randint(0, len(unused), (self.distractors,), generator=generator)
            filler[places] = unused[chosen]
        return torch.cat(
            [
                torch.tensor([BOS]),
                torch.stack([shown, values, torch.full_like(shown, SEP)], dim=1).reshape(-1),
                filler,
                torch.stack([torch.tensor(QUERY), shown[asked], torch.tensor(ANSWER)]),
                values[asked : asked + 1],
            ]
        )
