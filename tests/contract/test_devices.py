"""Models whose device or dtype is not the default one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import palimpsest
from palimpsest.ops.dispatch import dispatchers, elsewhere
from palimpsest.ops.threads import require_cpu
from tests.contract.configs import CONFIGS
from tests.contract.harness import LENGTH, Setting, models_only, random_ids


@pytest.fixture
def meta_by_default() -> Iterator[None]:
    yield
    torch.set_default_device(None)


@models_only()
def test_cpu_model_under_another_default_device(setting: Setting, meta_by_default: None) -> None:
    model = setting.build().train()
    ids = random_ids(model, 2, LENGTH)
    torch.set_default_device("meta")
    output = model(ids, targets=ids)
    output.loss.backward()
    assert output.logits.device.type == "cpu"
    found = palimpsest.generate(model.eval(), ids[:, :3], max_new_tokens=3, seed=1)
    assert found.tokens.device.type == "cpu"


@models_only()
def test_float16(setting: Setting) -> None:
    torch.manual_seed(1)
    model = palimpsest.build(setting.model, **CONFIGS[setting.model][setting.label]).eval()
    ids = random_ids(model, 2, LENGTH)
    want = float(model(ids, targets=ids).loss.detach())
    half = model.half()
    output = half(ids, targets=ids)
    output.loss.backward()
    assert abs(float(output.loss.detach()) - want) < 0.05
    assert all(p.grad is None or p.grad.isfinite().all() for p in half.parameters())


@pytest.mark.parametrize(
    "op", [name for name, op in sorted(dispatchers().items()) if "numba" in op.names()]
)
def test_another_device_names_a_backend_that_exists(op: str) -> None:
    with pytest.raises(palimpsest.PalimpsestError) as refusal:
        require_cpu(op, torch.empty(1, device="meta"))
    assert elsewhere(op) in dispatchers()[op].names()
    assert f"backend={elsewhere(op)!r}" in str(refusal.value)


@models_only()
def test_meta_tensors_are_built_and_refused_to_run_in_one_line(setting: Setting) -> None:
    fields = CONFIGS[setting.model][setting.label]
    with torch.device("meta"):
        model = palimpsest.build(setting.model, **fields)
    real = palimpsest.build(setting.model, **fields)
    assert dict(model.named_shapes()) == dict(real.named_shapes())
    assert model.state_bytes(2, 5) == real.state_bytes(2, 5) and model.flops(5) == real.flops(5)
    ids = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(palimpsest.InputError, match="is on the meta device") as refusal:
        model(ids)
    assert "\n" not in str(refusal.value)
    with pytest.raises(palimpsest.InputError, match="input_ids is on the meta device"):
        real(ids.to("meta"))
