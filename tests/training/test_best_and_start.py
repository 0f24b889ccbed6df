"""The best checkpoint, starting from another run's weights, and names that are not UTF-8."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.digests import file_digest
from palimpsest.errors import CheckpointError, ConfigError, InputError
from palimpsest.evaluation import EvaluationResult, evaluate_text
from palimpsest.text import ByteTokenizer
from palimpsest.training import load_recipe, read_metrics
from palimpsest.training.checkpoint import best_checkpoint, clean, model_folder
from palimpsest.training.optimizer import lr_factor

SIZES = {"d_state": 8, "d_emb": 4, "d_ffn": 8, "n_heads": 1, "d_key": 2, "d_val": 4}

# a constant rate that is too high: validation 25.1, 8.8, 4.8, 6.8 at steps 2, 4, 6, 8
BEST: dict[str, Any] = {
    "train__keep_best": True,
    "optimizer__lr": 1.0,
    "optimizer__schedule": "constant",
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the state is revised at every token; " * 60)
    return path


def recipe(text: Path, **changes: Any) -> palimpsest.training.Recipe:
    table = {
        "data.train": [str(text)], "data.seq_len": 16, "train.batch_size": 2, "train.steps": 8,
        "train.eval_every": 2, "train.save_every": 2, "train.keep_checkpoints": 1,
        "optimizer.lr": 0.5, "optimizer.warmup_steps": 1,
        **{f"model.{name}": value for name, value in SIZES.items()},
        **{name.replace("__", "."): value for name, value in changes.items()},
    }  # fmt: skip
    return load_recipe("gpnm-tiny", table)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def losses(run: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_metrics(run) if r["kind"] == "validation"}


@pytest.fixture(autouse=True)
def plain_backend() -> Any:
    with palimpsest.force_backend("reference"):
        yield


def test_the_best_checkpoint_has_the_lowest_loss_and_stays(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    palimpsest.train(recipe(text, **BEST), run, progress=False)
    by_step = losses(run)
    best = min(by_step, key=lambda step: (by_step[step], step))
    assert best == 6  # not the newest
    header = json.loads((best_checkpoint(run) / "checkpoint.json").read_text())
    assert header["step"] == best and header["validation"]["loss"] == by_step[best]
    assert model_folder(run / "best") == best_checkpoint(run)
    named = palimpsest.load(run / "best")
    newest = palimpsest.load(model_folder(run))
    assert not torch.equal(weights(named), weights(newest))
    assert len(list((run / "checkpoints").iterdir())) == 2  # the best, and one of keep_checkpoints


def test_stopped_and_resumed_the_best_is_the_same(text: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    palimpsest.train(recipe(text, **BEST), whole, progress=False)
    palimpsest.train(recipe(text, **BEST), parts, progress=False, stop_after=3)
    palimpsest.resume(parts, progress=False)
    name = "model.safetensors"
    for folder in ("best", "step-00000008"):
        one, other = (run / "checkpoints" / folder / name for run in (whole, parts))
        assert file_digest(one) == file_digest(other)


def test_a_kill_between_two_renames_keeps_the_best(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    palimpsest.train(recipe(text, **BEST), run, progress=False)
    best = best_checkpoint(run)
    best.rename(best.with_name(".best.replaced"))
    assert best_checkpoint(run) is None
    clean(run)
    assert best_checkpoint(run) == best and palimpsest.load(best) is not None


def test_no_best_is_one_line(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    palimpsest.train(recipe(text), run, progress=False)
    with pytest.raises(CheckpointError, match="kept no best checkpoint; train with --keep"):
        model_folder(run / "best")
    with pytest.raises(ConfigError, match="eval_every=0: the best is chosen by validation"):
        recipe(text, train__keep_best=True, train__eval_every=0)


def test_a_run_starts_from_the_weights_of_another(text: Path, tmp_path: Path) -> None:
    first = palimpsest.train(recipe(text), tmp_path / "first", progress=False)
    start = {"train__init_from": str(tmp_path / "first"), "train__seed": 5, "train__steps": 4}
    palimpsest.train(recipe(text, **start), tmp_path / "whole", progress=False)
    palimpsest.train(recipe(text, **start), tmp_path / "parts", progress=False, stop_after=1)
    resumed = palimpsest.resume(tmp_path / "parts", progress=False)
    whole = palimpsest.load(model_folder(tmp_path / "whole"))
    assert torch.equal(weights(whole), weights(resumed.model))
    recorded = json.loads((tmp_path / "whole" / "run.json").read_text())["init_from"]
    latest = model_folder(tmp_path / "first")
    assert recorded == {"path": str(latest), "sha256": file_digest(latest / "model.safetensors")}
    still = recipe(text, **{**start, "optimizer__lr": 1e-12})
    unmoved = palimpsest.train(still, tmp_path / "still", progress=False)
    torch.testing.assert_close(weights(unmoved.model), weights(first.model), rtol=0, atol=1e-9)


def test_weights_that_do_not_fit_are_refused(text: Path, tmp_path: Path) -> None:
    palimpsest.train(recipe(text, train__steps=1), tmp_path / "first", progress=False)
    other = recipe(text, train__init_from=str(tmp_path / "first"), model__d_ffn=9)
    with pytest.raises(ConfigError, match=r"has d_ffn=8, the recipe's model has d_ffn=9; set"):
        palimpsest.train(other, tmp_path / "second", progress=False)
    nowhere = recipe(text, train__init_from=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        palimpsest.train(nowhere, tmp_path / "second", progress=False)
    assert not (tmp_path / "second").exists()


def test_more_steps_at_resume_state_the_learning_rate(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    palimpsest.train(recipe(text), tmp_path / "run", progress=False, stop_after=4)
    palimpsest.resume(tmp_path / "run", steps=16, progress=True, stop_after=5)
    err = capsys.readouterr().err
    assert "--steps 16 in place of 8: the cosine schedule now ends at step 16" in err
    optimizer = recipe(text).optimizer
    after, before = (0.5 * lr_factor(4, optimizer, steps) for steps in (16, 8))
    assert f"the learning rate of step 5 is {after:.3g}, before the change {before:.3g}" in err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf8_are_refused(text: Path, tmp_path: Path) -> None:
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/o\xe9x")
    with pytest.raises(InputError, match=r"run_folder .*o\\xe9x: is not UTF-8; rename"):
        palimpsest.train(recipe(text), bad, progress=False)
    Path(bad).write_text("text")
    from palimpsest.cli.main import main

    assert main(["train", "gpnm-tiny", "--data", bad, "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_an_edited_configuration_is_refused_until_its_digest_is_removed(tmp_path: Path) -> None:
    folder = palimpsest.build("gpnm-tiny", **SIZES).save(tmp_path / "model")
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "palimpsest": "0.0.9"}))
    with pytest.raises(CheckpointError, match='delete its "sha256" line'):
        palimpsest.load(folder)
    del content["sha256"]
    path.write_text(json.dumps({**content, "palimpsest": "0.0.9"}))
    assert palimpsest.load(folder).num_parameters() > 0


def test_figures_that_contradict_each_other_are_refused(text: Path, tmp_path: Path) -> None:
    model = palimpsest.build("gpnm-tiny", **SIZES)
    result = evaluate_text(model, ByteTokenizer(), text, progress=False)
    path = result.save(tmp_path / "result.json")
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps({**content, "bits_per_byte": 1.0}))
    with pytest.raises(InputError, match=r"bits_per_byte=1\.0 contradicts the other fields"):
        EvaluationResult.load(path)


def test_info_states_step_and_validation_of_the_best(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from palimpsest.cli.eval_throughput import load_or_build
    from palimpsest.cli.main import main

    run = tmp_path / "run"
    palimpsest.train(recipe(text, **BEST), run, progress=False)
    by_step = losses(run)
    best = min(by_step, key=lambda step: (by_step[step], step))
    assert best == 6
    for named, step in ((run, 8), (run / "best", best), (run / "checkpoints" / "best", best)):
        assert main(["info", str(named), "--json"]) == 0
        training = json.loads(capsys.readouterr().out)["training"]
        assert training["step"] == step
        assert training["best"]["step"] == best and training["best"]["loss"] == by_step[best]
        assert main(["info", str(named)]) == 0
        shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert f"step {best}, validation: loss {by_step[best]:.4f}" in shown
    assert main(["eval", str(run / "best"), "--text", str(text)]) == 0
    assert load_or_build(str(run / "best"), torch.device("cpu")).config.d_state == 8
    assert main(["generate", str(run / "best"), "--prompt", "the", "--max-new-tokens", "2"]) == 0


def test_the_command_names_the_best_and_the_weights_it_started_from(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from palimpsest.cli.main import main
    from palimpsest.training import dump_recipe

    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(dump_recipe(recipe(text)), encoding="utf-8")
    assert main(["train", "recipe.toml", "--keep-best", "--out", "first"]) == 0
    step = json.loads(Path("first/checkpoints/best/checkpoint.json").read_text())["step"]
    assert f"best checkpoint, step {step}: first/best" in capsys.readouterr().out
    assert main(["train", "recipe.toml", "--init-from", "first/best", "--out", "second"]) == 0
    weights_file = tmp_path / "first/checkpoints/best/model.safetensors"
    start = {"path": str(weights_file.parent), "sha256": file_digest(weights_file)}
    assert json.loads(Path("second/run.json").read_text())["init_from"] == start
    assert load_recipe("second/recipe.toml").train.init_from == start["path"]
    capsys.readouterr()
    words = ["train", "recipe.toml", "--init-from", "first", "--tokenizer", "bytes"]
    assert main([*words, "--set", "model.d_ffn=9", "--out", "third"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("palimpsest: --init-from first: has d_ffn=8") and err.count("\n") == 1


def test_a_run_that_moved_on_still_has_its_start_recorded(text: Path, tmp_path: Path) -> None:
    """Interrupted before its first checkpoint, a run resumes from the weights it began with."""
    first = tmp_path / "first"
    keep = {"train__keep_checkpoints": 0}
    palimpsest.train(recipe(text, **keep), first, progress=False, stop_after=4)
    start = {"train__init_from": str(first), "train__steps": 4, "train__seed": 5}
    whole = palimpsest.train(recipe(text, **start), tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints")
    (tmp_path / "parts" / "metrics.jsonl").unlink()
    (tmp_path / "parts" / "metrics-damaged.jsonl").touch()
    palimpsest.resume(first, progress=False)  # has newer checkpoints now
    parts = palimpsest.resume(tmp_path / "parts", progress=False)
    assert torch.equal(weights(parts.model), weights(whole.model))


def test_the_best_needs_validation(text: Path, tmp_path: Path) -> None:
    none = recipe(text, train__keep_best=True, data__validation_fraction=0.0)
    with pytest.raises(
        ConfigError, match=r"keep_best=true without validation data: .*validation_fr"
    ):
        palimpsest.train(none, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_another_architecture_and_another_tokenizer_are_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    palimpsest.train(recipe(text, train__steps=1), tmp_path / "first", progress=False)
    start = {"train__init_from": str(tmp_path / "first")}
    other = load_recipe("gpnm-tiny", {
        "model.name": "gpn", "model.d_state": 8, "model.d_emb": 4, "data.train": [str(text)],
        "data.seq_len": 16, "train.init_from": str(tmp_path / "first"),
    })  # fmt: skip
    with pytest.raises(ConfigError, match="is of the architecture gpnm, the recipe's model of gpn"):
        palimpsest.train(other, tmp_path / "second", progress=False)
    known = SimpleNamespace(name="other", fingerprint=lambda: "of another")
    monkeypatch.setattr("palimpsest.training.prepare.load_tokenizer", lambda folder: known)
    with pytest.raises(
        ConfigError, match="was trained with the tokenizer 'other', the recipe has 'bytes'"
    ):
        palimpsest.train(recipe(text, **start), tmp_path / "second", progress=False)
    assert not (tmp_path / "second").exists()


def test_warm_up_also_states_the_new_end(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = recipe(text, optimizer__warmup_steps=6)
    palimpsest.train(slow, tmp_path / "run", progress=False, stop_after=2)
    palimpsest.resume(tmp_path / "run", steps=16, progress=True, stop_after=3)
    palimpsest.resume(tmp_path / "run", progress=True, stop_after=4)
    err = capsys.readouterr().err
    assert err.count("--steps 16 in place of 8") == 1  # 16 is the run's own number from then on
