"""Standard streams that break, or that lack characters, cost no work in any command."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from palimpsest.cli.main import main
from palimpsest.streams import SafeStream, plain
from palimpsest.training import load_recipe, train

ENCODINGS = ("ascii", "latin-1", "cp437", "cp1251", "cp932")


class Broken(io.TextIOBase):
    """A stream whose writes fail, after a number of them that do not."""

    encoding = "utf-8"

    def __init__(self, number: int, after: int = 0, terminal: bool = False) -> None:
        self.number, self.left, self.terminal = number, after, terminal

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        return len(text)

    def flush(self) -> None:
        if self.left <= 0:
            raise OSError(self.number, os.strerror(self.number))

    def isatty(self) -> bool:
        return self.terminal


def encoded(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


def closed() -> TextIO:
    stream = io.StringIO()
    stream.close()
    return stream


BROKEN = {
    "full": lambda: Broken(errno.ENOSPC),
    "gone": lambda: Broken(errno.EPIPE, after=1),
    "missing": lambda: None,
    "closed": closed,
    "terminal": lambda: Broken(errno.EIO, terminal=True),
}


@pytest.fixture
def commands(
    run_folder: Path, recall_run: Path, text: Path, tmp_path: Path
) -> dict[str, tuple[str, str]]:
    """Every command that ends within a second or so, and the file that it must leave."""
    out = tmp_path / "out"
    lambada = tmp_path / "l.jsonl"
    lambada.write_text(json.dumps({"text": "the old man"}) + "\n")
    small = "--batch 1 --length 8 --rounds 1"
    return {
        "help": ("--help", ""),
        "train-help": ("train --help", ""),
        "eval-help": ("eval M lambada --help", ""),
        "info": ("info", ""),
        "info-run": (f"info {run_folder}", ""),
        "info-json": ("info gpnm-tiny --json", ""),
        "match": ("match --params 300k gpnm gpn", ""),
        "reproduce": ("reproduce", ""),
        "train": (
            f"train gpnm-tiny --data {text} --steps 2 --batch-size 2 --seq-len 16 --out {out}",
            "checkpoints/step-00000002/model.safetensors",
        ),
        "eval": (f"eval {run_folder} --text {text} --max-windows 1 --out {out}/r.json", "r.json"),
        "lambada": (f"eval {run_folder} lambada --data {lambada} --out {out}/r.json", "r.json"),
        "positions": (
            f"eval {run_folder} positions --text {text} --max-windows 2 --seq-len 16 "
            f"--out {out}/r.json --plot {out}/p.png",
            "p.png",
        ),
        "recall": (f"eval {recall_run} recall --examples 2 --out {out}/r.json", "r.json"),
        "throughput": (
            f"eval {run_folder} throughput --lengths 8 --batches 1 --rounds 1 --phases prefill "
            f"--out {out}/r.json",
            "r.json",
        ),
        "bench": (f"bench gpnm-tiny {small} --out {out}/r.json", "r.json"),
        "generate": (f"generate {run_folder} --prompt a --max-new-tokens 9", ""),
        "session": (
            f"generate {run_folder} --prompt a --max-new-tokens 9 --save-session {out}/s",
            "s",
        ),
        "samples": (f"generate {run_folder} --prompt a --max-new-tokens 3 --num-samples 2", ""),
        "inspect": (
            f"inspect {run_folder} --text {text} --max-tokens 40 --out {out}",
            "index.html",
        ),
    }


NAMES = (
    "help", "train-help", "eval-help", "info", "info-run", "info-json", "match", "reproduce",
    "train", "eval", "lambada", "positions", "recall", "throughput", "bench", "generate",
    "session", "samples", "inspect",
)  # fmt: skip


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.inspect.figures._save", lambda *given: given[-1].touch())
    monkeypatch.setattr(
        "palimpsest.cli.eval_positions.plot_positions", lambda _, path: path.touch()
    )


def run(words: str, out: TextIO | None, err: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = main(words.split())
        assert sys.stdout is out and sys.stderr is err
    return code


def test_every_command_is_tried(commands: dict[str, tuple[str, str]]) -> None:
    assert set(NAMES) == set(commands)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", NAMES)
def test_a_broken_output_costs_no_work(
    name: str,
    commands: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both streams fail; the file is there, and the code says that output is missing."""
    words, left = commands[name]
    code = run(words, Broken(errno.ENOSPC), Broken(errno.ENOSPC), monkeypatch)
    assert code == 1
    assert not left or (tmp_path / "out" / left).is_file()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", NAMES)
def test_an_encoding_with_few_characters(
    name: str, commands: dict[str, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = encoded("ascii"), encoded("ascii")
    assert run(commands[name][0], out, err, monkeypatch) == 0
    out.flush()
    assert out.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_help_and_tables_in_every_encoding(
    encoding: str, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ("--help", "train --help", f"info {run_folder}", "match --params 300k gpnm gpn"):
        out, err = encoded(encoding), encoded(encoding)
        assert run(words, out, err, monkeypatch) == 0
        out.flush()
        shown = out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        assert len(shown) > 200 and shown.count("?") < 20


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_ends_with_its_checkpoint_whatever_happens_to_stderr(
    how: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python too, where nothing wraps the streams."""
    monkeypatch.setattr("palimpsest.training.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("palimpsest.training.progress.BAR_SECONDS", 0.0)
    changes = {"data.train": [str(text)], "train.steps": 4, "train.batch_size": 2}
    changes |= {"data.seq_len": 16, "train.eval_every": 2}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", BROKEN[how]())
        result = train(load_recipe("gpnm-tiny", changes), tmp_path / "run")
    assert result.finished
    assert (result.folder / "checkpoints" / "step-00000004").is_dir()


@pytest.mark.parametrize("how", BROKEN)
def test_evaluation_from_python_survives_stderr(
    how: str, run_folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palimpsest.evaluation.progress import track

    monkeypatch.setattr("palimpsest.evaluation.progress.PLAIN_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", BROKEN[how]())
        with track("reading", 3) as advance:
            for _ in range(3):
                advance(1)


def test_the_reason_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    assert run("info", Broken(errno.ENOSPC), err, monkeypatch) == 1
    line = "palimpsest: standard output could not be written (No space left on device); "
    assert err.getvalue() == line + "everything else was finished\n"
    err = io.StringIO()
    assert run("info", Broken(errno.EPIPE, after=1), err, monkeypatch) == 1
    assert err.getvalue() == ""  # the reader has left: as with any other program
    assert run("info", None, None, monkeypatch) == 0  # closed on purpose


def test_without_a_reader_generate_stops_unless_it_saves(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"generate {run_folder} --prompt a --max-new-tokens 12 --save-session {tmp_path}"
    assert run(f"{words}/a", Broken(errno.EPIPE), io.StringIO(), monkeypatch) == 1
    assert run(f"{words}/b", io.StringIO(), io.StringIO(), monkeypatch) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    endless = f"generate {run_folder} --prompt a --max-new-tokens 100000000"
    assert run(endless, Broken(errno.EPIPE), io.StringIO(), monkeypatch) == 1


# -- the stream itself --------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_characters_are_replaced(encoding: str) -> None:
    under = encoded(encoding)
    stream = SafeStream(under)
    text = "plain × … – 日本 😀 é \udce9 \n"
    assert stream.write(text) == len(text)
    stream.flush()
    shown = under.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert shown.startswith("plain ") and "\\xe9" in shown and shown.endswith("\n")
    assert stream.failure is None
    if encoding == "ascii":
        assert shown == "plain x ... - ?? ? ? \\xe9 \n"


def test_a_stream_that_failed_gets_nothing_more() -> None:
    under = Broken(errno.EPIPE, after=1)
    stream = SafeStream(under)
    for _ in range(3):
        assert stream.write("ab") == 2
    assert isinstance(stream.failure, BrokenPipeError) and under.left == -1


def test_control_characters_are_escaped() -> None:
    assert plain("a\x1b[31mb\x07\u202ec\udce9d\ne") == "a\\x1b[31mb\\x07\\u202ec\\xe9d\ne"
    assert plain("Déjà vu 日本 😀") == "Déjà vu 日本 😀"


def test_file_names_reach_the_terminal_escaped(
    run_folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "x\x1b[2Jy"
    copy = tmp_path / f"{evil}.txt"
    copy.write_bytes(text.read_bytes())
    words = (
        ["info", evil],
        ["eval", evil, "--text", evil],
        ["eval", str(run_folder), "--text", str(tmp_path / evil)],
        ["eval", str(run_folder), "--text", str(copy), "--out", str(tmp_path / f"{evil}.json")],
        ["generate", str(run_folder), "--prompt", "a", "--save-session", str(tmp_path / evil)],
        [evil],
    )
    for case in words:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            main(case)
        shown = out.getvalue() + err.getvalue()
        assert "\x1b" not in shown, case
        assert "\\x1b" in shown


# -- as a program -------------------------------------------------------------------------------


@pytest.fixture
def program() -> Iterator[list[str]]:
    yield [sys.executable, "-m", "palimpsest"]


def shell(command: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell, where "$@" is the program and its words."""
    given = [sys.executable, "-m", "palimpsest", *map(str, words)]
    return subprocess.run(
        ["sh", "-c", command, "sh", *given],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


posix = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@posix
def test_train_in_a_shell_with_both_streams_broken(text: Path, tmp_path: Path) -> None:
    words = f"train gpnm-tiny --data {text} --steps 3 --batch-size 2 --seq-len 16 --out"
    done = shell('"$@" >/dev/full 2>&-; echo "code $?"', *words.split(), tmp_path / "a")
    assert done.stdout == "code 1\n", done
    assert (tmp_path / "a" / "checkpoints" / "step-00000003").is_dir()


@posix
def test_an_evaluation_whose_reader_leaves(run_folder: Path, text: Path, tmp_path: Path) -> None:
    words = f"eval {run_folder} --text {text} --max-windows 1 --out {tmp_path}/r.json"
    done = shell('{ "$@"; echo "code $?" >&2; } | true', *words.split(), PYTHONIOENCODING="cp932")
    assert done.stderr == "code 1\n"  # nothing of the interpreter's own
    assert (tmp_path / "r.json").is_file()


HOW = {
    ">/dev/full": 1,
    "2>/dev/full": 0,
    ">&-": 0,
    "2>&-": 0,
    ">&- 2>&-": 0,
    "2>&1 | head -1": 0,
    "| true": 0,
}
ENVIRONMENTS = (
    *({"PYTHONIOENCODING": f"{encoding}:strict"} for encoding in ENCODINGS),
    {"NO_COLOR": "1"},
    {"TERM": "dumb"},
    {"COLUMNS": "40"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_as_a_program(
    name: str, commands: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    words, left = commands[name]

    def check() -> None:
        assert not left or (tmp_path / "out" / left).is_file()
        subprocess.run(["rm", "-rf", tmp_path / "out"], check=True)

    for redirection, code in HOW.items():
        done = shell(f'"$@" {redirection}; echo "code $?"', *words.split())
        assert "Traceback" not in done.stdout + done.stderr
        assert done.stdout.endswith(f"code {code}\n"), (redirection, done)
        check()
    for environment in ENVIRONMENTS:
        done = shell('"$@"', *words.split(), **environment)
        assert done.returncode == 0, (environment, done)
        assert "Traceback" not in done.stderr
        check()
