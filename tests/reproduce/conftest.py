"""A small text, a tiny table of it, and a quiet console."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from palimpsest import force_backend
from palimpsest.reproduce import Column, Row, Table
from palimpsest.reproduce.experiments import TextExperiment

TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2, "max_seq_len": 16}
FIGURE = 5.124


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    """The plain loop: no compilation, and the same on every machine."""
    with force_backend("reference"):
        yield


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training and validation text of some hundred bytes."""
    draw, folder = random.Random(5), tmp_path_factory.mktemp("text")
    words = ["a", "state", "is", "read", "and", "written", "again", "as", "one", "page"]
    found = {}
    for name, lines in (("train", 30), ("valid", 20)):
        text = "\n".join(" ".join(draw.choices(words, k=5)) for _ in range(lines))
        found[name] = folder / f"{name}.txt"
        found[name].write_text(text + "\n", encoding="utf-8")
    return found


@pytest.fixture
def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def tiny_table() -> Table:
    """Two rows, one of which is not causal, and one that no version has."""
    experiment = TextExperiment(steps=2, batch=3, length=16, windows=4, whole=False)
    hybrid = {**TINY, "state_dim": 3, "conv_padding": "same"}
    return Table(
        name="tiny",
        title="A tiny table",
        source="nobody",
        columns=(Column(metric="bits_per_byte", title="BPB"),),
        rows=(
            Row(
                label="Transformer",
                model="transformer",
                fields=TINY,
                published={"bits_per_byte": FIGURE},
            ),
            Row(label="Hybrid", model="triple-hybrid", fields=hybrid, note="as published"),
            Row(label="Missing", model="no-such-model"),
        ),
        experiments=(experiment,),
        seeds=(7, 19),
    )
