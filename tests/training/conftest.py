"""A small text, a tiny model and a recipe of both, for every test of training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import force_backend
from palimpsest.training import Recipe
from palimpsest.training.recipe_file import recipe_from_dict

TINY = {
    "name": "gpnm",
    "d_state": 12,
    "d_emb": 6,
    "d_ffn": 10,
    "n_heads": 2,
    "d_key": 3,
    "d_val": 5,
}


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    """The plain loop: no compilation, and the same on every machine."""
    with force_backend("reference"):
        yield


@pytest.fixture(autouse=True)
def no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take longer than these runs; test_plot.py makes its own."""
    monkeypatch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 250 bytes in 14 lines."""
    words = ["a", "state", "is", "read", "and", "written", "again", "as", "one", "page"]
    draw = random.Random(5)
    lines = (" ".join(draw.choices(words, k=4)) for _ in range(14))
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def make_recipe(text_file: Path) -> Callable[..., Recipe]:
    """A recipe of 20 steps that reads the text more than once; dotted keywords change it."""

    def make(**changes: Any) -> Recipe:
        table: dict[str, dict[str, Any]] = {
            "model": dict(TINY),
            "data": {
                "train": [str(text_file)],
                "validation_fraction": 0.2,
                "seq_len": 5,
            },
            "optimizer": {"lr": 1e-2, "warmup_steps": 3},
            "train": {
                "steps": 20,
                "batch_size": 6,
                "eval_every": 5,
                "eval_batches": 2,
                "save_every": 5,
                "log_every": 1,
                "keep_checkpoints": 0,
                "device": "cpu",
            },
        }
        for key, value in changes.items():
            section, _, name = key.partition("__")
            table[section][name] = value
        if table["data"].get("task"):
            table["data"].pop("train")
        return recipe_from_dict(table)

    return make
