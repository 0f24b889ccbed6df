from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from palimpsest.tasks import RecallScore, RecallTask, Task


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_golden_batch(shared_data: Path) -> None:
    with np.load(shared_data / "golden/recall_task_batch.npz") as golden:
        config = json.loads(str(golden["config"]))
        inputs, targets = golden["inputs"], golden["targets"]
    task = RecallTask(length=config["seq_len"], pairs=config["num_pairs"])
    batch = task.batch(config["batch_size"], generator(config["seed"]))
    assert np.array_equal(batch.inputs.numpy(), inputs)
    assert np.array_equal(batch.targets.numpy(), targets)


def test_published_layout_is_the_default() -> None:
    task = RecallTask()
    assert (task.vocab_size, task.first_value, task.first_filler) == (64, 13, 21)
    assert task.name == "recall-4pairs-128" and task.chance == 0.125
    batch = task.batch(3, generator())
    assert batch.inputs.shape == batch.targets.shape == (3, 128)
    assert batch.inputs.dtype == torch.int64


TASKS = [
    RecallTask(),
    RecallTask(length=32),
    RecallTask(length=16),  # no filler at all
    RecallTask(length=70, pairs=16, keys=40, values=30, fillers=5, distractors=7),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_the_answer_is_the_value_of_the_asked_key(task: RecallTask) -> None:
    batch = task.batch(6, generator(3))
    assert batch.inputs.max() < task.vocab_size
    for inputs, targets, labels in zip(batch.inputs, batch.targets, batch.labels, strict=True):
        assert torch.equal(inputs[1:], targets[:-1])
        shown = inputs[1 : 1 + 3 * task.pairs].reshape(task.pairs, 3)
        memory = dict(shown[:, :2].tolist())
        assert inputs[0] == 1 and (shown[:, 2] == 2).all()
        assert len(memory) == task.pairs == len(set(memory.values()))
        assert inputs[-3] == 3 and inputs[-1] == 4
        assert memory[int(inputs[-2])] == targets[-1] == labels[-1]
        assert (labels[:-1] == -100).all()
        filler = inputs[1 + 3 * task.pairs : -3]
        keys = filler[filler < task.first_filler]
        assert len(filler) == task.filler_length and len(keys) == task.distractors
        assert not set(keys.tolist()) & set(memory)
        assert ((keys >= 5) & (keys < task.first_value)).all()


def test_vocabulary_grows_with_the_ids() -> None:
    assert RecallTask(keys=40, values=30, fillers=5).vocab_size == 80
    assert dataclasses.replace(RecallTask(), length=32).vocab_size == 64


def test_batches_follow_one_another() -> None:
    one = generator(5)
    pieces = [RecallTask().batch(n, one).inputs for n in (1, 3, 2)]
    assert torch.equal(torch.cat(pieces), RecallTask().batch(6, generator(5)).inputs)


def test_accuracy() -> None:
    task = RecallTask(length=20)
    batch = task.batch(4, generator())
    logits = torch.nn.functional.one_hot(batch.targets, task.vocab_size).float()
    logits[1, -1] = 0.0
    score = task.accuracy(logits, batch.labels)
    assert score == RecallScore(pairs=4, correct=3, asked=4)
    assert score.accuracy == 0.75
    assert score + score == RecallScore(4, 6, 8)
    with pytest.raises(ValueError, match="of 4 and of 5 pairs"):
        score + RecallScore(5, 1, 1)
    with pytest.raises(ValueError, match="must be"):
        task.accuracy(logits[:, 1:], batch.labels)
    with pytest.raises(ValueError, match="ask for no answer"):
        task.accuracy(logits, torch.full_like(batch.labels, -100))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pairs": 0}, "pairs=0"),
        ({"pairs": 9, "values": 20}, "pairs=9 need as many distinct keys, and keys=8"),
        ({"pairs": 9, "keys": 20}, "pairs=9 need as many distinct values, and values=8"),
        ({"length": 15}, "pairs=4 need a length of at least 16, and length=15"),
        ({"length": 20, "distractors": 5}, "distractors=5: must be from 0 to the 4"),
        ({"pairs": 8, "distractors": 1}, "pairs=8 use all keys=8"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RecallTask(**changes)


def test_it_is_a_task() -> None:
    task: Task = RecallTask()
    with pytest.raises(ValueError, match="batch_size=0"):
        task.batch(0, generator())
