from __future__ import annotations

from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError

SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 13,
    "n_layers": 2,
    "n_heads": 3,
    "head_dim": 5,
    "d_ffn": 17,
}


def on_meta(name: str) -> palimpsest.LanguageModel:
    with torch.device("meta"):
        return palimpsest.build(name)


def test_published_sizes() -> None:
    """130 M parameters and 1.97 M entries of memory."""
    model = on_meta("gdn-130m")
    assert model.num_parameters() == 130_118_008
    memories = [t for n, t in model.init_state(1).named_tensors() if n.startswith("memories")]
    assert len(memories) == 10
    assert sum(t.numel() for t in memories) == 1_966_080


def test_one_layer_control_and_small_preset() -> None:
    control = on_meta("gdn-130m-1l")
    assert control.config.to_dict()["n_layers"] == 1
    assert abs(control.num_parameters() / on_meta("gdn-130m").num_parameters() - 1) < 1e-3
    assert abs(on_meta("gdn-1m").num_parameters() / 972_552 - 1) < 0.01


def test_the_state_is_as_large_after_any_text() -> None:
    model = palimpsest.build("gdn", **SMALL)
    ids = torch.randint(0, 37, (2, 90))
    sizes = {model(ids[:, :n]).state.nbytes for n in (1, 2, 90)}
    assert sizes == {model.state_bytes(2, 1000)}
    # memories of 5 × 10, windows of 3 × 60, in two layers and rows
    assert sizes == {4 * 2 * 2 * (3 * 5 * 10 + 3 * 3 * (5 + 5 + 10))}


def test_no_decay_on_rates_and_norms() -> None:
    model = palimpsest.build("gdn", **SMALL)
    plain = {n.split(".")[-1] for n, p in model.named_parameters() if not model.decays(n, p)}
    assert plain == {"A_log", "dt_bias", "weight"}
    names = {n for n, p in model.named_parameters() if n.endswith("weight") and p.ndim == 1}
    assert all("norm" in name for name in names)


@torch.no_grad()
def test_initial_values() -> None:
    torch.manual_seed(0)
    layer = palimpsest.build("gdn", **{**SMALL, "d_model": 64, "n_heads": 50}).layers[0].delta
    for matrix in (layer.mix, layer.gate, layer.rates, layer.out):
        assert 0.018 < float(matrix.weight.std()) < 0.022
    rates = layer.A_log.exp()
    assert 0 < float(rates.min()) < 2
    assert 14 < float(rates.max()) < 16
    steps = torch.nn.functional.softplus(layer.dt_bias)
    assert 1e-3 < float(steps.min()) < float(steps.max()) < 0.1
    assert 0.45 < float(layer.conv.abs().max()) <= 0.5


def test_tied_head_and_no_convolution() -> None:
    tied = palimpsest.build("gdn", **SMALL, tie_embeddings=True, conv_size=0)
    assert tied.head_weight() is tied.embedding.weight
    assert tied.init_state(1).windows == ()
    free = palimpsest.build("gdn", **SMALL, conv_size=0)
    assert free.num_parameters() - tied.num_parameters() == 37 * 13


def test_operations_of_one_token() -> None:
    model = palimpsest.build("gdn", **SMALL)
    parts = model.flops(1)
    matrices = sum(p.numel() for p in model.layers.parameters() if p.ndim >= 2)
    assert parts == {
        "projections": 2 * matrices,
        "memory": 7 * 2 * 3 * 5 * 10,
        "head": 2 * 37 * 13,
    }
    assert model.flops(11) == {part: 11 * count for part, count in parts.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 0}, "head_dim=0"),
        ({"expand_v": 1.5}, r"expand_v=1.5: times head_dim=5 must be a whole number"),
        ({"expand_v": 0}, "expand_v=0"),
        ({"conv_size": 1}, "conv_size=1: must be 0"),
        ({"conv_size": -2}, "conv_size=-2"),
        ({"norm_eps": 0}, "norm_eps=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"tie_embeddings": 1.5}, "tie_embeddings=1.5"),
        ({"head_dims": 3}, "did you mean 'head_dim'"),
    ],
)
def test_bad_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        palimpsest.build("gdn", **{**SMALL, **change})
