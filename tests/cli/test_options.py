"""Messages name options as they are typed; no value of a list is measured twice."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from palimpsest.cli.main import COMMANDS, EVALUATIONS, MODULES
from palimpsest.cli.options import as_typed, check_values_differ
from palimpsest.errors import InputError


@dataclass(frozen=True)
class Args:
    seq_len: int | None = 0
    lr: float | None = None
    pairs: tuple[int, ...] = ()
    predict: str = "next"
    lrs: tuple[float, ...] = ()
    set: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("seq_len=0: must be at least 1", "--seq-len 0: must be at least 1"),
        ("recipe gpn: data.seq_len=0: must", "recipe gpn: --seq-len 0: must"),
        ("use a smaller seq_len", "use a smaller --seq-len"),
        ("optimizer.lr=0: must", "optimizer.lr=0: must"),  # not given: a recipe's own
        ("pairs=[2, 4]: must", "--pairs 2 4: must"),
        ("predict='other' with pairs=(1,)", "--predict other with --pairs 1"),
        ("the pairs of a text", "the pairs of a text"),
        ("a/seq_len=3.txt: is text", "a/seq_len=3.txt: is text"),
        ("build('gpn', seq_lens=3, x.predict=1)", "build('gpn', seq_lens=3, x.predict=1)"),
        ("vocab_size=3", "--seq-len 3"),
    ],
)
def test_names_of_the_library_become_options(message: str, shown: str) -> None:
    assert as_typed(message, Args(), {"vocab_size": "seq_len"}) == shown


def test_a_repeated_value_is_refused() -> None:
    check_values_differ(Args(pairs=(1, 2), lrs=(1e-3, 2e-3), set=("a=1", "b=1")))
    with pytest.raises(InputError, match=r"^--lrs 0.001 0.002 0.001: 0.001 is given twice"):
        check_values_differ(Args(lrs=(1e-3, 2e-3, 0.001)))
    with pytest.raises(InputError, match=r"^--set a=1 a=2: a is given twice"):
        check_values_differ(Args(set=("a=1", "a=2")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval {run} recall --pairs 2 2", "--pairs 2 2: 2 is given twice"),
        ("eval {run} throughput --lengths 8 8", "--lengths 8 8: 8 is given twice"),
        ("eval {run} throughput --batches 1 2 1", "--batches 1 2 1: 1 is given twice"),
        ("match gpn gpnm gpn", "gpn gpnm gpn: gpn is given twice"),
        ("compare gpn gpn --train a --valid b", "gpn gpn: gpn is given twice"),
        ("compare gpn --train a --valid b --seeds 1 1", "--seeds 1 1: 1 is given twice"),
        ("compare gpn --train a --valid b --lrs 1e-3 0.001", "--lrs 0.001 0.001: 0.001 is"),
        ("reproduce flops --seeds 3 3", "--seeds 3 3: 3 is given twice"),
        ("train --data {text} {text}", "is given twice"),
    ],
)
def test_every_list_of_the_command_line(
    words: str, message: str, cli: Callable, run_folder: Path, text: Path
) -> None:
    code, out, err = cli(*words.format(run=run_folder, text=text).split())
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


# -- over all options ---------------------------------------------------------------------------

REQUIRED = {
    "train": "--data {text}",
    "eval": "{run} --text {text}",
    "lambada": "{run} lambada --data {lambada}",
    "recall": "{recall} recall --task recall",
    "positions": "{run} positions --text {text}",
    "throughput": "{run} throughput",
    "generate": "{run} --prompt a",
    "inspect": "{run} --text {text}",
    "study": "{run} --text {text} --out {out}",
    "bench": "gpnm-tiny",
    "match": "",
    "compare": "gpn --train {text} --valid {valid}",
    "reproduce": "flops --quick",
    "demo": "--quick",
}


def numbers() -> list[tuple[str, str]]:
    """Every option of every command that takes a number."""
    found = []
    for name, (class_name, module) in {
        **{n: (c, MODULES.get(n, n)) for n, (c, _) in COMMANDS.items()},
        **EVALUATIONS,
    }.items():
        args: Any = getattr(importlib.import_module(f"palimpsest.cli.{module}"), class_name)
        for field in dataclasses.fields(args):
            kind = str(field.type)
            if "Path" not in kind and re.search(r"\b(int|float|PlainInt|PlainFloat)\b", kind):
                found.append((name, field.name))
    return found


@pytest.mark.parametrize(("command", "field"), numbers())
def test_a_number_out_of_range_names_its_option(
    command: str,
    field: str,
    cli: Callable,
    run_folder: Path,
    recall_run: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l.jsonl").write_text('{"text": "the old man"}\n')
    (tmp_path / "v.txt").write_text("another text than that of the training\n" * 99)
    option = f"--{field.replace('_', '-')}"
    words = REQUIRED[command].format(
        run=run_folder,
        recall=recall_run,
        text=text,
        valid="v.txt",
        lambada="l.jsonl",
        out=tmp_path / "o",
    )
    first = "eval" if command in EVALUATIONS else command
    code, _, err = cli(first, *words.split(), option, "-7")
    assert code == 2 and err.count("\n") == 1, err
    assert f"{option} -7" in err, err
