"""Counted operations against those that PyTorch's counter sees in a real forward pass."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import InputError
from palimpsest.evaluation.flops import count_flops, measure_flops

PAPER: dict[str, Any] = {"vocab_size": 259, "d_model": 64, "n_layers": 3, "n_heads": 4}
TRIPLE = {**PAPER, "state_dim": 8, "positions": "none"}
# name, fields, backends with products that the counter sees
EXACT: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("transformer", PAPER, {}),
    ("transformer-triple", {**PAPER, "state_dim": 8}, {}),
    ("triple-latent", TRIPLE, {}),
    ("triple-slot", {**TRIPLE, "n_slots": 5}, {}),
    ("triple-hybrid", TRIPLE, {"causal_conv": "products"}),
    ("triple-hybrid", {**TRIPLE, "conv_padding": "same"}, {}),
    ("gpn", {"vocab_size": 259, "d_state": 30, "d_emb": 12}, {}),
    ("transformerpp", {**PAPER, "n_kv_heads": 2}, {}),
]


@pytest.mark.parametrize(("name", "fields", "backends"), EXACT)
@pytest.mark.parametrize("length", [33, 128])
def test_all_but_the_recurrence_is_seen_exactly(
    name: str, fields: dict[str, Any], backends: dict[str, str], length: int
) -> None:
    """The plain loops of these recurrences work entry by entry, which the counter does not see."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "triple-hybrid with conv_padding='same'")
        model = palimpsest.build(name, **fields)
    count = count_flops(model, length)
    seen = measure_flops(model, length, **backends)
    assert seen == count.total - count.parts.get("recurrence", 0)
    assert count.total <= 1.03 * seen


@pytest.mark.parametrize("n_layers", [1, 2])
def test_a_grounded_memory(n_layers: int) -> None:
    """Its reads are seen; the write's 3 operations an entry are not."""
    model = palimpsest.build("gpnm-tiny", n_layers=n_layers)
    count, seen = count_flops(model, 40), measure_flops(model, 40)
    assert seen == count.total - 3 * 40 * (2 * 16 * 32)
    assert count.total <= 1.03 * seen


@pytest.mark.parametrize("length", [128, 259])
@pytest.mark.parametrize("fields", [{}, {"layers": "all", "fusion": "concat", "write_gate": True}])
def test_retrieval(length: int, fields: dict[str, Any]) -> None:
    """Within a tenth: blocks of scores leave later pairs out, and score the chosen ones twice."""
    model = palimpsest.build("gated-hybrid", **TRIPLE, **fields)
    backends = {"causal_conv": "products", "topk_retrieval": "blockwise"}
    seen = measure_flops(model, length, **backends)
    assert count_flops(model, length).total == pytest.approx(seen, rel=0.1)


def test_a_count() -> None:
    with torch.device("meta"):
        model = palimpsest.build("triple-hybrid-178k")
    count = count_flops(model, 64)
    assert count.total == sum(count.parts.values()) == 64 * count.per_token
    assert count.published_total == 21_755_904
    with torch.device("meta"):
        other = count_flops(palimpsest.build("gpnm-130m"), 2048)
    assert other.published is None and other.published_total is None


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = palimpsest.build("transformerpp", **PAPER, dropout=0.5).train()
    measure_flops(model, 5)
    assert model.training


def test_mistakes() -> None:
    model = palimpsest.build("transformer-175k")
    for length in (0, 129):
        with pytest.raises(InputError, match=rf"length={length}: .* at most .* 128"):
            count_flops(model, length)
    with pytest.raises(InputError, match=r"length=-1: must be at least 1$"):
        measure_flops(palimpsest.build("gpnm-tiny"), -1)
