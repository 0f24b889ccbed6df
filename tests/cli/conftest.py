"""A trained run, a bare model's folder, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import palimpsest
from palimpsest.cli.main import main
from palimpsest.text import ByteTokenizer

TEXT = "The state is rewritten at every token; nothing else is kept. Déjà vu 😀.\n" * 40


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``palimpsest WORDS`` in this process."""

    def run(*words: object) -> Outcome:
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """What ``palimpsest train`` leaves after two steps."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    words = f"train gpnm-tiny --data {text} --steps 2 --batch-size 2 --seq-len 16 --seed 5"
    assert main([*words.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a recall task."""
    folder = tmp_path_factory.mktemp("runs") / "recall"
    words = "train gpnm-tiny --task recall --steps 1 --batch-size 2 --seq-len 16"
    assert main([*words.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was saved by itself, without a tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "bare"
    return palimpsest.build("gpnm-tiny").save(folder)


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    return ByteTokenizer().save(tmp_path / "tokenizer").parent
