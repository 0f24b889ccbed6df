"""Training on a synthetic task: its batches, and the accuracy per number of pairs.

Shapes: B examples, T positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

import torch

from palimpsest.errors import ConfigError
from palimpsest.models import LanguageModel
from palimpsest.tasks import MQARTask, RecallScore, RecallTask, Task, TaskBatch
from palimpsest.training.batch import Autocast, TrainBatch, TrainingData
from palimpsest.training.recipe import Recipe

__all__ = ["TaskSource", "TaskValidation", "make_tasks", "task_data"]

TASKS: dict[str, Any] = {"recall": RecallTask, "mqar": MQARTask}
LOGITS_AT_ONCE = 1 << 25  # 128 MB of fp32


def make_tasks(recipe: Recipe) -> list[Task]:
    """The tasks of a recipe, one for each number of pairs.

    Raises:
        ConfigError: a field that the task has not, or values that do not fit together.
    """
    data = recipe.data
    kind = TASKS[data.task]
    known = [f.name for f in dataclasses.fields(kind) if f.name != "length"]
    fields = dict(data.task_fields)
    for key in fields:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            if key == "length":
                hint = "the length is data.seq_len; "
            raise ConfigError(
                f"data.task_fields.{key}={fields[key]!r}: task {data.task!r} has no such field; "
                f"{hint}fields: {', '.join(known)}"
            )
    pairs = fields.pop("pairs", None)
    choices: list[dict[str, Any]] = [{}]
    if pairs is not None:
        choices = [{"pairs": p} for p in (pairs if isinstance(pairs, list | tuple) else [pairs])]
    if not choices:
        raise ConfigError("data.task_fields.pairs=[]: name at least one number of pairs")
    try:
        return [kind(length=data.seq_len, **fields, **choice) for choice in choices]
    except (ValueError, TypeError) as failure:
        raise ConfigError(f"data.task_fields of task {data.task!r}: {failure}") from None


class TaskSource:
    """Examples drawn from one generator; every step has one number of pairs, in turn.

    Args:
        tasks: one for each number of pairs.
        batch_size: B, examples of a step.
        seed: of the generator.
    """

    carries_state = False

    def __init__(self, tasks: list[Task], batch_size: int, seed: int) -> None:
        self._tasks = tasks
        self._batch_size = batch_size
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._next = 0

    def batch_at(self, step: int) -> TrainBatch:
        if step < self._next:
            self._generator.manual_seed(self._seed)
            self._next = 0
        while self._next < step:
            self._draw()
        batch = self._draw()
        return TrainBatch(batch.inputs, batch.labels, None)

    def _draw(self) -> TaskBatch:
        task = self._tasks[self._next % len(self._tasks)]
        self._next += 1
        return task.batch(self._batch_size, self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"next_step": self._next, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self._next = int(state["next_step"])


class TaskValidation:
    """Fresh examples of each number of pairs, the same ones at every validation.

    Args:
        tasks: one for each number of pairs.
        recipe: for the number and size of the batches.
    """

    def __init__(self, tasks: list[Task], recipe: Recipe) -> None:
        train = recipe.train
        self._tasks = tasks
        self._batches = train.eval_batches
        self._batch_size = train.batch_size
        # The published protocol: "a generator seeded seed + 1". Source: arXiv 2606.05175.
        self._seed = train.seed + 1
        self._drawn: list[list[TaskBatch]] = []

    def measure(self, model: LanguageModel, autocast: Autocast) -> dict[str, Any]:
        if not self._drawn:
            for task in self._tasks:
                generator = torch.Generator().manual_seed(self._seed)
                draws = [task.batch(self._batch_size, generator) for _ in range(self._batches)]
                self._drawn.append(draws)
        scores: dict[int, RecallScore] = {}
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        for task, batches in zip(self._tasks, self._drawn, strict=True):
            for batch in batches:
                length = batch.inputs.shape[1]
                rows = max(1, LOGITS_AT_ONCE // (length * model.config.vocab_size))
                for inputs, labels in zip(
                    batch.inputs.split(rows), batch.labels.split(rows), strict=True
                ):
                    labels = labels.to(model.device)
                    with autocast():
                        out = model(inputs.to(model.device), targets=labels)
                        logits = out.logits
                    assert out.loss_sum is not None
                    total += out.loss_sum.double()
                    score = task.accuracy(logits, labels)
                    before = scores.get(score.pairs)
                    scores[score.pairs] = score if before is None else before + score
        asked = sum(score.asked for score in scores.values())
        return {
            "loss": float(total) / asked,
            "accuracy": sum(score.correct for score in scores.values()) / asked,
            "chance": self._tasks[0].chance,
            "trials": asked,
            "accuracy_by_pairs": {str(p): s.accuracy for p, s in sorted(scores.items())},
        }


def task_data(recipe: Recipe) -> TrainingData:
    """The data of a recipe with a task.

    Raises:
        ConfigError: see :func:`make_tasks`.
    """
    tasks = make_tasks(recipe)
    train = recipe.train
    chance = tasks[0].chance
    return TrainingData(
        source=TaskSource(tasks, train.batch_size, train.seed),
        validation=TaskValidation(tasks, recipe) if train.eval_every else None,
        vocab_size=max(task.vocab_size for task in tasks),
        tokenizer=None,
        description={
            "task": recipe.data.task,
            "tasks": [task.name for task in tasks],
            "chance": chance,
            "validation": {
                "protocol": f"{train.eval_batches} batches of {train.batch_size} fresh examples "
                f"per number of pairs, generator seeded {train.seed + 1}",
            },
        },
        label=tasks[0].name if len(tasks) == 1 else f"{recipe.data.task}-{recipe.data.seq_len}",
    )
