"""Recall tasks as a result: how many of the asked values a trained model gives, by pairs shown.

Legend: B examples, T positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from palimpsest.errors import InputError
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.evaluation.perplexity import VOCABULARY_MULTIPLE
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.record import Result, context_note, provenance
from palimpsest.evaluation.statistics import Estimate, share, share_in_groups
from palimpsest.models.language_model import LanguageModel
from palimpsest.tasks import IGNORED, Task
from palimpsest.text.batches import SEED_LIMIT

__all__ = ["RecallResult", "RecallRow", "evaluate_recall"]

LOGITS_AT_ONCE = 1 << 25  # 128 MB of fp32
DEFAULT_SEED = 1_000_003  # far from the seeds that one trains with


@dataclass(frozen=True, kw_only=True)
class RecallRow:
    """The score at one number of pairs.

    Attributes:
        task: its name.
        pairs: key-value pairs that an example shows.
        length: T.
        examples: how many were drawn.
        asked: answers asked for, one or several in each example.
        correct: right answers.
        accuracy: correct / asked. The interval is over examples, whose answers are not independent.
        loss: mean cross-entropy of the answers, nats.
        chance: the accuracy of a guess among all answers.
    """

    task: str
    pairs: int
    length: int
    examples: int
    asked: int
    correct: int
    accuracy: Estimate
    loss: float
    chance: float

    @classmethod
    def read(cls, found: Any) -> RecallRow:
        """From a row or from what JSON keeps of one."""
        if isinstance(found, cls):
            return found
        return cls(**{**found, "accuracy": Estimate.read(found["accuracy"])})


@dataclass(frozen=True, kw_only=True)
class RecallResult(Result):
    """Accuracy on recall tasks (the other fields: see ``Result``).

    ``data_sha256`` is over the ids and labels of all examples, as int64; ``settings`` has the
    tasks' fields and the seed of the examples.

    Attributes:
        results: one row for each task, as given.
    """

    SCHEMA: ClassVar[str] = "palimpsest-recall"
    KIND: ClassVar[str] = "recall"

    results: tuple[RecallRow, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(RecallRow.read(row) for row in self.results))

    @property
    def accuracy(self) -> float:
        """Right answers of all tasks together."""
        return sum(row.correct for row in self.results) / sum(row.asked for row in self.results)

    def derived(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy}

    def rows(self) -> dict[str, str]:
        return {"accuracy": f"{self.accuracy:.4f} over all"}

    def by_pairs(self) -> Table:
        """One line for each number of pairs."""
        table = Table()
        for name in ("task", "pairs", "examples", "asked", "accuracy", "95 %", "chance", "nats"):
            table.add_column(name, justify="left" if name == "task" else "right")
        for row in self.results:
            table.add_row(
                row.task,
                str(row.pairs),
                f"{row.examples:,}",
                f"{row.asked:,}",
                f"{row.accuracy.value:.4f}",
                f"{row.accuracy.low:.4f} … {row.accuracy.high:.4f}",
                f"{row.chance:.4f}",
                f"{row.loss:.4f}",
            )
        return table


def evaluate_recall(
    model: LanguageModel,
    tasks: Sequence[Task],
    *,
    examples: int = 512,
    batch_size: int = 32,
    examples_seed: int = DEFAULT_SEED,
    precision: Precision = "fp32",
    source: str | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> RecallResult:
    """Evaluate a model on fresh examples of recall tasks.

    Args:
        model: any language model; it comes back in the mode it was in.
        tasks: one for each number of pairs, such as ``[MQARTask(pairs=4), MQARTask(pairs=8)]``.
        examples: drawn for each task, from a generator of its own.
        batch_size: the most rows of a forward; changes the result by rounding only.
        examples_seed: of each task's generator. The training draws from the run's seed and its
            validation from the seed after it: these are other examples.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        source: what the result calls the model, such as its folder.
        seed: the model's training seed, to be kept in the result.
        progress: whether to show progress on standard error.

    Raises:
        InputError: no tasks, a model of another vocabulary or too short for them, or the seed
            that the model was trained with.
    """
    check_precision(precision)
    for name, value in (("examples", examples), ("batch_size", batch_size)):
        if value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    if not tasks:
        raise InputError("tasks=[]: name at least one")
    if not 0 <= examples_seed < SEED_LIMIT:
        raise InputError(f"examples_seed={examples_seed}: must be from 0 to 2^63 - 1")
    if seed is not None and examples_seed in (seed, seed + 1):
        raise InputError(
            f"examples_seed={examples_seed}: the model was trained with seed {seed}, so these "
            "would be examples of its training or validation; choose another"
        )
    needed, rows_of_head = max(task.vocab_size for task in tasks), model.config.vocab_size
    if not needed <= rows_of_head <= -(-needed // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE:
        raise InputError(
            f"the tasks have a vocabulary of {needed}, the model has vocab_size={rows_of_head}; "
            "give the task the fields that the model was trained with"
        )
    # one generator for the whole task, so that a batch size never changes the examples
    drawn = [t.batch(examples, torch.Generator().manual_seed(examples_seed)) for t in tasks]
    longest = max(batch.inputs.shape[1] for batch in drawn)
    if model.max_length is not None and longest > model.max_length:
        raise InputError(
            f"examples of {longest} tokens: {model.describe_bound()}; use a shorter task"
        )
    digest = hashlib.sha256()
    for batch in drawn:
        digest.update(batch.inputs.long().numpy().tobytes())
        digest.update(batch.labels.long().numpy().tobytes())

    rows = []
    start = time.perf_counter()
    bar = track("recall", len(tasks) * examples, unit="examples")
    with bar if progress else nullcontext(lambda _: None) as advance:
        for task, batch in zip(tasks, drawn, strict=True):
            length = batch.inputs.shape[1]
            size = min(batch_size, max(1, LOGITS_AT_ONCE // (length * model.config.vocab_size)))
            parts = []
            for inputs, labels in zip(
                batch.inputs.split(size), batch.labels.split(size), strict=True
            ):
                parts.append(_score(model, inputs, labels, precision))
                advance(len(inputs))
            right_B, asked_B, nats_B = (np.concatenate(part) for part in zip(*parts, strict=True))
            rows.append(_row(task, length, right_B, asked_B, nats_B))
    wall_seconds = time.perf_counter() - start
    if not all(math.isfinite(row.loss) for row in rows):
        raise InputError(
            f"the loss of {source or model.registry_name} is not finite: its training has diverged"
        )
    return RecallResult(
        **provenance(model, precision, longest),
        source=source,
        data=", ".join(task.name for task in tasks),
        data_sha256=digest.hexdigest(),
        protocol=f"{examples} fresh examples of each task, generator seeded {examples_seed}; "
        "top-1 at the positions that ask, over the whole vocabulary" + context_note(model, longest),
        settings={
            "examples": examples,
            "examples_seed": examples_seed,
            "tasks": [_fields(task) for task in tasks],
            "window": model.window,
        },
        seed=seed,
        batch_size=batch_size,
        wall_seconds=wall_seconds,
        results=tuple(rows),
    )


def _score(
    model: LanguageModel, inputs_BT: Tensor, labels_BT: Tensor, precision: Precision
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Right answers, asked answers and nats of each example."""
    labels_BT = labels_BT.to(model.device)
    with inference(model, precision):
        logits_BTV = model(inputs_BT.to(model.device)).logits
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    asked_BT = labels_BT != IGNORED
    right_BT = (logits_BTV.argmax(-1) == labels_BT) & asked_BT
    nats_BT = F.cross_entropy(
        logits_BTV.transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none"
    )
    return (
        right_BT.sum(1).cpu().numpy(),
        asked_BT.sum(1).cpu().numpy(),
        nats_BT.double().sum(1).cpu().numpy(),
    )


def _row(
    task: Task,
    length: int,
    right_B: NDArray[np.int64],
    asked_B: NDArray[np.int64],
    nats_B: NDArray[np.float64],
) -> RecallRow:
    correct, asked = int(right_B.sum()), int(asked_B.sum())
    one_each = int(asked_B.max()) == 1
    accuracy = share(correct, asked) if one_each else share_in_groups(right_B, asked_B)
    return RecallRow(
        task=task.name,
        pairs=int(getattr(task, "pairs", asked_B.max())),
        length=length,
        examples=len(right_B),
        asked=asked,
        correct=correct,
        accuracy=accuracy,
        loss=float(nats_B.sum()) / asked,
        chance=task.chance,
    )


def _fields(task: Any) -> dict[str, Any]:
    described = is_dataclass(task) and not isinstance(task, type)
    return {"name": task.name, **(asdict(task) if described else {})}
