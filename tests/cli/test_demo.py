"""``palimpsest demo``: its text, its yardsticks, its report, and what it leaves alone."""

from __future__ import annotations

import bz2
import dataclasses
import hashlib
import io
import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palimpsest.demo import plot, run, topics
from palimpsest.demo.yardsticks import measure_compressors
from palimpsest.errors import InputError, PalimpsestError
from palimpsest.generation import Session
from palimpsest.text import ByteTokenizer
from tests.cli.conftest import Outcome, main

MODELS = ("gpnm-tiny", "gpn-1m", "transformerpp-1m")  # one of each kind
SIZE = dataclasses.replace(run.QUICK, steps=4, batch_size=4, seq_len=24, eval_every=2)


def few_topics() -> dict[str, str]:
    """Less of the text, for speed."""
    given = topics.documentation_topics()
    return {name: given[name][:3000] for name in ("import", "objects", "calls", "types")}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """What the demo leaves and prints, at a size of seconds."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as streams:
        out, err = io.StringIO(), io.StringIO()
        streams.setattr("sys.stdout", out)
        streams.setattr("sys.stderr", err)
        patch.setattr(run, "QUICK", SIZE)
        patch.setattr(run, "MODELS", MODELS)
        patch.setattr(run, "documentation_topics", few_topics)
        code = main(["demo", "--quick", "--out", str(folder), "--seed", "3"])
        outcome = Outcome(code, out.getvalue(), err.getvalue())
    return folder, outcome


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


# -- the text ---------------------------------------------------------------------------------


def test_no_paragraph_is_in_both_parts() -> None:
    training, held_out = topics.split_topics(topics.documentation_topics())
    assert set(held_out) == set(topics.HELD_OUT)
    assert not set(training) & set(held_out)
    parts = [
        {p.strip("\n") for text in part.values() for p in text.split("\n\n") if p.strip()}
        for part in (training, held_out)
    ]
    assert parts[0] and parts[1] and not parts[0] & parts[1]


def test_the_split_follows_its_rule() -> None:
    given = {
        "import": "one\n\ntwo\n\nthree, and the longest\n",
        "b": "two\n\nof b alone\n",  # without "two", most is left
        "c": "one\n\nthree, and the longest\n",  # nothing is left
        "a": "one\n\ntwo\n\n!\n",  # too little is left
    }
    training, held_out = topics.split_topics(given)
    assert held_out == {"import": given["import"]}
    assert training == {"b": "of b alone\n"}
    assert topics.split_topics(dict(reversed(given.items()))) == (training, held_out)
    with pytest.raises(InputError, match="needs both kinds"):
        topics.split_topics({"import": "only this\n"})


# -- the yardsticks and the figure ------------------------------------------------------------


def test_compressors_alone_and_after_the_training_text() -> None:
    training = b"the state is rewritten at every token, and nothing else is kept. " * 30
    held_out = bytes(reversed(range(200)))
    found = {y.name: y for y in measure_compressors(training, held_out)}
    assert set(found) == {"gzip", "bzip2", "xz"}
    assert found["bzip2"].bits_alone == 8 * len(bz2.compress(held_out, 9)) / 200
    again = {y.name: y for y in measure_compressors(training + held_out, held_out)}
    for name, yardstick in again.items():
        assert yardstick.bits_after_training < found[name].bits_after_training


def test_labels_keep_their_distance_and_their_order() -> None:
    heights = [0.5, 0.52, 0.1, 0.51, 0.9]
    places = plot.spread(heights, 0.05)
    ordered = sorted(zip(heights, places, strict=True))
    gaps = [b[1] - a[1] for a, b in itertools.pairwise(ordered)]
    assert min(gaps) >= 0.05 - 1e-9
    assert places[2] == 0.1 and places[4] == 0.9
    assert places[3] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False)],
)
def test_bf16_only_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert run.has_bf16_instructions() is expected
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert run.has_bf16_instructions() is False


# -- the whole --------------------------------------------------------------------------------


def test_everything_is_written_and_said(demo: tuple[Path, Outcome]) -> None:
    folder, (code, out, err) = demo
    assert code == 0, err
    names = {"demo.json", "text", *MODELS, "results.json", "results.md", "loss.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    results = results_of(folder)
    for part in ("training", "held_out"):
        about = results["text"][part]
        data = (folder / about["file"]).read_bytes()
        assert about["bytes"] == len(data)
        assert about["sha256"] == hashlib.sha256(data).hexdigest()
        assert about["sha256"] in out and f"{len(data):,} bytes" in out
    written = (folder / "results.md").read_text(encoding="utf-8")
    for text in (out, written):
        for said in (*MODELS, "gzip", "bzip2", "xz", "seed 3", results["precision"], "commit"):
            assert said in text
        for model in results["models"]:
            assert f"{model['parameters']:,}" in text
            for figures in model["held_out"].values():
                assert f"{figures['bits_per_byte']:.3f}" in text
        assert "Except transformerpp-1m: its state grows" in text
    for command in ("generate", "eval", "train --resume", "train gpnm-1m --data"):
        assert f"palimpsest {command}" in out


def test_all_models_get_the_same(demo: tuple[Path, Outcome]) -> None:
    models = results_of(demo[0])["models"]
    assert [m["name"] for m in models] == list(MODELS)
    for model in models:
        assert model["train_tokens"] == SIZE.steps * SIZE.batch_size * SIZE.seq_len
        about = model["held_out"]
        grows = model["name"].startswith("transformer")
        assert model["state_grows"] is grows and ("carried" in about) is not grows
        recipe = json.loads((demo[0] / model["name"] / "run.json").read_text())["recipe"]
        assert recipe["data"]["order"] == ("epoch" if grows else "stream")
        assert about["windows"]["data_sha256"] == results_of(demo[0])["text"]["held_out"]["sha256"]
        assert "state reset" in about["windows"]["protocol"]
        for figures in about.values():
            assert 1 < figures["bits_per_byte"] < 9
            assert figures["bytes"] == about["windows"]["bytes"]
        if not grows:
            assert "state carried" in about["carried"]["protocol"]


def test_the_full_demo_compares_equal_sizes() -> None:
    import palimpsest

    first, *others = (palimpsest.build(name).num_parameters() for name in run.MODELS)
    assert len(others) == 2
    assert all(abs(first - other) < 0.002 * first for other in others)


def test_samples_can_be_made_again(demo: tuple[Path, Outcome]) -> None:
    from palimpsest.cli.model_source import find_model

    for model in results_of(demo[0])["models"]:
        loaded = find_model(str(demo[0] / model["name"])).load(torch.device("cpu"))
        session = Session(loaded, ByteTokenizer(), model["sample"]["seed"])
        session.feed(model["sample"]["prompt"])
        text = "".join(session.generate(SIZE.sample_tokens, run.SAMPLING)) + session.flush()
        assert text == model["sample"]["text"]


# -- folders ----------------------------------------------------------------------------------


def test_only_its_own_folder_is_replaced(cli: Callable, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    code, out, err = cli("demo", "--quick", "--out", tmp_path)
    assert (code, out) == (2, "") and "was not made by palimpsest demo" in err
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    file = tmp_path / "thesis.txt"
    assert cli("demo", "--out", file).code == 2 and file.read_text() == "years of work"


def test_an_older_demo_goes_and_what_is_not_the_demos_stays(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    run.prepare_folder(folder)
    (folder / "text").mkdir()
    (folder / "text" / "training.txt").write_text("old")
    (folder / "results.json").write_text("{}")
    (folder / "my.session").write_text("mine")
    run.prepare_folder(folder)
    assert {p.name for p in folder.iterdir()} == {"demo.json", "my.session"}
    (folder / "demo.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="was not made by palimpsest demo"):
        run.prepare_folder(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    run.prepare_folder(empty)


# -- what can go wrong ------------------------------------------------------------------------


def test_a_signal_ends_it_with_the_shells_code(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stopped:
        stopped_by = signal.SIGINT

    monkeypatch.setattr(run, "train", lambda *_: Stopped())
    code, out, _ = cli("demo", "--quick", "--out", tmp_path / "demo")
    assert code == 130 and "the demo was stopped" in out
    assert not (tmp_path / "demo" / "results.json").exists()


def test_a_python_without_the_text(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    code, out, err = cli("demo", "--quick", "--out", tmp_path / "demo")
    assert (code, out) == (2, "") and "--data FILE" in err and err.count("\n") == 1
    assert not (tmp_path / "demo").exists()


def test_without_matplotlib_the_rest_is_there(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object) -> None:
        raise PalimpsestError("a plot needs matplotlib: pip install 'palimpsest-lm[plot]'")

    tiny = dataclasses.replace(SIZE, steps=1, eval_every=1, sample_tokens=2)
    monkeypatch.setattr(run, "plot_demo", missing)
    monkeypatch.setattr(run, "QUICK", tiny)
    monkeypatch.setattr(run, "MODELS", MODELS[:1])
    monkeypatch.setattr(run, "documentation_topics", few_topics)
    code, out, err = cli("demo", "--quick", "--out", tmp_path / "demo", "--precision", "fp32")
    assert code == 0, err
    assert "palimpsest-lm[plot]" in out and "loss.png" not in out
    assert "loss.png" not in (tmp_path / "demo" / "results.md").read_text()
    assert results_of(tmp_path / "demo")["precision"] == "fp32"
