"""JSON of other types in the files of a run: one line that names the file, or no difference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import PalimpsestError
from palimpsest.evaluation import Result, load_result
from palimpsest.text import load_tokenizer
from palimpsest.training.checkpoint import load_checkpoint
from palimpsest.training.plot import plot_runs
from palimpsest.training.run_folder import read_meta

OTHERS: tuple[Any, ...] = ([], {}, None, 3, "x", [1], {"a": 1}, True, -1.5)
CHECKPOINT = "checkpoints/step-00000002"
FILES = (
    "run.json",
    f"{CHECKPOINT}/checkpoint.json",
    f"{CHECKPOINT}/config.json",
    f"{CHECKPOINT}/tokenizer.palimpsest.json",
    "tokenizer/tokenizer.palimpsest.json",
)


def damaged(content: dict[str, Any]) -> Iterator[Any]:
    """The whole, each value, and each value inside those, of every other type."""
    yield from OTHERS
    for key, value in content.items():
        yield {k: v for k, v in content.items() if k != key}
        for other in OTHERS:
            yield {**content, key: other}
            if isinstance(value, dict):
                for inner in value:
                    yield {**content, key: {**value, inner: other}}


def copy(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    (to / "loss.png").unlink(missing_ok=True)
    return to


@pytest.mark.parametrize("name", FILES)
def test_a_run(
    name: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the reading is checked here: the commands do nothing else with these files."""
    import torch

    from palimpsest.cli import info
    from palimpsest.cli.model_source import find_model

    monkeypatch.setattr("palimpsest.training.plot.save_figure", lambda *_, **__: None)
    run = copy(run_folder, tmp_path / "run")
    path = run / name
    content = json.loads(path.read_text())
    readers: tuple[Callable[[], Any], ...] = (
        lambda: info._show_model(info._trained(find_model(str(run))), Quiet()),  # type: ignore
        lambda: load_checkpoint(run / CHECKPOINT, torch.device("cpu")),
        lambda: read_meta(run),
        lambda: load_tokenizer(path.parent) if "tokenizer" in name else None,
        lambda: plot_runs([run], tmp_path / "p.png") if name == "run.json" else None,
    )
    tried = refused = 0
    for other in damaged(content):
        path.write_text(json.dumps(other))
        for read in readers:
            tried += 1
            try:
                read()
            except PalimpsestError as failure:
                refused += 1
                assert str(failure)
    assert tried > 100 and refused > 20


class Quiet:
    """A console that shows nothing."""

    def print(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def test_a_run_folder_whose_meta_is_a_list(cli: Callable, run_folder: Path, tmp_path: Path) -> None:
    run = copy(run_folder, tmp_path / "run")
    (run / "run.json").write_text("[]")
    for words in (("info", run), ("train", "--resume", run), ("generate", run, "--prompt", "a")):
        code, out, err = cli(*words)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert f"{run / 'run.json'}: was not written by palimpsest train" in err


@pytest.mark.parametrize("kind", ["", "positions", "throughput"])
def test_a_result(kind: str, cli: Callable, run_folder: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    words = f"--text {text} --max-windows 2 --seq-len 16"
    if kind == "throughput":
        words = "--lengths 8 --batches 1 --rounds 1 --phases prefill"
    words = f"eval {run_folder} {kind} {words} --out {path}"
    assert cli(*words.split()).code == 0
    content = json.loads(path.read_text())
    for key in content:
        for other in OTHERS:
            path.write_text(json.dumps({**content, key: other}))
            try:
                result: Result = load_result(path)
                result.table(), result.to_dict()
            except PalimpsestError as failure:
                assert str(path) in str(failure)
    for other in OTHERS:
        path.write_text(json.dumps(other))
        with pytest.raises(PalimpsestError):
            load_result(path)
