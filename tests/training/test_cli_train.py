"""The command: flags become a recipe, exit codes, and one message per mistake."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import tyro

from palimpsest import ConfigError
from palimpsest.cli.train import TrainArgs, recipe_of, run
from palimpsest.training import dump_recipe
from palimpsest.training.text_data import TextSource


def parse(*arguments: str) -> TrainArgs:
    return tyro.cli(TrainArgs, args=list(arguments))


def test_flags_become_the_recipe():
    args = parse(
        *("gpnm-tiny", "--data", "a.txt", "b.txt", "--steps", "7", "--lr", "1e-3"),
        *("--batch-size", "4", "--seq-len", "32", "--seed", "5", "--precision", "bf16"),
        *("--set", "optimizer.clip_norm=0.5", "--set", "model.d_state=40"),
    )
    recipe = recipe_of(args)
    assert recipe.data.train == ("a.txt", "b.txt") and recipe.data.seq_len == 32
    assert (recipe.train.steps, recipe.train.batch_size, recipe.train.seed) == (7, 4, 5)
    assert (recipe.optimizer.lr, recipe.optimizer.clip_norm) == (1e-3, 0.5)
    assert recipe.train.precision == "bf16" and recipe.model.fields == {"d_state": 40}


def test_a_task_brings_its_recipe_and_takes_any_model():
    recipe = recipe_of(parse("--task", "recall", "--model", "gpn-1m"))
    assert (recipe.data.task, recipe.model.name) == ("recall", "gpn-1m")
    assert recipe.data.task_fields == {"pairs": [1, 2, 4]}
    assert recipe_of(parse()).model.name == "gpnm-1m"


def test_mistakes_of_the_command_line(tmp_path):
    with pytest.raises(ConfigError, match="give it once"):
        recipe_of(parse("--lr", "1", "--set", "optimizer.lr=2"))
    with pytest.raises(ConfigError, match=r"name text files or folders \(--data FILE\)"):
        run(parse("--out", str(tmp_path / "run")))
    with pytest.raises(ConfigError, match=r"--resume .* with --lr"):
        run(parse("--resume", str(tmp_path), "--lr", "1"))
    with pytest.raises(ConfigError, match=r"--resume .* with recipe"):
        run(parse("gpnm-1m", "--resume", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_train_stop_and_resume(make_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(dump_recipe(make_recipe(train__steps=6)), encoding="utf-8")
    plain = TextSource.batch_at

    def stop_at_step_two(self, step):
        if step == 2:
            monkeypatch.setattr(TextSource, "batch_at", plain)
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, step)

    monkeypatch.setattr(TextSource, "batch_at", stop_at_step_two)
    assert run(parse("recipe.toml")) == 143
    command = capsys.readouterr().err.strip().splitlines()[-1].split()
    assert command == ["palimpsest", "train", "--resume", "runs/gpnm-words-seed0"]
    assert run(parse(*command[2:])) == 0
    shown = capsys.readouterr().out
    assert "6 steps: runs/gpnm-words-seed0" in shown and "bits_per_byte" in shown
