"""``palimpsest inspect`` in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TEXT, Outcome

Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # tests/inspect draws; here only that there is a file matters
    monkeypatch.setattr("palimpsest.inspect.figures._save", lambda *given: given[-1].touch())


def about(folder: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(Path(folder, "inspection.json").read_text())[
        "models"
    ]
    return found


def test_a_run_and_its_default_folder(cli: Cli, run_folder: Path, text: Path) -> None:
    done = cli("inspect", run_folder, "--text", text, "--max-tokens", 100)
    assert done.code == 0, done.err
    assert "tiny: 100 tokens" in done.out
    assert "only the start was read, 100 tokens" in done.out
    assert done.out.splitlines()[-1] == "written: tiny-inspect/index.html"
    (model,) = about("tiny-inspect")
    assert (model["tokens"], model["step"], model["tokenizer"]) == (100, "2", "bytes")


def test_two_models_read_the_same_text(
    cli: Cli, run_folder: Path, model_folder: Path, tokenizer_folder: Path, text: Path
) -> None:
    words = ["inspect", run_folder, "--compare", model_folder, "--text", text, "--out", "both"]
    done = cli(*words, "--max-tokens", 70, "--tokenizer", tokenizer_folder)
    assert done.code == 0, done.err
    first, second = about("both")
    assert (first["label"], second["label"]) == ("tiny", "bare")
    # the 70th byte is the second of "à": the text ends before it
    assert len(TEXT.encode()[:70].decode(errors="ignore").encode()) == first["tokens"]
    assert first["tokens"] == second["tokens"]
    assert first["bits"] != second["bits"]


def test_checkpoints_of_one_run_have_different_names(
    cli: Cli, run_folder: Path, text: Path
) -> None:
    words = ["inspect", run_folder, "--compare", run_folder, "--text", text, "--out", "same"]
    assert cli(*words, "--max-tokens", 20).code == 0
    first, second = about("same")
    assert first["label"] != second["label"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("RUN --text missing.txt", "missing.txt"),
        ("RUN --text EMPTY", "empty"),
        ("nowhere --text TEXT", "nowhere"),
        ("gpnm-1m --text TEXT", "is a model to be trained"),
        ("BARE --text TEXT", "no tokenizer is saved with this model"),
        ("RUN --text TEXT --tokenizer nosuch", "no such tokenizer"),
        ("RUN --text TEXT --compare TEXT", "no such folder"),
        ("RUN --text TEXT --max-tokens 0", "--max-tokens 0"),
        ("RUN --text TEXT --window 1", "--window 1"),
        ("RUN --text TEXT --out TAKEN", "not an inspection's folder"),
        ("RUN --text TEXT --out EMPTY/below", "cannot be made"),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli,
    run_folder: Path,
    model_folder: Path,
    text: Path,
    tmp_path: Path,
    words: str,
    said: str,
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    places = {
        "RUN": run_folder,
        "BARE": model_folder,
        "TEXT": text,
        "EMPTY": tmp_path / "empty.txt",
        "TAKEN": tmp_path / "taken",
    }
    for name, place in places.items():
        words = words.replace(name, str(place))
    done = cli("inspect", *words.split())
    assert done.code == 2
    assert said in done.err
    assert done.err.strip().startswith("palimpsest: ") and done.err.count("\n") == 1
    assert not list(tmp_path.glob("*-inspect")) and not list(tmp_path.glob(".*"))
