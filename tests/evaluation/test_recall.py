"""Recall results: against each example by itself, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from palimpsest.errors import InputError
from palimpsest.evaluation import RecallResult, evaluate_recall, load_result
from palimpsest.tasks import IGNORED, MQARTask, RecallTask
from tests.evaluation.models import FAMILIES, small_model

TASKS = {
    "recall": [RecallTask(length=24, pairs=2), RecallTask(length=24, pairs=4)],
    "mqar": [MQARTask(length=24, pairs=p, vocab_size=48) for p in (3, 5)],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", TASKS)
def test_equals_each_example_by_itself(family: str, kind: str) -> None:
    tasks = TASKS[kind]
    model = small_model(family, tasks[0].vocab_size)
    result = evaluate_recall(model, tasks, examples=9, batch_size=4, examples_seed=5)
    for task, row in zip(tasks, result.results, strict=True):
        batch = task.batch(9, torch.Generator().manual_seed(5))
        right, asked, nats = [], [], []
        for inputs, labels in zip(batch.inputs, batch.labels, strict=True):
            with torch.no_grad():
                logits = model(inputs[None]).logits[0].log_softmax(-1)
            places = (labels != IGNORED).nonzero().flatten().tolist()
            asked.append(len(places))
            right.append(sum(int(logits[p].argmax()) == int(labels[p]) for p in places))
            nats += [-float(logits[p, labels[p]]) for p in places]
        assert (row.pairs, row.length, row.examples) == (task.pairs, 24, 9)
        assert (row.correct, row.asked) == (sum(right), sum(asked))
        assert row.accuracy.value == pytest.approx(sum(right) / sum(asked))
        assert row.loss == pytest.approx(np.mean(nats), rel=1e-9)
        assert row.chance == task.chance and row.task == task.name
        assert 0 <= row.accuracy.low <= row.accuracy.value <= row.accuracy.high <= 1
    assert result.settings["tasks"][1]["pairs"] == tasks[1].pairs


def test_the_same_examples_for_any_batch_size_and_a_hash_that_says_so(tmp_path: Path) -> None:
    model = small_model("gpnm", 64)
    found = [
        evaluate_recall(model, TASKS["recall"], examples=6, batch_size=b, progress=False)
        for b in (1, 6)
    ]
    assert found[0].data_sha256 == found[1].data_sha256
    assert [r.correct for r in found[0].results] == [r.correct for r in found[1].results]
    other = evaluate_recall(model, TASKS["recall"], examples=6, examples_seed=2, progress=False)
    assert other.data_sha256 != found[0].data_sha256
    path = found[0].save(tmp_path / "r.json")
    assert RecallResult.load(path) == found[0] == load_result(path)
    assert found[0].by_pairs().row_count == 2


def test_bad_input() -> None:
    tasks, model = TASKS["recall"], small_model("transformer", 64)
    for size in (40, 300):
        with pytest.raises(InputError, match=f"vocabulary of 48, the model has vocab_size={size}"):
            evaluate_recall(small_model("gpnm", size), TASKS["mqar"])
    with pytest.raises(InputError, match="at most 96 positions; use a shorter task"):
        evaluate_recall(model, [RecallTask(length=100)])
    with pytest.raises(InputError, match="the model was trained with seed 4"):
        evaluate_recall(model, tasks, seed=4, examples_seed=5)
    with pytest.raises(InputError, match="name at least one"):
        evaluate_recall(model, [])
    for change in ({"examples": 0}, {"batch_size": 0}, {"precision": "fp8"}):
        with pytest.raises(InputError, match=next(iter(change))):
            evaluate_recall(model, tasks, **change)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="diverged"):
        evaluate_recall(model, tasks, examples=2)
