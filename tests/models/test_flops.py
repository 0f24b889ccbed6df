"""Operations of every architecture, and the published counts to their digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import InputError
from palimpsest.models import flops
from tests.contract.configs import CONFIGS

PAPER: dict[str, Any] = {"vocab_size": 259, "d_model": 64, "n_layers": 3, "n_heads": 4}
PAPER["max_seq_len"] = 512
EVERY = [(name, label) for name, table in CONFIGS.items() for label in table]


@pytest.mark.parametrize(
    ("name", "fields", "published"),
    [
        ("transformer", {}, {64: 24.1, 128: 54.6, 512: 369.3}),
        ("triple-hybrid", {"state_dim": 8}, {64: 21.8, 128: 43.5, 512: 174.0}),
        ("gated-hybrid", {"state_dim": 8}, {64: 25.8, 128: 52.1, 512: 220.9}),
    ],
)
def test_the_published_counts(
    name: str, fields: dict[str, Any], published: dict[int, float]
) -> None:
    """arXiv 2606.05175, in MFLOP."""
    model = palimpsest.build(name, **PAPER, **fields)
    for length, megaflops in published.items():
        total = sum(model.published_flops(length).values())
        assert round(total / 1e6, 1) == megaflops


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpnm-tiny", {}),
        ("triple-slot", {**PAPER, "state_dim": 8}),
        ("gated-hybrid", {**PAPER, "state_dim": 8, "fusion": "sum"}),
        ("gated-hybrid", {**PAPER, "state_dim": 8, "n_slots": 4}),
    ],
)
def test_what_was_not_published(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no paper has published"):
        palimpsest.build(name, **fields).published_flops(64)


@pytest.mark.parametrize(("name", "label"), EVERY)
def test_every_architecture_counts_its_operations(name: str, label: str) -> None:
    model = palimpsest.build(name, **CONFIGS[name][label])
    short, long = model.flops(20), model.flops(40)
    assert all(count > 0 for count in short.values())
    assert short["head"] == 2 * 20 * model.head_weight().numel()
    for part, count in short.items():
        # each part grows evenly with the text, or as its square
        assert 1 <= long[part] / count <= 4, part
    # nothing that meets every position has more than two operations a parameter
    matrices = sum(p.numel() for p in model.parameters() if p.ndim >= 2)
    assert short["projections"] + short.get("convolution", 0) <= 2 * 20 * matrices


def test_a_transformerpp_by_hand() -> None:
    """GQA: keys and values cost less, scores do not."""
    fields = {"vocab_size": 7, "d_model": 12, "n_layers": 2, "n_heads": 3, "d_ffn": 5}
    count = palimpsest.build("transformerpp", **fields, n_kv_heads=1).flops(10)
    per_layer = 12 * (12 + 2 * 4) + 12 * 12 + 3 * 12 * 5
    assert count["projections"] == 2 * 10 * 2 * per_layer
    assert count["attention"] == 2 * 2 * (2 * 10 * 10 * 12)
    assert count["head"] == 2 * 10 * 12 * 7


def test_a_model_that_counts_nothing_says_so() -> None:
    model = palimpsest.build("gpnm-tiny")
    with pytest.raises(InputError, match="define `body_flops"):
        palimpsest.LanguageModel.body_flops(model, 5)


def test_products_leave_vectors_out() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
    assert flops.products(7, module) == 2 * 7 * 15
    assert flops.products(7, torch.nn.Conv1d(4, 4, 5, groups=4)) == 2 * 7 * 4 * 5
