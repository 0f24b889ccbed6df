"""Building models by name: presets, fields, and names that do not exist."""

from __future__ import annotations

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError
from palimpsest.models import registry
from palimpsest.models.config import ModelConfig

SMALL = {"vocab_size": 11, "d_state": 12, "d_emb": 5}


def test_lists() -> None:
    assert {"gpn", "gpnm"} <= set(palimpsest.list_models())
    presets = palimpsest.list_presets()
    assert {"gpnm-130m", "gpnm-130m-2l", "gpn-130m", "gpnm-tiny"} <= set(presets)
    for name, preset in presets.items():
        assert preset.model in palimpsest.list_models(), name
        assert preset.note, name
        registry.resolve(name, {})


def test_preset_with_changed_fields() -> None:
    model = palimpsest.build("gpnm-tiny", vocab_size=31, n_layers=2)
    assert (model.config.vocab_size, model.config.n_layers) == (31, 2)
    assert model.registry_name == "gpnm"
    assert palimpsest.list_presets()["gpnm-tiny"].fields["vocab_size"] == 259


def test_seed_decides_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = palimpsest.build("gpn", **SMALL)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_config_round_trip() -> None:
    config = palimpsest.build("gpn", **SMALL).config
    assert type(config).from_dict(config.to_dict()) == config
    assert config.to_dict()["d_ffn"] == 32  # 8/3 of d_state, rounded


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gpmn", {}, r"model='gpmn': unknown; did you mean 'gpnm?'\?.*presets: "),
        ("nothing-like-it", {}, r"unknown; models: .*gpn"),
        ("gpn", {**SMALL, "n_heads": 3}, r"n_heads=3: model 'gpn' has no such field"),
        ("gpn", {**SMALL, "d_stat": 3}, r"did you mean 'd_state'\?"),
        ("gpnm", SMALL, r"model 'gpnm' needs n_heads, d_key, d_val"),
        ("gpn", {**SMALL, "d_state": 0}, r"d_state=0: must be a whole number of at least 1"),
        ("gpn", {**SMALL, "d_state": 3.5}, r"d_state=3\.5: must be a whole number"),
        ("gpn", {**SMALL, "d_emb": True}, r"d_emb=True: must be a whole number"),
        ("gpn", {**SMALL, "n_layers": -1}, r"n_layers=-1: must be a whole number"),
        ("gpn", {**SMALL, "d_ffn": -8}, r"d_ffn=-8: must be a whole number"),
        ("gpnm-tiny", {"d_key": "8"}, r"d_key='8': must be a whole number"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_bad_name_or_field(name: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        palimpsest.build(name, **fields)


@pytest.mark.parametrize("name", ["gpnm-tiny", "gpn"])
def test_name_of_a_preset_taken(name: str) -> None:
    before = palimpsest.list_presets()
    with pytest.raises(ValueError, match=f"'{name}' is registered already"):
        registry.preset(name, "gpn", "another", vocab_size=3)
    with pytest.raises(ValueError, match=f"'{name}' is registered already"):
        registry.register(name, ModelConfig)(palimpsest.LanguageModel)
    assert palimpsest.list_presets() == before


def test_causality_is_the_models_own() -> None:
    fields = {"vocab_size": 9, "d_model": 8, "n_layers": 1, "n_heads": 2, "state_dim": 2}
    assert registry.is_causal("triple-hybrid", fields)
    assert not registry.is_causal("triple-hybrid", {**fields, "conv_padding": "same"})


def test_name_taken() -> None:
    with pytest.raises(ValueError, match="registered already"):
        registry.register("gpn", ModelConfig)(palimpsest.LanguageModel)


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("gpnm-130m", 129.2), ("gpnm-130m-2l", 130.0), ("gpn-130m", 130.0)],
)
def test_published_totals(preset: str, millions: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the digit published; built without drawing 130 million random numbers."""
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda tensor, **_: tensor)
    model = palimpsest.build(preset)
    assert round(model.num_parameters() / 1e6, 1) == millions


@pytest.mark.parametrize(("preset", "cells"), [("gpnm-130m", 491_520), ("gpnm-130m-2l", 360_448)])
def test_published_memory_cells(preset: str, cells: int) -> None:
    _, config = registry.resolve(preset, {})
    heads, d_key, d_val = config.memory  # type: ignore[attr-defined]
    assert heads * d_key * d_val == cells


def test_presets_of_equal_size() -> None:
    """The demo compares these two, so they must be as big as one another."""
    one, two = (palimpsest.build(name).num_parameters() for name in ("gpnm-1m", "gpn-1m"))
    assert abs(one - two) < 0.005 * one
