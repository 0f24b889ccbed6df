"""The folder of an inspection."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from palimpsest.errors import InputError
from palimpsest.inspect import Inspection, write_inspection
from tests.inspect.conftest import look
from tests.inspect.letters import Letters


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_page_figures_and_facts(tmp_path: Path, nasty: Inspection, other: Inspection) -> None:
    page = write_inspection([nasty, other], tmp_path / "out")
    folder = page.parent
    figures = {f"figures/{name}.json" for name in ("surprise", "half-lives", "trajectory", "gates")}
    if importlib.util.find_spec("matplotlib") is not None:
        figures |= {name.replace(".json", ".png") for name in figures}
    assert names(folder) == {"index.html", "inspection.json", *figures}
    about = json.loads((folder / "inspection.json").read_text(encoding="utf-8"))
    assert set(about["figures"]) == figures
    assert [m["label"] for m in about["models"]] == ["one <&> $x^", "two"]
    assert about["models"][0]["bits"] == pytest.approx(float(nasty.surprise_N.sum()), rel=1e-5)
    lives = json.loads((folder / "figures/half-lives.json").read_text(encoding="utf-8"))
    assert [m["model"] for m in lives["models"]] == ["one <&> $x^"]  # the other has no memory
    surprise = json.loads((folder / "figures/surprise.json").read_text(encoding="utf-8"))
    assert sum(surprise["models"][1]["counts"]) == other.tokens
    gates = json.loads((folder / "figures/gates.json").read_text(encoding="utf-8"))
    (gate, *_) = nasty.gates
    blocks = gates["models"][0]["gates"][gate.name]
    sizes = np.diff([*gates["models"][0]["block_starts"], nasty.tokens])
    mean = np.average(blocks, weights=sizes)
    assert mean == pytest.approx(gate.values_N.astype(float).mean(), rel=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left beside it


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and one test of it is enough."""
    monkeypatch.setattr("palimpsest.inspect.figures._save", lambda *given: given[-1].touch())


@pytest.mark.usefixtures("undrawn")
def test_an_inspection_is_replaced_and_nothing_else(tmp_path: Path, nasty: Inspection) -> None:
    folder = tmp_path / "out"
    write_inspection([nasty], folder)
    (folder / "stale").touch()
    write_inspection([nasty], folder, title="again")
    assert not (folder / "stale").exists()
    assert "<title>again</title>" in (folder / "index.html").read_text(encoding="utf-8")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not an inspection's folder"):
        write_inspection([nasty], taken)
    assert names(taken) == {"mine.txt"}


def test_a_text_of_one_token_that_nothing_predicted(tmp_path: Path) -> None:
    alone = look("gpnm", "a", "alone", Letters(begin=False))
    page = write_inspection([alone], tmp_path / "out")
    about = json.loads((page.parent / "inspection.json").read_text(encoding="utf-8"))
    (model,) = about["models"]
    assert (model["tokens"], model["bits_per_token"], model["bits"]) == (1, None, 0.0)


def test_a_place_that_cannot_be_written(tmp_path: Path, nasty: Inspection) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made"):
        write_inspection([nasty], tmp_path / "file" / "out")


@pytest.mark.usefixtures("undrawn")
def test_a_failure_leaves_the_older_inspection(
    tmp_path: Path, nasty: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    write_inspection([nasty], folder, title="old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("palimpsest.inspect.run.write_figures", full)
    with pytest.raises(OSError, match="No space left"):
        write_inspection([nasty], folder, title="new")
    assert "<title>old</title>" in (folder / "index.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_texts_or_three_models_are_no_comparison(tmp_path: Path, nasty: Inspection) -> None:
    with pytest.raises(InputError, match="different texts"):
        write_inspection([nasty, look("gpn", "another", "x")], tmp_path / "out")
    with pytest.raises(InputError, match="3 inspections: a page shows one or 2"):
        write_inspection([nasty] * 3, tmp_path / "out")
    assert not (tmp_path / "out").exists()
