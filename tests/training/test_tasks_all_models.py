"""``palimpsest train --task …`` for every registered model: accuracy per number of pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tyro
from tests.contract.configs import CONFIGS

import palimpsest
from palimpsest import ConfigError
from palimpsest.cli.train import TrainArgs, run
from palimpsest.training import read_metrics

# the tasks have vocabularies of their own
MODELS = {
    name: {k: v for k, v in next(iter(CONFIGS[name].values())).items() if k != "vocab_size"}
    for name in palimpsest.list_models()
}
PAIRS = {"recall": {"pairs": [1, 3]}, "mqar": {"pairs": [1, 2], "vocab_size": 30}}


def train(task: str, name: str, fields: dict[str, Any], out: Path, length: int = 20) -> int:
    values: dict[str, Any] = {f"model.{key}": value for key, value in fields.items()}
    values |= {f"data.task_fields.{key}": value for key, value in PAIRS[task].items()}
    values |= {"train.eval_every": 2, "train.eval_batches": 2, "optimizer.warmup_steps": 0}
    flags = ["--task", task, "--model", name, "--steps", "2", "--batch-size", "4"]
    for key, value in values.items():
        flags += ["--set", f"{key}={json.dumps(value)}"]
    flags += ["--seq-len", str(length), "--device", "cpu", "--out", str(out)]
    return run(tyro.cli(TrainArgs, args=flags))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", PAIRS)
def test_every_model_trains_on_every_task(task, name, tmp_path):
    assert train(task, name, MODELS[name], tmp_path / "run") == 0
    rows = [row for row in read_metrics(tmp_path / "run") if row["kind"] == "validation"]
    assert rows[-1]["step"] == 2
    by_pairs = rows[-1]["accuracy_by_pairs"]
    assert list(by_pairs) == [str(pairs) for pairs in PAIRS[task]["pairs"]]
    assert all(0.0 <= accuracy <= 1.0 for accuracy in by_pairs.values())
    model = palimpsest.load(next((tmp_path / "run" / "checkpoints").iterdir()))
    assert model.registry_name == name
    assert model.config.vocab_size == (64 if task == "recall" else 30)


@pytest.mark.parametrize("name", [n for n in MODELS if "max_seq_len" in MODELS[n]])
def test_examples_longer_than_the_model_are_refused(name, tmp_path):
    message = r"data\.seq_len=80.* holds at most 73 positions; .*positions=\"none\".*max_seq_len=80"
    with pytest.raises(ConfigError, match=message):
        train("recall", name, MODELS[name], tmp_path / "run", length=80)
    assert not (tmp_path / "run").exists()
