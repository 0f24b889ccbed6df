"""The window of a trained attention model on the command line: used by default, said, changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import palimpsest
from palimpsest.cli.main import main

SIZES = "--set model.d_model=8 --set model.n_layers=1 --set model.n_heads=2"
SLIDING = "sliding window of 16 tokens, the length it was trained on"


def train(folder: Path, text: Path, words: str) -> Path:
    common = f"--data {text} --steps 1 --batch-size 2 --seq-len 16 --set train.eval_every=0"
    name, _, more = words.partition(" ")
    options = f"train gpnm-tiny --set model.name={name} --set data.order=epoch {common} {more}"
    assert main([*options.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "attention"
    return train(folder, text, f"transformerpp {SIZES} --set model.vocab_size=259")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "learned"
    more = "--set model.max_seq_len=32 --set model.vocab_size=259"
    return train(folder, text, f"transformer {SIZES} {more}")


def test_a_run_knows_the_length_it_was_trained_on(attention: Path, learned: Path) -> None:
    for folder in (attention, learned):
        newest = next((folder / "checkpoints").iterdir())
        model = palimpsest.load(newest)
        assert (model.trained_length, model.window) == (16, 16)


def test_generate_reads_a_window_and_says_so(
    cli: Callable, attention: Path, tmp_path: Path
) -> None:
    words = ("generate", attention, "--prompt", "The state ", "--max-new-tokens", 40)
    code, out, err = cli(*words, "--save-session", tmp_path / "s")
    assert code == 0 and f"attention reads a {SLIDING}; --window changes it" in err
    assert cli(*words).out == out
    code, _, err = cli(*words, "--window", 0)
    assert code == 0 and "more than the 16 it was trained on" in err
    code, _, err = cli(*words, "--window", 20)
    assert code == 0 and "sliding window of 20 tokens;" in err
    code, _, err = cli(*words, "--window", -1)
    assert code == 2 and "--window -1: must be a number of tokens" in err
    again = ("generate", attention, "--session", tmp_path / "s", "--max-new-tokens", 5)
    assert cli(*again).code == 0
    code, _, err = cli(*again, "--window", 20)
    assert code == 2 and "--window 20: the session was begun with a window of 16" in err
    short = cli("generate", attention, "--prompt", "a", "--max-new-tokens", 4)
    assert "window" not in short.err


def test_generate_ends_at_the_longest_text_and_saves(
    cli: Callable, learned: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    words = ("generate", learned, "--prompt", "The ", "--save-session", path)
    code, out, err = cli(*words)
    assert code == 0 and out and f"session saved: {path}" in err
    assert "the text ends here: transformer holds at most 16 positions" in err
    assert "a window of 32 allows all of its learned positions" in err
    code, _, err = cli("generate", learned, "--session", path)
    assert code == 2 and "as long as transformer holds, 16 tokens" in err
    assert cli("generate", learned, "--session", path, "--window", 32).code == 0
    code, _, err = cli(*words, "--window", 33)
    assert code == 2 and "--window 33: the learned positions of transformer end at" in err


def test_evaluations_say_the_window(
    cli: Callable, attention: Path, run_folder: Path, text: Path, tmp_path: Path
) -> None:
    def protocol(*words: object) -> str:
        path = tmp_path / "r.json"
        code, _, err = cli("eval", *words, "--text", text, "--out", path)
        assert code == 0, err
        about = json.loads(path.read_text())
        return f"{about['protocol']} {about['settings']['window']}"

    carried = ("--protocol", "carried")
    assert f"; attention reads a {SLIDING} 16" in protocol(attention, *carried)
    assert "sliding window of 9 tokens 9" in protocol(attention, *carried, "--window", 9)
    assert "more than the 16 it was" in protocol(attention, *carried, "--window", 0)
    assert "sliding" not in protocol(attention, "--seq-len", 16)
    assert SLIDING in protocol(attention, "positions", "--seq-len", 32)
    assert protocol(run_folder, *carried).endswith("predict=next 0")
    code, _, err = cli("eval", run_folder, "--text", text, "--window", 9)
    assert code == 2 and "--window 9: gpnm" in err


def test_the_viewer_says_the_window(
    cli: Callable, attention: Path, learned: Path, text: Path, tmp_path: Path
) -> None:
    def reading(model: Path, *words: object) -> str:
        out = tmp_path / f"page-{model.name}-{'-'.join(map(str, words))}"
        code, printed, err = cli(
            "inspect", model, "--text", text, "--max-tokens", 60, "--out", out, *words
        )
        assert code == 0, err
        return printed

    assert f"carried through each document; attention reads a {SLIDING}." in reading(attention)
    assert "Windows of 16 tokens that overlap by half" in reading(learned)
    assert "Windows of 32 tokens that overlap by half" in reading(learned, "--window", 32)
    assert "more than the 16 it was trained on" in reading(attention, "--window", 0)
    assert "Windows of 24 tokens" in reading(attention, "--window", 24)
