"""The front door: help, versions, exit codes, and no traceback for a mistake."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable

import pytest

import palimpsest
from palimpsest.cli import main as main_module
from palimpsest.errors import InputError, StorageError
from palimpsest.training import TrainingDivergedError

COMMANDS = ("demo", "train", "eval", "generate", "info", "bench", "reproduce", "compare")


def test_help_lists_every_command_with_an_example(cli: Callable) -> None:
    for words in (("--help",), ("-h",), ("help",)):
        code, out, err = cli(*words)
        assert (code, err) == (0, "")
        for command in COMMANDS:
            assert f"\n  {command} " in out and f"\n  palimpsest {command} " in out
    code, out, err = cli()
    assert code == 2 and out == "" and "usage" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(cli: Callable, command: str) -> None:
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert f"usage: palimpsest {command}" in out and f"\npalimpsest {command} " in out


def test_version(cli: Callable) -> None:
    assert cli("--version") == (0, f"palimpsest {palimpsest.__version__}\n", "")


def test_an_unknown_command_or_option_is_exit_code_2(cli: Callable) -> None:
    code, _, err = cli("evil")
    assert code == 2 and "did you mean 'eval'?" in err
    code, _, err = cli("bench", "gpnm-tiny", "--speed", "3")
    assert code == 2 and "--speed" in err


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (InputError("x=1: must be\n2"), 2, "palimpsest: x=1: must be 2"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), 2, "a.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "b"), 1, "b: No space left on device"),
        (StorageError("c: cannot be written (full)"), 1, "c: cannot be written (full)"),
        (TrainingDivergedError("step 3: the loss is nan"), 1, "step 3: the loss is nan"),
        (MemoryError("too much"), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures_are_one_line(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, failure: BaseException, code: int, line: str
) -> None:
    def fail(*_: object) -> int:
        raise failure

    monkeypatch.setattr(main_module, "_run", fail)
    outcome = cli("info")
    assert outcome.code == code
    assert line in outcome.err and outcome.err.count("\n") == 1


def test_a_bug_keeps_its_traceback(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(main_module, "_run", fail)
    with pytest.raises(ZeroDivisionError):
        cli("info")


def test_as_a_program() -> None:
    """The real process: exit code, one line on standard error, nothing on standard output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "palimpsest", "info", "no-such-model"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("palimpsest: 'no-such-model'") and done.stderr.count("\n") == 1
