from __future__ import annotations

from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError
from palimpsest.models.mamba2_config import Mamba2Config

TINY: dict[str, Any] = {
    "vocab_size": 11,
    "d_model": 6,
    "n_layers": 3,
    "head_dim": 4,
    "state_dim": 5,
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("mamba2-130m", 114_944_448), ("mamba2-130m-1l", 114_154_724), ("mamba2-1m", 973_408)],
)
def test_totals_of_the_presets(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = palimpsest.build(name)
    assert model.num_parameters() == parameters
    if name == "mamba2-1m":
        assert abs(parameters / 972_552 - 1) < 0.01  # gpnm-1m


def test_published_total() -> None:
    """state-spaces/mamba2-130m, whose 50,277 ids are padded to a multiple of 16."""
    with torch.device("meta"):
        model = palimpsest.build("mamba2-130m", vocab_size=50288)
    assert model.num_parameters() == 128_989_632


def test_what_decays() -> None:
    model = palimpsest.build("mamba2", **TINY)
    decayed = {n for n, p in model.named_parameters() if model.decays(n, p)}
    assert decayed == {
        "embedding.weight",
        *(
            f"layers.{i}.mixer.{name}"
            for i in range(3)
            for name in ("in_proj.weight", "conv_weight", "out_proj.weight")
        ),
    }


def test_tying() -> None:
    tied = palimpsest.build("mamba2", **TINY)
    apart = palimpsest.build("mamba2", **TINY, tie_embeddings=False)
    assert tied.head_weight() is tied.get_parameter("embedding.weight")
    assert apart.num_parameters() - tied.num_parameters() == 11 * 6


def test_state_does_not_grow() -> None:
    model = palimpsest.build("mamba2", **TINY)
    for length in (1, 30):
        state = model(torch.zeros(2, length, dtype=torch.long)).state
        assert [tuple(x.shape) for x in state.memory] == [(2, 3, 5, 4)] * 3
        assert [tuple(x.shape) for x in state.window] == [(2, 3, 22)] * 3
        assert model.state_bytes(2, length) == state.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 5}, "head_dim=5: must divide expand · d_model = 12"),
        ({"n_groups": 2}, "n_groups=2: must divide the 3 heads"),
        ({"conv_size": 1}, "conv_size=1"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"tie_embeddings": "yes"}, "tie_embeddings='yes'"),
        ({"state_dim": 0}, "state_dim=0"),
        ({"expand": 1.5}, "expand=1.5"),
    ],
)
def test_bad_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mamba2Config(**{**TINY, **change})
