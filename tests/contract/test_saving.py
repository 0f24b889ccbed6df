"""Save, load, save gives the same bytes; what was loaded gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.state import State
from tests.contract.harness import Setting, models_only, random_ids, snapshot, tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@models_only()
def test_model_survives_saving(setting: Setting, dtype: torch.dtype, tmp_path: Path) -> None:
    model = setting.build().to(dtype)
    model.save(tmp_path / "one")
    loaded = palimpsest.load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert loaded.config == model.config
    assert loaded.num_parameters() == model.num_parameters()
    for (name, one), (other, two) in zip(
        model.named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert name == other
        assert one.dtype == two.dtype == dtype
        assert torch.equal(one, two), name
    ids = random_ids(model, 2, 9)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        assert torch.equal(model(ids).logits, loaded.eval()(ids).logits)


@models_only()
def test_state_survives_saving(setting: Setting, tmp_path: Path) -> None:
    """The continuation after a pause is the continuation without it, bit for bit."""
    model = setting.build()
    ids = random_ids(model, 2, 9)
    state = model(ids[:, :5]).state
    state.save(tmp_path / "one.state", owner="a test")
    loaded = State.load(tmp_path / "one.state")
    loaded.save(tmp_path / "two.state", owner="a test")
    assert (tmp_path / "one.state").read_bytes() == (tmp_path / "two.state").read_bytes()
    assert type(loaded) is type(state)
    assert snapshot(loaded) == snapshot(state)
    assert tensors(loaded).keys() == tensors(state).keys()
    assert torch.equal(model(ids[:, 5:], loaded).logits, model(ids[:, 5:], state).logits)
