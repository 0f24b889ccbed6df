"""The study of states runs, at sizes that say nothing, and goes on where it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import palimpsest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import state_study

    yield state_study
    for name in ("state_study", "state_study_plots", "state_recall", "common"):
        sys.modules.pop(name, None)
    torch.set_flush_denormal(False)


def test_the_models_are_of_one_size_and_have_heads(study: ModuleType) -> None:
    for name in study.HEADS:
        with torch.device("meta"):
            model = palimpsest.build(name, **study.sized(name, 300_000))
        assert abs(model.num_parameters() / 300_000 - 1) < 0.01, name
        assert model.config.n_layers == 1
        if name != "gpn":
            assert model.config.n_heads >= 8


def test_a_quick_study(
    study: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "In the beginning was the word, and the word was with a memory. " * 20
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "valid.txt").write_text(text[:700])
    out, runs = tmp_path / "study.json", tmp_path / "runs"
    words = ["state_study", "run", "--quick", "--models", "gpnm", "transformerpp"]
    words += ["--train", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "valid.txt")]
    words += ["--out", str(out), "--runs", str(runs)]

    def call(*more: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        study.main()
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    first = call("--seeds", "1", "--steps", "2")
    assert [(r["model"], r["seed"]) for r in first["runs"]] == [("gpnm", 1), ("transformerpp", 1)]
    printed = capsys.readouterr().out
    assert "gpnm, seed 1:" in printed and "mean state clamped before decoding" in printed
    points = first["runs"][0]["points"]
    assert [p["step"] for p in points] == [0, 2]
    assert points[-1]["cosine_to_final"] == pytest.approx(1.0)
    assert len(points[0]["half_lives"]) == 4 and "half_lives" not in first["runs"][1]["points"][0]
    assert (
        palimpsest.load(runs / "gpnm-100000-1" / "step-2").num_parameters()
        == (first["runs"][0]["parameters"])
    )

    monkeypatch.setattr(study, "train", lambda *args: pytest.fail("a finished run is done again"))
    assert call("--seeds", "1", "--steps", "2") == first
    with pytest.raises(SystemExit, match="was made with other settings"):
        call("--seeds", "1", "--steps", "3")

    monkeypatch.setattr(
        sys, "argv", ["state_study", "plot", "--out", str(out), "--figures", str(tmp_path)]
    )
    study.main()
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "state-half-lives.png",
        "state-mean.png",
        "state-interventions.png",
    }


def test_a_show_without_a_run(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["state_study", "show", "--out", "nothing.json"])
    with pytest.raises(SystemExit):
        study.main()
    assert "is not there; do a run first" in capsys.readouterr().err


def test_a_quick_study_of_recall(
    study: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import state_recall

    monkeypatch.setattr(state_recall, "CASES", state_recall.CASES[:1])
    out = tmp_path / "recall.json"
    words = ["state_recall", "run", "--quick", "--seeds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    state_recall.main()
    (run,) = json.loads(out.read_text())["runs"]
    assert (run["model"], run["task"], run["steps"]) == ("gated-hybrid", "recall-4pairs-64", 2)
    assert "retrieval cut" in capsys.readouterr().out
    monkeypatch.setattr(state_recall, "train", lambda *args: pytest.fail("done again"))
    state_recall.main()
    monkeypatch.setattr(sys, "argv", [word for word in words if word != "--quick"])
    with pytest.raises(SystemExit, match="was made with --quick"):
        state_recall.main()
