"""Results on disk: versioned, complete, never half-written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from palimpsest.errors import InputError
from palimpsest.evaluation import EvaluationResult, Protocol, results_table
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.record import load_result
from palimpsest.files import write_json
from palimpsest.provenance import software_versions


@pytest.fixture
def result() -> EvaluationResult:
    return EvaluationResult(
        model="toy",
        source="runs/a",
        parameters=1234,
        state_bytes=48,
        data="text.txt",
        data_sha256="ab" * 32,
        documents=1,
        tokenizer="bytes",
        tokenizer_fingerprint="cd" * 32,
        protocol=Protocol(bos="document").describe(),
        settings=Protocol(bos="document").to_dict(),
        tokens=100,
        bytes=200,
        loss=2.0,
        seed=None,
        dtype="float32",
        batch_size=8,
        device="cpu",
        threads=1,
        commit=None,
        versions=software_versions(),
        wall_seconds=0.5,
    )


def test_what_is_not_causal_is_labelled(result: EvaluationResult, tmp_path: Path) -> None:
    def shown(one: EvaluationResult) -> str:
        console = Console(width=200, file=io.StringIO())
        console.print(one.table(), results_table([one]))
        return console.file.getvalue()

    leaky = replace(result, causal=False)
    assert shown(leaky).count("not causal") == 2
    assert "not causal" not in shown(result)
    assert not EvaluationResult.load(leaky.save(tmp_path / "leaky.json")).causal
    path = result.save(tmp_path / "old.json")
    old = json.loads(path.read_text())
    del old["causal"], old["sha256"]  # written before these fields
    path.write_text(json.dumps(old))
    assert EvaluationResult.load(path) == result


def test_round_trip(result: EvaluationResult, tmp_path: Path) -> None:
    path = result.save(tmp_path / "new" / "result.json")
    assert EvaluationResult.load(path) == result
    data = json.loads(path.read_text())
    assert (data["schema"], data["schema_version"]) == ("palimpsest-evaluation", 1)
    assert data["perplexity"] == pytest.approx(7.389056)
    assert data["bits_per_byte"] == pytest.approx(2.0 * 100 / 200 / 0.693147, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "version 2, this palimpsest reads version 1"),
        ({"schema": "other"}, "is not an evaluation result"),
        ({"extra": 1}, r"unknown fields \['extra'\]"),
    ],
)
def test_a_foreign_result_is_refused(
    result: EvaluationResult, tmp_path: Path, change: dict, words: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**result.to_dict(), **change}))
    with pytest.raises(InputError, match=words):
        EvaluationResult.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"perplexity": 7.0}, r"perplexity=7\.0 contradicts the other fields, which give 7\.389"),
        ({"bits_per_byte": None}, r"bits_per_byte=None contradicts"),
        ({"loss": 2.5}, r"perplexity=7\.389\d* contradicts the other fields, which give 12\.18"),
        ({"tokens": 101}, "bits_per_byte=1.442"),
    ],
)
def test_figures_that_contradict_each_other_are_refused(
    result: EvaluationResult, tmp_path: Path, change: dict, words: str
) -> None:
    """Also with a correct sha256, and without one: the figures themselves do not agree."""
    path = tmp_path / "r.json"
    written = {k: v for k, v in {**result.to_dict(), **change}.items() if k != "sha256"}
    path.write_text(json.dumps(written))
    with pytest.raises(InputError, match=words) as caught:
        EvaluationResult.load(path)
    assert str(caught.value).startswith(f"{path}: ") and "evaluate again" in str(caught.value)
    write_json(path, written)
    with pytest.raises(InputError, match=words):
        load_result(path)


def test_a_missing_or_cut_file_is_refused(result: EvaluationResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        EvaluationResult.load(tmp_path / "r.json")
    path = result.save(tmp_path / "r.json")
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match="cut short"):
        EvaluationResult.load(path)


def test_tables_show_the_protocol(result: EvaluationResult) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(result.table())
    console.print(results_table([result, result]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("bits per byte", "1.4427", "windows of 512 tokens", "1,234", "not known"):
        assert part in shown


def test_progress_is_a_line_now_and_then_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr("palimpsest.evaluation.progress.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), width=100)
    with track("reading", 400, console=console) as advance:
        for _ in range(3):
            advance(100)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == ["reading: 200/400 tok (50 %), 33 tok/s, 6 s left"]


def test_progress_is_a_bar_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with track("reading", 400, console=console) as advance:
        advance(400)
    assert "reading" in console.file.getvalue()  # type: ignore[attr-defined]
