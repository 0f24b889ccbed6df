"""A run that stopped goes on bit for bit, and its metrics have every step once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palimpsest import CheckpointError, ConfigError, InputError
from palimpsest.models import registry
from palimpsest.models.gpn import GPNM, GPNMConfig
from palimpsest.training import Recipe, checkpoint_steps, read_metrics, resume, train
from palimpsest.training.loop import Trainer
from palimpsest.training.text_data import TextSource

LONG: dict[str, dict[str, Any]] = {
    "epoch": {},
    "accumulation": {"train__grad_accumulation": 2},
    "stream": {"data__order": "stream", "train__bptt": 2, "train__grad_accumulation": 2},
}
SHORT: dict[str, dict[str, Any]] = {
    "random": {"data__order": "random"},
    "current": {"data__order": "stream", "train__predict": "current"},
    "truncated": {"train__bptt": 2},
    "bf16": {"train__precision": "bf16"},
    "recall": {
        "data__task": "recall",
        "data__seq_len": 12,
        "data__task_fields": {"pairs": [1, 2]},
    },
}


def rows_without_times(run: Path) -> list[dict[str, Any]]:
    times = ("elapsed", "tokens_per_s")
    return [{k: v for k, v in row.items() if k not in times} for row in read_metrics(run)]


def assert_same_runs(one: Path, other: Path) -> None:
    """Same metrics, and the same bytes of model and optimizer in the last checkpoint."""
    assert rows_without_times(one) == rows_without_times(other)
    last = checkpoint_steps(one)[-1]
    assert checkpoint_steps(other)[-1] == last
    names = ["model.safetensors", "optimizer.pt", "training.pt", "state.safetensors"]
    for name in names:
        files = [run / "checkpoints" / f"step-{last:08d}" / name for run in (one, other)]
        assert files[0].exists() == files[1].exists()
        if not files[0].exists():
            continue
        if name.endswith(".safetensors"):
            assert files[0].read_bytes() == files[1].read_bytes()
        else:
            loaded = [torch.load(file, weights_only=True) for file in files]
            torch.testing.assert_close(*loaded, rtol=0, atol=0)


def assert_two_halves_are_the_whole(recipe: Recipe, folder: Path) -> None:
    steps = recipe.train.steps
    whole = train(recipe, folder / "whole", progress=False)
    first = train(recipe, folder / "parts", progress=False, stop_after=steps // 2)
    assert first.step == steps // 2 and not first.finished
    second = resume(folder / "parts", progress=False)
    assert second.finished and whole.finished
    assert_same_runs(whole.folder, second.folder)
    rows = second.metrics
    assert [r["step"] for r in rows if r["kind"] == "train"] == list(range(1, steps + 1))
    validated = [*range(5, steps, 5), steps]
    assert [r["step"] for r in rows if r["kind"] == "validation"] == validated


@pytest.mark.parametrize("variant", LONG)
def test_twenty_steps_are_ten_and_ten(variant, make_recipe, tmp_path):
    recipe = make_recipe(train__save_every=0, **LONG[variant])
    assert_two_halves_are_the_whole(recipe, tmp_path)


@pytest.mark.parametrize("variant", SHORT)
def test_eight_steps_are_four_and_four(variant, make_recipe, tmp_path):
    recipe = make_recipe(train__steps=8, train__save_every=0, **SHORT[variant])
    assert_two_halves_are_the_whole(recipe, tmp_path)


def test_the_runs_above_cross_epoch_edges_before_and_after_their_stop(make_recipe):
    from palimpsest.training.prepare import load_data

    sampler = load_data(make_recipe()).source._sampler
    edges = [s for s in range(1, 20) if sampler.epoch_at(s) != sampler.epoch_at(s - 1)]
    assert len(edges) >= 2 and edges[0] < 10 < edges[-1] and 10 not in edges


@pytest.fixture
def dropout_model() -> Iterator[str]:
    @registry.register("gpnm-dropout", GPNMConfig)
    class WithDropout(GPNM):
        def _decode(self, predicted: Tensor) -> Tensor:
            return nn.functional.dropout(super()._decode(predicted), 0.2, self.training)

    yield "gpnm-dropout"
    del registry._models["gpnm-dropout"]


def test_dropout_goes_on_where_it_stopped(dropout_model, make_recipe, tmp_path):
    recipe = make_recipe(model__name=dropout_model, train__steps=8)
    assert_two_halves_are_the_whole(recipe, tmp_path)


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, act: Any) -> None:
    """Do something while the batch of a step is read."""
    plain = TextSource.batch_at

    def batch_at(self: TextSource, asked: int) -> Any:
        if asked == step:
            monkeypatch.setattr(TextSource, "batch_at", plain)
            act()
        return plain(self, asked)

    monkeypatch.setattr(TextSource, "batch_at", batch_at)


def crash() -> None:
    raise RuntimeError("power cut")


@pytest.mark.parametrize("at", [8, 3])
def test_a_crash_between_checkpoints_repeats_its_steps_once(at, make_recipe, tmp_path, monkeypatch):
    recipe = make_recipe(data__order="stream", train__steps=12)
    train(recipe, tmp_path / "whole", progress=False)
    fail_at(monkeypatch, at, crash)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "parts", progress=False)
    assert rows_without_times(tmp_path / "parts")[-1]["step"] == at
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')  # a line that the crash cut
    resume(tmp_path / "parts", progress=False)
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")


# Step 4 makes the fifth, whose validation is then still due.
@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 6), (signal.SIGTERM, 4)])
def test_a_signal_ends_the_step_saves_and_says_how_to_go_on(
    number, at, make_recipe, tmp_path, monkeypatch, capsys
):
    recipe = make_recipe(train__steps=8)
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    fail_at(monkeypatch, at, lambda: os.kill(os.getpid(), number))
    result = train(recipe, tmp_path / "a run", progress=True)
    assert result.stopped_by == number and result.step == at + 1
    assert checkpoint_steps(result.folder)[-1] == at + 1
    shown = capsys.readouterr().err
    assert f"palimpsest train --resume '{result.folder}'" in shown
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    resume(result.folder, progress=False)
    train(recipe, tmp_path / "whole", progress=False)
    assert_same_runs(tmp_path / "whole", result.folder)


def test_a_finished_run_trains_longer_only_when_asked(make_recipe, tmp_path):
    recipe = make_recipe(train__steps=4, train__save_every=0, optimizer__schedule="constant")
    train(recipe, tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match=r"done 4 of train\.steps=4 .*--steps"):
        resume(tmp_path / "run", progress=False)
    assert resume(tmp_path / "run", steps=6, progress=False).step == 6
    longer = make_recipe(train__steps=6, train__save_every=0, optimizer__schedule="constant")
    train(longer, tmp_path / "long", progress=False)
    model = "checkpoints/step-00000006/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "long" / model).read_bytes()


def test_changed_text_is_refused(make_recipe, tmp_path, text_file):
    copy = tmp_path / "copy.txt"
    copy.write_text(text_file.read_text())
    recipe = make_recipe(data__train=[str(copy)])
    train(recipe, tmp_path / "run", progress=False, stop_after=2)
    copy.write_text(text_file.read_text().replace("page", "leaf"))
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="train text has changed"):
        resume(tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a run's folder"):
        resume(tmp_path, progress=False)


def flushing() -> bool:
    return not bool((torch.full((1,), torch.finfo(torch.float32).tiny) / 4).any())


@pytest.mark.parametrize("callers", [False, True])
def test_subnormals_are_flushed_in_a_session_alone(make_recipe, tmp_path, monkeypatch, callers):
    seen = []
    fit = Trainer.fit

    def watched(self, *args, **kwargs):
        seen.append(flushing())
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    if not torch.set_flush_denormal(callers):
        pytest.skip("this CPU cannot flush subnormal numbers")
    try:
        train(make_recipe(train__steps=4), tmp_path / "run", progress=False, stop_after=2)
        assert flushing() is callers
        resume(tmp_path / "run", progress=False)
        assert flushing() is callers
        with pytest.raises(ConfigError):
            resume(tmp_path / "run", progress=False)
        assert flushing() is callers
    finally:
        torch.set_flush_denormal(False)
    assert seen == [True, True]
