"""``palimpsest eval MODEL lambada | recall | positions | throughput``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.cli.main import EVALUATIONS, main
from palimpsest.evaluation import (
    LambadaResult,
    PositionsResult,
    RecallResult,
    ThroughputResult,
    load_result,
)


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a recall task with fields of its own."""
    folder = tmp_path_factory.mktemp("runs") / "recall"
    words = (
        "train --task recall --steps 1 --batch-size 2 --seq-len 24 --set train.eval_batches=1 "
        "--set data.task_fields.pairs=[1,3] --set data.task_fields.keys=6"
    )
    assert main([*words.split(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_help(cli: Callable, kind: str) -> None:
    code, out, _ = cli("eval", "MODEL", kind, "--help")
    assert code == 0
    assert f"MODEL {kind}" in out and "\npalimpsest eval " in out
    assert f"MODEL {kind} --help" in cli("eval", "--help").out


def test_an_unknown_evaluation_lists_those_that_are(cli: Callable, run_folder: Path) -> None:
    code, out, err = cli("eval", run_folder, "lambda", "--data", "x")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "did you mean 'lambada'?" in err and "recall, positions, throughput" in err


def test_lambada(cli: Callable, run_folder: Path, model_folder: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "l.jsonl", tmp_path / "r.json"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("a b c", "the old man")))
    code, shown, _ = cli("eval", run_folder, "lambada", "--data", data, "--out", out)
    assert code == 0 and "whole word" in shown and "not the known file" in shown
    result = LambadaResult.load(out)
    assert (result.examples, result.seed, result.source) == (2, 5, str(run_folder))
    for words, message in (
        ((run_folder, "lambada", "--data", tmp_path / "none"), "4aa8d02cd17c719165fc8a7887fddd64"),
        ((model_folder, "lambada", "--data", data), "no tokenizer is saved with this model"),
        ((run_folder, "lambada", "--data", data, "--out", tmp_path), "is a folder"),
    ):
        code, _, err = cli("eval", *words)
        assert code == 2 and message in err and err.count("\n") == 1


def test_positions(cli: Callable, run_folder: Path, text: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "r.json", tmp_path / "p.png"
    words = ("--text", text, "--seq-len", 32, "--out", out, "--plot", plot)
    code, shown, _ = cli("eval", run_folder, "positions", *words)
    assert code == 0 and "17–32" in shown
    assert PositionsResult.load(out).settings["predict"] == "next"
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_recall(cli: Callable, recall_run: Path, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    code, shown, _ = cli("eval", recall_run, "recall", "--examples", 4, "--out", out)
    assert code == 0 and "recall-3pairs-24" in shown
    tasks = RecallResult.load(out).settings["tasks"]
    assert [(t["pairs"], t["keys"], t["length"]) for t in tasks] == [(1, 6, 24), (3, 6, 24)]
    words = ("--pairs", 2, 4, "--length", 30, "--set", "distractors=1", "--examples", 3)
    assert cli("eval", recall_run, "recall", *words, "--out", out).code == 0
    tasks = RecallResult.load(out).settings["tasks"]
    assert [(t["pairs"], t["length"], t["distractors"]) for t in tasks] == [(2, 30, 1), (4, 30, 1)]
    for words, message in (
        ((run_folder, "recall"), "was trained on text (bytes)"),
        ((recall_run, "recall", "--task", "mqar"), "the tasks have a vocabulary of 256"),
        ((recall_run, "recall", "--set", "colour=3"), "task_fields.colour=3"),
        ((recall_run, "recall", "--examples-seed", 0), "the model was trained with seed 0"),
    ):
        code, _, err = cli("eval", *words)
        assert code == 2 and message in err and err.count("\n") == 1, err


def test_throughput(cli: Callable, run_folder: Path, tmp_path: Path) -> None:
    small = ("--lengths", 8, "--batches", 2, "--rounds", 1, "--decode-tokens", 2, "--phases")
    out = tmp_path / "one.json"
    code, shown, _ = cli("eval", run_folder, "throughput", *small, "prefill", "--out", out)
    assert code == 0 and "prefill" in shown and "decode" not in shown.split("phase")[-1]
    assert ThroughputResult.load(out).results[0].tokens == 16
    words = (*small, "decode", "--beside", "transformer-175k", "--out", tmp_path / "both")
    assert cli("eval", run_folder, "throughput", *words).code == 0
    files = sorted((tmp_path / "both").iterdir())
    assert [f.name for f in files] == ["1-tiny.json", "2-transformer-175k.json"]
    assert load_result(files[1]).model == "transformer"
    code, _, err = cli("eval", "gpnm-tiny", "throughput", "--beside", "gpnm-tiny")
    assert code == 2 and "name each model once" in err
