"""Names that are not UTF-8: refused in one line, before anything is read, trained or written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import PalimpsestError

BAD = os.fsdecode(b"o\xe9x") if sys.platform != "win32" else "o\udce9x"

NAMED = r"o(\\xe9|\\udce9)x(/config\.json|')?: is not UTF-8"
COMMANDS = [
    ("train gpnm-tiny --out BAD --data TEXT --steps 1", "--out"),
    ("train gpnm-tiny --data BAD", "--data"),
    ("train gpnm-tiny --data TEXT BAD", ""),
    ("train BAD", ""),
    ("train --resume BAD", "--resume"),
    ("train gpnm-tiny --set data.train=BAD", "--set"),
    ("eval BAD --text TEXT", ""),
    ("eval BAD lambada", ""),
    ("eval RUN --text TEXT --out BAD", "--out"),
    ("generate RUN --prompt a --save-session BAD", "--save-session"),
    ("generate RUN --prompt BAD", "--prompt"),
    ("inspect RUN --text BAD", "--text"),
    ("study RUN --out BAD", "--out"),
    ("data prepare TEXT --tokenizer bytes --out BAD", "--out"),
    ("info BAD", ""),
    ("bench gpnm-tiny --out BAD", "--out"),
    ("compare gpnm --train TEXT --out BAD", "--out"),
    ("demo --out BAD", "--out"),
    ("reproduce generic --train BAD", "--train"),
    ("BAD", ""),
]


@pytest.mark.parametrize(("words", "option"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_a_command(
    words: str,
    option: str,
    cli: Callable[..., Any],
    run_folder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"BAD": BAD, "RUN": str(run_folder), "TEXT": str(text)}
    given = [w.replace("BAD", BAD) if "=" in w else names.get(w, w) for w in words.split()]
    code, out, err = cli(*given)
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "o\\xe9x" in err
    value = "data.train=o\\xe9x" if "=" in words else "o\\xe9x"
    assert err.startswith(f"palimpsest: {option} {value}".replace("  ", " ") + ": is not UTF-8; ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="names are Unicode there")
def test_as_a_program(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "palimpsest", "train", "gpnm-tiny", "--out", b"o\xe9x"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("palimpsest: --out o\\xe9x: is not UTF-8; ")


def test_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = palimpsest.build("gpnm-tiny")
    calls: list[Callable[[], Any]] = [
        lambda: palimpsest.train("gpnm-tiny", BAD),
        lambda: palimpsest.resume(BAD),
        lambda: palimpsest.load(Path(BAD)),
        lambda: palimpsest.load_recipe(BAD),
        lambda: palimpsest.load_recipe("gpnm-tiny", {"data.train": BAD}),
        lambda: palimpsest.load_recipe("gpnm-tiny", {"data.tokenizer": BAD}),
        lambda: model.save(BAD),
        lambda: model.init_state(1).save(BAD),
        lambda: palimpsest.State.load(BAD),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(PalimpsestError, match=NAMED) as caught:
            call()
        assert "\n" not in str(caught.value), number
    assert list(tmp_path.iterdir()) == []
