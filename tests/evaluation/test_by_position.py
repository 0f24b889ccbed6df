"""Loss by position: against plain forwards, and on a text where only context can help."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from palimpsest.errors import InputError
from palimpsest.evaluation import PositionsResult, evaluate_positions, load_result, plot_positions
from palimpsest.evaluation.by_position import position_buckets
from palimpsest.text import ByteTokenizer, CorpusError
from tests.evaluation.models import FAMILIES, small_model
from tests.generation.toy_model import ToyConfig, ToyModel

TEXT = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 😀 Ende.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_buckets_cover_every_position_once() -> None:
    assert position_buckets(11) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 11)]
    assert position_buckets(8) == [(1, 1), (2, 2), (3, 4), (5, 8)]
    assert position_buckets(10, "equal", 4) == [(1, 2), (3, 5), (6, 8), (9, 10)]
    for spacing in ("log", "equal"):
        for length in (8, 9, 33):
            edges = position_buckets(length, spacing, 5)
            assert [p for a, b in edges for p in range(a, b + 1)] == list(range(1, length + 1))
    for bad in ({"spacing": "cubic"}, {"spacing": "equal", "buckets": 20}, {"seq_len": 1}):
        with pytest.raises(InputError, match=next(reversed(bad))):
            position_buckets(**{"seq_len": 12, **bad})


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_plain_forwards(family: str, text: Path) -> None:
    model, length = small_model(family), 11
    stream = [257, *TEXT.encode()]
    losses = []
    for low in range(0, len(stream) - length, length):
        ids = torch.tensor([stream[low : low + length + 1]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0]
        losses.append(functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy())
    table = np.stack(losses)
    result = evaluate_positions(
        model, ByteTokenizer(), text, seq_len=length, batch_size=3, progress=False
    )
    assert result.windows == len(table)
    assert result.left_out == len(stream) - 1 - table.size
    assert result.loss == pytest.approx(table.mean(), rel=1e-9)
    before = None
    for bucket in result.buckets:
        means = table[:, bucket.first - 1 : bucket.last].mean(1)
        assert bucket.loss.value == pytest.approx(means.mean(), rel=1e-9)
        stderr = means.std(ddof=1) / len(means) ** 0.5
        assert bucket.loss.stderr == pytest.approx(stderr, rel=1e-9)
        if before is None:
            assert bucket.gain is None
        else:
            assert bucket.gain is not None
            assert bucket.gain.value == pytest.approx((before - means).mean(), rel=1e-9)
        before = means


@pytest.mark.parametrize("bos", ["none", "document", "window"])
def test_the_current_reading_counts_the_same_positions(bos: str, text: Path) -> None:
    """BOS at the front of a window is no position; as a text's first token it is not counted."""
    model = ToyModel(ToyConfig(vocab_size=259))
    options = {"seq_len": 10, "bos": bos, "progress": False}
    current = evaluate_positions(model, ByteTokenizer(), text, predict="current", **options)
    counted = sum(b.tokens for b in current.buckets)
    assert counted == current.windows * 10 - int(bos == "document")
    assert [b.last for b in current.buckets] == [1, 2, 4, 8, 10]
    if bos == "window":  # BOS gives both readings the same predictions
        other = evaluate_positions(model, ByteTokenizer(), text, predict="next", **options)
        for mine, theirs in zip(current.buckets, other.buckets, strict=True):
            assert mine.loss.value == pytest.approx(theirs.loss.value, rel=1e-6)


def test_context_that_helps_is_seen(tmp_path: Path) -> None:
    """A model that predicts by what it has seen so far, on windows of one letter each."""
    letters = random.Random(0).choices("abcdefgh", k=60)
    path = tmp_path / "letters.txt"
    path.write_text("".join(letter * 8 for letter in letters))
    model = ToyModel(ToyConfig(vocab_size=259))
    result = evaluate_positions(
        model, ByteTokenizer(), path, seq_len=8, bos="window", spacing="equal", buckets=8
    )
    assert result.context_helps_until >= 3
    assert result.buckets[1].gain is not None and result.buckets[1].gain.low > 1.0
    assert f"helps up to position {result.context_helps_until};" in result.rows()["context"]


def test_saved_drawn_and_shown(text: Path, tmp_path: Path) -> None:
    results = [
        evaluate_positions(
            small_model(family), ByteTokenizer(), text, seq_len=8, source=family, progress=False
        )
        for family in FAMILIES
    ]
    path = results[0].save(tmp_path / "r.json")
    assert PositionsResult.load(path) == results[0] == load_result(path)
    image = plot_positions(results, tmp_path / "p.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    assert results[0].by_position().row_count == 4
    other = tmp_path / "other.txt"
    other.write_text(TEXT + TEXT)
    more = evaluate_positions(small_model("gpnm"), ByteTokenizer(), other, seq_len=8)
    with pytest.raises(InputError, match="different data_sha256"):
        plot_positions([results[0], more], tmp_path / "p.png")
    with pytest.raises(InputError, match="name at least one"):
        plot_positions([], tmp_path / "p.png")


def test_bad_input(text: Path) -> None:
    model, tokenizer = small_model("transformer"), ByteTokenizer()
    with pytest.raises(InputError, match="at most 96 positions; use a smaller seq_len"):
        evaluate_positions(model, tokenizer, text, seq_len=97)
    with pytest.raises(InputError, match="fills 1 window of 60 tokens"):
        evaluate_positions(model, tokenizer, text, seq_len=60)
    with pytest.raises(InputError, match="fingerprint"):
        evaluate_positions(model, tokenizer, text, trained_with="0" * 64)
    with pytest.raises(InputError, match="batch_size=0"):
        evaluate_positions(model, tokenizer, text, batch_size=0)
    with pytest.raises(CorpusError, match="no such file"):
        evaluate_positions(model, tokenizer, text.with_name("none.txt"), seq_len=8)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="diverged"):
        evaluate_positions(model, tokenizer, text, seq_len=8)
