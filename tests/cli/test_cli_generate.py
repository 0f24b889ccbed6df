"""``palimpsest generate``: prompts from everywhere, samples, sessions, interruption."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.generation import Session


class Pipe(io.TextIOWrapper):
    """Standard input that is not a terminal."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture(autouse=True)
def no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe(b""))


def generate(cli: Callable, run_folder: Path, *words: object, tokens: int = 20) -> str:
    code, out, err = cli("generate", run_folder, "--max-new-tokens", tokens, *words)
    assert code == 0, err
    return out.removesuffix("\n")


def test_a_prompt_may_come_from_anywhere(
    cli: Callable, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(cli, run_folder, "--prompt", "Déjà ", "--seed", 3)
    path = tmp_path / "prompt"
    path.write_text("Déjà ", encoding="utf-8")
    assert generate(cli, run_folder, "--prompt-file", path, "--seed", 3) == expected
    monkeypatch.setattr("sys.stdin", Pipe("Déjà ".encode()))
    assert generate(cli, run_folder, "--seed", 3) == expected
    assert generate(cli, run_folder, "--prompt", "Déjà ", "--seed", 4) != expected
    echoed = generate(cli, run_folder, "--prompt", "Déjà ", "--seed", 3, "--echo")
    assert echoed == "Déjà " + expected


def test_samples_have_seeds_of_their_own(cli: Callable, run_folder: Path) -> None:
    out = generate(cli, run_folder, "--prompt", "a", "--seed", 7, "--num-samples", 3, tokens=8)
    for i in range(3):
        alone = generate(cli, run_folder, "--prompt", "a", "--seed", 7 + i, tokens=8)
        assert f"--- sample {i + 1} of 3, seed {7 + i}\n{alone}\n" in out + "\n"


def test_a_session_goes_on_as_if_there_had_been_no_pause(
    cli: Callable, run_folder: Path, tmp_path: Path
) -> None:
    options = ("--temperature", 1.5, "--stop", "\\n\\n", "--stop", "qqq")
    whole = generate(cli, run_folder, "--prompt", "a", *options, tokens=30)
    path = tmp_path / "s"
    first = generate(cli, run_folder, "--prompt", "a", *options, "--save-session", path, tokens=11)
    second = generate(
        cli, run_folder, "--session", path, *options, "--save-session", path, tokens=9
    )
    third = generate(cli, run_folder, "--session", path, *options, tokens=10)
    assert first + second + third == whole


def test_an_interrupted_session_is_saved(
    cli: Callable, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = generate(cli, run_folder, "--prompt", "a", tokens=40)
    path, written = tmp_path / "s", 0

    def write_and_interrupt(text: str) -> None:
        nonlocal written
        before, written = written, written + len(text)
        if before < 5 <= written:
            os.kill(os.getpid(), signal.SIGINT)
        print(text, end="")

    monkeypatch.setattr("palimpsest.cli.generate._write", write_and_interrupt)
    code, out, err = cli(
        "generate", run_folder, "--prompt", "a", "--max-new-tokens", 40, "--save-session", path
    )
    assert code == 130 and f"session saved: {path}" in err
    first = out.removesuffix("\n")
    assert 5 <= len(first) < len(whole) and whole.startswith(first)
    monkeypatch.undo()
    assert generate(cli, run_folder, "--session", path, tokens=10).startswith(
        whole[len(first) : len(first) + 3]
    )


def test_without_a_session_an_interruption_is_130(
    cli: Callable, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "generate", interrupt)
    assert cli("generate", run_folder, "--prompt", "a").code == 130


def test_mistakes(
    cli: Callable, run_folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9")
    empty = tmp_path / "empty"
    empty.touch()
    session = tmp_path / "s"
    generate(cli, run_folder, "--prompt", "a", "--save-session", session, tokens=1)
    cases = (
        (("--prompt", "a", "--prompt-file", text), "give one of the two"),
        (("--prompt-file", tmp_path / "none"), "No such file"),
        (("--prompt-file", tmp_path), "Is a directory"),
        (("--prompt-file", empty), "is empty; the file's whole text is one prompt"),
        (("--prompt-file", latin), "byte 0xe9 at offset 3"),
        (("--prompt", "a", "--temperature", -1), "--temperature -1"),
        (("--prompt", "a", "--top-k", 500), "--top-k 500"),
        (("--prompt", "a", "--seed", -1), "--seed -1"),
        (("--prompt", "a", "--max-new-tokens", 0), "--max-new-tokens 0"),
        (("--prompt", "a", "--num-samples", 0), "--num-samples 0"),
        (("--prompt", "a", "--num-samples", 2, "--save-session", session), "one text"),
        (("--prompt", "a", "--save-session", tmp_path), "is a folder"),
        (("--session", text), "safetensors"),
        (("--session", tmp_path / "none"), "no such file"),
        (("--session", session, "--precision", "bf16"), "begun in fp32"),
    )
    for words, message in cases:
        code, out, err = cli("generate", run_folder, *words)
        assert (code, out) == (2, ""), (words, err)
        assert message in err and err.count("\n") == 1, err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    code, _, err = cli("generate", run_folder)
    assert code == 2 and "there is no prompt" in err


def test_another_models_session_is_refused(
    cli: Callable, run_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    session = tmp_path / "s"
    generate(cli, run_folder, "--prompt", "a", "--save-session", session, tokens=1)
    code, _, err = cli("generate", model_folder, "--tokenizer", "bytes", "--session", session)
    assert code == 2 and "the session belongs to the model" in err
