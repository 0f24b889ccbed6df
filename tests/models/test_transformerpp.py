"""Transformer++: sizes, defaults, initial values, positions, the state's size, bad fields."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError
from palimpsest.models.transformerpp_config import TransformerPPConfig
from tests.comparison import assert_close

SMALL: dict[str, Any] = {"vocab_size": 37, "d_model": 24, "n_layers": 2, "n_heads": 6}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("transformerpp-130m", 129_903_360),
        ("transformerpp-130m-1l", 129_901_056),
        ("transformerpp-1m", 971_392),
    ],
)
def test_presets(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = palimpsest.build(name)
    assert model.num_parameters() == parameters
    assert model.config.n_layers == {"transformerpp-130m": 12, "transformerpp-1m": 5}.get(name, 1)


def test_the_small_one_has_as_many_parameters_as_gpnm() -> None:
    with torch.device("meta"):
        pair = [palimpsest.build(name).num_parameters() for name in ("transformerpp-1m", "gpnm-1m")]
    assert abs(pair[0] / pair[1] - 1) < 0.01


def test_what_is_left_out_is_filled_in() -> None:
    small = TransformerPPConfig(**SMALL)
    assert (small.n_kv_heads, small.d_ffn) == (6, 64)
    assert TransformerPPConfig(**{**SMALL, "d_model": 60}).d_ffn == 160
    assert TransformerPPConfig(**{**SMALL, "d_model": 768}).d_ffn == 2048
    assert TransformerPPConfig(**{**SMALL, "d_model": 516}).d_ffn == 1408
    model = palimpsest.build("transformerpp", **SMALL)
    assert model.max_length is None
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())


def test_a_tied_head_is_the_embedding() -> None:
    tied = palimpsest.build("transformerpp", **SMALL, tie_embeddings=True)
    untied = palimpsest.build("transformerpp", **SMALL)
    assert tied.head_weight() is tied.embedding.weight
    assert untied.num_parameters() - tied.num_parameters() == 37 * 24


def test_initial_values() -> None:
    """What adds to the stream starts narrower, the deeper the model."""
    model = palimpsest.build("transformerpp", **{**SMALL, "d_model": 96, "n_layers": 8})
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            narrow = name.endswith(("attention.out.weight", "ffn.fall.weight"))
            assert_close(parameter.std(), torch.tensor(0.02 / (4 if narrow else 1)), 0.1, name)


def test_positions_have_no_bound_and_no_place_of_their_own() -> None:
    """Logits depend on distances alone: the same text behind padding gives the same."""
    model = palimpsest.build("transformerpp", **SMALL).double().eval()
    ids = torch.randint(0, 37, (1, 9))
    state = model.init_state(1)
    far = type(state)(state.cache, state.position + 1_000_000)
    assert_close(model(ids, far).logits, model(ids).logits, 1e-7)
    assert model(ids, far).state.position.item() == 1_000_009


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_state_bytes(kv_heads: int) -> None:
    model = palimpsest.build("transformerpp", **SMALL, n_kv_heads=kv_heads)
    for length in (1, 50):
        state = model(torch.zeros(3, length, dtype=torch.long)).state
        assert model.state_bytes(3, length) == state.nbytes


def test_dropout_drops_in_training_only() -> None:
    model = palimpsest.build("transformerpp", **SMALL, dropout=0.5)
    ids = torch.randint(0, 37, (2, 9))
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_a_bf16_model_runs_without_autocast() -> None:
    model = palimpsest.build("transformerpp", **SMALL).bfloat16()
    ids = torch.randint(0, 37, (2, 9))
    first = model(ids)
    assert first.logits.dtype == torch.bfloat16
    assert model(ids[:, :1], first.state).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "n_heads=5: must divide d_model=24"),
        ({"n_heads": 8}, "n_heads=8: must divide d_model=24 into parts of an even width"),
        ({"n_kv_heads": 4}, "n_kv_heads=4: must divide n_heads=6"),
        ({"n_kv_heads": 0}, "n_kv_heads=0"),
        ({"d_ffn": -8}, "d_ffn=-8"),
        ({"rope_base": 1.0}, "rope_base=1.0"),
        ({"rope_base": float("nan")}, "rope_base=nan"),
        ({"norm_eps": 0}, "norm_eps=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"dropout": True}, "dropout=True"),
        ({"tie_embeddings": "yes"}, "tie_embeddings='yes'"),
    ],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        palimpsest.build("transformerpp", **{**SMALL, **fields})
