"""The benchmarks of the Triple-Latent family run, at sizes that say nothing about speed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from palimpsest import force_backend
from palimpsest.models import LanguageModel
from palimpsest.tasks import RecallTask

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a benchmark as it imports its neighbours; threads and flushing as before after it."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names: list[str] = ["common"]

    def load(name: str) -> ModuleType:
        names.append(name)
        return importlib.import_module(name)

    with force_backend("reference"):
        yield load
    for name in names:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def call(module: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments, "--out", str(out)])
    module.main()
    return json.loads(out.read_text())


TINY = {"d_model": 8, "n_layers": 2, "n_heads": 2}


def test_speed(load, tmp_path, monkeypatch, capsys):
    speed = load("triple_latent")
    monkeypatch.setattr(speed, "SIZES", {"vocab_size": 11, **TINY})
    short = ("--batch", "2", "--rounds", "1", "--threads", "1")
    picture = tmp_path / "speed.png"
    arguments = ("ratios", "--lengths", "4", "64", *short, "--plot", str(picture))
    rows = call(speed, tmp_path / "a.json", monkeypatch, *arguments)["rows"]
    assert len(rows) == 2 * 2 * 6 and picture.stat().st_size > 0
    assert all(r["ratio"]["median"] == 1.0 for r in rows if r["model"] == "transformer")
    assert next(r for r in rows if r["model"] == "gated-hybrid")["target"] is None
    arguments = ("decode", "--positions", "3", "7", "--tokens", "2", *short)
    rows = call(speed, tmp_path / "b.json", monkeypatch, *arguments)["rows"]
    state = {(r["model"], r["position"]): r["state_bytes"] for r in rows}
    assert state["triple-latent", 3] == state["triple-latent", 7]
    assert state["transformer", 3] < state["transformer", 7]
    arguments = ("flat", "--long-lengths", "4", "8", *short)
    rows = call(speed, tmp_path / "c.json", monkeypatch, *arguments)["rows"]
    assert [r["length"] for r in rows] == [4, 8, 4, 8]
    assert speed.memory_of("triple-latent", 1, 8, 0.0)["peak_mib"] > 0
    assert "≤ 1.3" in capsys.readouterr().out


def test_recall_study_goes_on_where_it_stopped(load, tmp_path, monkeypatch):
    recall = load("recall_study")
    task = RecallTask(length=16, pairs=2)
    monkeypatch.setattr(recall, "SIZES", TINY)
    monkeypatch.setattr(recall, "EVALUATION_BATCHES", 1)

    def cases() -> list[Any]:
        given: dict[str, Any] = {"task": task, "steps": 2, "batch": 2, "evaluate_every": 1}
        return [
            recall.gated("seeds", "stable", **given, tests={"again": task}),
            recall.gated("seeds", "published", fields={"init": "published"}, **given),
            recall.gated("ablation", "not asked for"),
        ]

    monkeypatch.setattr(recall, "cases", cases)
    out, picture = tmp_path / "a.json", tmp_path / "a.png"
    first = call(recall, out, monkeypatch, "seeds", "--seeds", "1", "--threads", "1")
    arguments = ("seeds", "--seeds", "2", "--threads", "1", "--plot", str(picture))
    both = call(recall, out, monkeypatch, *arguments)
    assert [c["name"] for c in both["cases"]] == ["stable", "published"]
    assert picture.stat().st_size > 0
    for one, two in zip(first["cases"], both["cases"], strict=True):
        assert two["runs"][0] == one["runs"][0] and len(two["runs"]) == 2
        assert list(two["runs"][1]["accuracy"]) == ["0", "1", "2"]
    stable, published = both["cases"]
    assert stable["runs"][0]["parameters"] == published["runs"][0]["parameters"] + 1
    assert stable["runs"][0]["temperatures"] and not published["runs"][0]["temperatures"]
    assert 0.0 <= stable["runs"][0]["tests"]["again"] <= 1.0


def test_every_case_of_the_recall_study_builds(load):
    recall = load("recall_study")
    names = [case.name for case in recall.cases()]
    assert len(set(names)) == len(names)
    for case in recall.cases():
        with torch.device("meta"):
            fields = {**recall.SIZES, **case.fields}
            model = recall.palimpsest.build(case.model, vocab_size=case.task.vocab_size, **fields)
        assert model.max_length is None or model.max_length >= case.task.length


def test_wikitext_rows(load, tmp_path, monkeypatch):
    rows = load("wikitext_rows")
    for row in rows.ROWS:
        assert rows.build(row).num_parameters() == (row.parameters or 214_940)
    monkeypatch.setattr(rows, "build", lambda row: build(rows, row))
    monkeypatch.setattr(rows, "LENGTH", 8)
    text = tmp_path / "text.raw"
    text.write_text(" = A title = \n\nOne line of text.\nAnother one.\n", encoding="utf-8")
    arguments = ["--train", str(text), "--valid", str(text), "--steps", "1", "--threads", "1"]
    arguments += ["--rows", "hybrid S8,", "transformer"]
    first = call(rows, tmp_path / "a.json", monkeypatch, *arguments, "--seeds", "7")
    both = call(rows, tmp_path / "a.json", monkeypatch, *arguments, "--seeds", "7", "19")
    assert both["runs"][: len(first["runs"])] == first["runs"]
    assert len(both["runs"]) == 2 * len(first["runs"]) > 2
    assert {run["causal"] for run in both["runs"]} == {True, False}
    assert all(4 < run["bits_per_byte"]["all"] < 12 for run in both["runs"])
    with pytest.raises(SystemExit, match="another protocol"):
        text.write_text("Other text, long enough for windows.\n", encoding="utf-8")
        call(rows, tmp_path / "a.json", monkeypatch, *arguments, "--seeds", "7")


def build(rows: ModuleType, row: Any) -> LanguageModel:
    """A row's model at a tiny size."""
    fields = {"vocab_size": 259, **row.fields, **TINY, "max_seq_len": 8}
    if row.model != "transformer":
        fields["state_dim"] = 3
    with pytest.warns(UserWarning) if not row.causal else force_backend("reference"):
        return rows.palimpsest.build(row.model, **fields)
