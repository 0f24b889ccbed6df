"""``palimpsest data prepare``, pipes on the command line, and singular and plural in messages."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palimpsest.cli import data_prepare
from palimpsest.errors import counted
from palimpsest.text import ByteTokenizer, open_shards


@contextmanager
def fifo(folder: Path, data: bytes) -> Iterator[Path]:
    path = folder / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    yield path
    writer.join()
    path.unlink()


def test_prepare_makes_what_training_reads(
    cli: Callable, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_prepare, "PROGRESS_SECONDS", 0.0)
    words = ("data", "prepare", text, "--tokenizer", "bytes", "--out", tmp_path / "shards")
    outcome = cli(*words)
    size = len(text.read_bytes())
    assert outcome.code == 0
    assert f"1 document, {size + 2:,} tokens for {size:,} bytes of text" in outcome.out
    assert f"tokenising: {size:,} bytes of text so far" in outcome.err
    assert open_shards(tmp_path / "shards", tokenizer=ByteTokenizer()).num_bytes == size
    again = cli(*words)
    assert again.code == 2 and "shards: exists already; choose another folder" in again.err
    train = "train gpnm-tiny --steps 1 --batch-size 2 --seq-len 16 --set data.validation_fraction=0"
    outcome = cli(*train.split(), "--data", tmp_path / "shards", "--out", tmp_path / "run")
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data"], "data: palimpsest data prepare FILE"),
        (["data", "make"], "data 'make': no such command; palimpsest data prepare FILE"),
        (["data", "prepare", "--tokenizer", "bytes", "--out", "x"], "name at least one file"),
        (["data", "prepare", "no", "--tokenizer", "bytes", "--out", "x"], "no: no such file"),
        (["data", "prepare", "no", "--tokenizer", "words", "--out", "x"], "words: no such tok"),
    ],
)
def test_mistakes_are_one_line(
    cli: Callable, words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli(*words)
    assert outcome.code == 2 and line in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_training_reads_a_pipe_and_says_why_it_cannot_resume(cli: Callable, tmp_path: Path) -> None:
    train = "train gpnm-tiny --steps 1 --batch-size 2 --seq-len 16"
    with fifo(tmp_path, b"some text of the pipe\n" * 40) as path:
        outcome = cli(*train.split(), "--data", path, "--out", tmp_path / "run")
    assert outcome.code == 0
    outcome = cli("train", "--resume", tmp_path / "run", "--steps", 2)
    assert outcome.code == 2 and "pipe: no such file" in outcome.err


@pytest.mark.parametrize(
    "words", ["eval RUN --text", "generate RUN --max-new-tokens 1 --prompt-file"]
)
def test_commands_read_a_pipe(cli: Callable, tmp_path: Path, run_folder: Path, words: str) -> None:
    with fifo(tmp_path, b"a few words") as path:
        assert cli(*words.replace("RUN", str(run_folder)).split(), path).code == 0


def test_lambada_reads_a_pipe_once(cli: Callable, tmp_path: Path, run_folder: Path) -> None:
    with fifo(tmp_path, b'{"text": "one two three"}\n') as path:
        outcome = cli("eval", run_folder, "lambada", "--data", path)
    assert outcome.code == 0 and "1 example," in outcome.out


def test_what_reads_its_text_several_times_refuses_a_pipe(cli: Callable, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    words = ("--train", path, "--valid", path, "--sizes", "0.3M", "--out", tmp_path / "x")
    outcome = cli("compare", "gpnm", "transformerpp", *words)
    assert outcome.code == 2 and "is a pipe, which can be read only once" in outcome.err


@pytest.mark.parametrize("data", [b"", b"\n", b"x"])
def test_texts_too_short_to_train_on(cli: Callable, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    words = ["train", "gpnm-tiny", "--steps", "1", "--seq-len", "16", "--out"]
    outcome = cli(*words, tmp_path / "run", "--data", tmp_path / "a.txt")
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "a.txt" in outcome.err


def test_counted() -> None:
    assert [counted(n, "document") for n in (0, 1, 2000)] == [
        "0 documents",
        "1 document",
        "2,000 documents",
    ]


def test_a_single_document_is_singular(cli: Callable, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    outcome = cli("eval", run_folder, "--text", tmp_path / "a.txt")
    assert "(1 document, sha256" in " ".join(outcome.out.replace("│", " ").split())
