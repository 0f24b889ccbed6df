"""The sliding window of attention: what is read, what is kept, and where the window comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.errors import CheckpointError, InputError, StateError
from palimpsest.models import LanguageModel
from palimpsest.state import State

SIZES = {"vocab_size": 37, "d_model": 12, "n_layers": 1, "n_heads": 2}
SLIDING = {
    "transformerpp": {},
    "transformer": {"positions": "none"},
    "transformer-triple": {"positions": "none", "state_dim": 3},
}


def build(name: str, trained: int | None = None, **fields: object) -> LanguageModel:
    torch.manual_seed(0)
    model = palimpsest.build(name, **{**SIZES, **SLIDING.get(name, {}), **fields}).double().eval()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    model.trained_length = trained
    return model


def some_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 37, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", ["transformerpp", "transformer"])
def test_one_layer_reads_the_last_tokens_only(name: str) -> None:
    """With one layer, each prediction is that of the window read alone, whatever its place."""
    model, ids = build(name, 5), some_ids(1, 23)
    whole, model_alone = model(ids).logits, build(name)
    for t in range(23):
        alone = model_alone(ids[:, max(0, t - 4) : t + 1]).logits[:, -1]
        torch.testing.assert_close(whole[:, t], alone, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(whole[:, -1], build(name)(ids).logits[:, -1])


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(SLIDING))
def test_the_state_stays_as_large_as_the_window(name: str) -> None:
    model, state, ids = build(name, 8), None, some_ids(2, 60)
    for t in range(60):
        state = model(ids[:, t : t + 1], state).state
        assert state.nbytes == model.state_bytes(2, t + 1)
    assert model.state_bytes(2, 60) == model.state_bytes(2, 7) < model.state_bytes(2, 6) * 2
    whole = model(ids).state
    assert whole.nbytes == state.nbytes
    assert state.select([1]).nbytes == model.state_bytes(1, 60)


@torch.no_grad()
def test_a_row_that_is_held_does_not_make_the_cache_grow() -> None:
    model, ids = build("transformerpp", 8), some_ids(3, 100)
    state = model(ids[:, :20]).state
    held = state.select(1)
    mask = torch.tensor([[1], [0], [1]])
    for t in range(20, 100):
        state = model(ids[:, t : t + 1], state, attention_mask=mask).state
        assert state.cache.real.length < 16
    probe = ids[1:2, 20:23]
    torch.testing.assert_close(model(probe, state.select(1)).logits, model(probe, held).logits)
    torch.testing.assert_close(
        model(probe, state.select(0)).logits, model(torch.cat([ids[:1], probe], 1)).logits[:, -3:]
    )


@torch.no_grad()
def test_a_state_keeps_the_window_that_it_began_with(tmp_path: Path) -> None:
    model, ids = build("transformerpp", 5), some_ids(1, 30)
    state = model(ids[:, :20]).state
    want = model(ids[:, 20:], state).logits
    model.window = 0
    assert model.window == 0 and model.init_state(1).window == 0
    state.save(tmp_path / "a.state")
    assert torch.equal(model(ids[:, 20:], State.load(tmp_path / "a.state")).logits, want)
    with pytest.raises(StateError, match="window"):
        State.cat([state, model(ids[:, :4]).state])


def test_the_trained_length_is_saved_with_the_model(tmp_path: Path) -> None:
    fresh = palimpsest.load(build("transformerpp").save(tmp_path / "fresh"))
    assert fresh.trained_length is None and fresh.window == 0
    model = build("transformerpp", 128)
    model.window = 7  # a setting of this object
    loaded = palimpsest.load(model.save(tmp_path / "m"))
    assert (loaded.trained_length, loaded.window) == (128, 128)
    config = tmp_path / "m" / "config.json"
    about = json.loads(config.read_text())
    del about["sha256"]
    config.write_text(json.dumps({**about, "trained_length": "long"}))
    with pytest.raises(CheckpointError, match="trained_length='long'"):
        palimpsest.load(tmp_path / "m")


def test_which_models_have_a_window() -> None:
    recurrent = palimpsest.build("gpnm-tiny")
    recurrent.trained_length = 64
    assert recurrent.window == 0 and recurrent.max_length is None
    recurrent.window = 0
    with pytest.raises(InputError, match="window=64: gpnm"):
        recurrent.window = 64
    learned = build("transformer", 64, positions="learned", max_seq_len=100)
    assert (learned.window, learned.max_length) == (64, 64)
    assert learned.init_state(1).window == 0
    learned.window = 100
    assert learned.max_length == 100
    with pytest.raises(InputError, match=r"window=101: .*max_seq_len=100"):
        learned.window = 101
    for wrong in (-1, 2.5, True, None):
        with pytest.raises(InputError, match=f"window={wrong!r}"):
            learned.window = wrong  # type: ignore[assignment]


def test_what_is_said_about_a_text() -> None:
    model = build("transformerpp", 64)
    assert model.describe_reading(64) == ""
    assert "window of 64 tokens, the length it was trained on" in model.describe_reading(65)
    model.window = 32
    assert model.describe_reading(65) == "attention reads a sliding window of 32 tokens"
    model.window = 0
    assert "up to 500 tokens, more than the 64" in model.describe_reading(500)
    assert build("transformerpp").describe_reading(10**6) == ""
