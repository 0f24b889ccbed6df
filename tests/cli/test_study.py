"""Mistakes of ``palimpsest study`` and of commands that want a model of text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palimpsest.errors import out_of_memory


def test_another_tokenizer_is_refused(
    cli: Callable, run_folder: Path, text: Path, tmp_path: Path, shared: Path
) -> None:
    words = ("--text", text, "--tokenizer", shared / "data" / "minimind", "--out", tmp_path / "s")
    code, out, err = cli("study", run_folder, *words)
    assert (code, out) == (2, "") and "the model was trained with" in err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", ["generate", "study", "inspect"])
def test_a_model_of_a_task_reads_no_text(
    command: str, cli: Callable, recall_run: Path, text: Path, tmp_path: Path
) -> None:
    words = (
        ("--prompt", "a") if command == "generate" else ("--text", text, "--out", tmp_path / "o")
    )
    code, _, err = cli(command, recall_run, *words)
    assert code == 2 and "was trained on the task 'recall' and reads no text" in err


def test_memory_that_runs_out_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert out_of_memory(caught.value)
    assert out_of_memory(MemoryError()) and not out_of_memory(RuntimeError("shapes"))
