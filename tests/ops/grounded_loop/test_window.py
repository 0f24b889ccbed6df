"""The window form's own machinery: blocks, segments, packed products, and what it keeps."""

from __future__ import annotations

import pytest
import torch

import palimpsest
from palimpsest.ops.grounded_loop import chunks, grounded_loop, products, window
from tests.comparison import assert_all_close, assert_close
from tests.ops.grounded_loop.blocks import BATCH, make_inputs, values_and_gradients
from tests.ops.grounded_loop.test_backends import FAST, FP64


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("layers", [1, 2])
def test_several_blocks(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory kept at each block's start gives the chunks inside it again."""
    monkeypatch.setattr(chunks, "BLOCK_ROWS", 2 * chunks.CHUNK * BATCH)
    inputs = make_inputs(70, layers=layers, masks=True, seed=layers)
    resets = None if inputs.reset is None else inputs.reset.any(0)
    assert len(chunks.schedule(70, BATCH, resets)) > 3
    want_values, want_grads = values_and_gradients(inputs, "reference")
    values, grads = values_and_gradients(inputs, name)
    assert_all_close(values, want_values, FP64)
    assert_all_close(grads, want_grads, FP64, "gradient of ")


@pytest.mark.parametrize("name", FAST)
def test_segments_without_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(70, layers=2, masks=True)
    with torch.no_grad():
        want = inputs.run("reference")
        monkeypatch.setattr(window, "SEGMENT", 16)
        got = inputs.run(name)
    for output, expected in zip(got, want, strict=True):
        assert_close(output, expected, FP64)


def test_schedule_covers_every_step_once() -> None:
    resets = torch.zeros(50, dtype=torch.bool)
    resets[[0, 3, 4, 20, 49]] = True
    blocks = chunks.schedule(50, 300, resets)
    flat = [chunk for block in blocks for chunk in block]
    assert [start for start, _ in flat][1:] == [end for _, end in flat][:-1]
    assert flat[0][0] == 0 and flat[-1][1] == 50
    assert {3, 4, 20, 49} <= {start for start, _ in flat}
    assert all(0 < end - start <= chunks.CHUNK for start, end in flat)
    assert all(b[-1][1] - b[0][0] <= chunks.block_steps(300) for b in blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("steps", [1, 100])
def test_product_is_the_product(dtype: torch.dtype, steps: int) -> None:
    x, weight = torch.randn(3, 37).to(dtype), torch.randn(29, 37).to(dtype)
    found = products.prepare(weight, 3, steps)(x)
    assert found.dtype == dtype
    want = x.double() @ weight.double().t()
    assert_close(found, want, {torch.bfloat16: 1e-2, torch.float32: 1e-6}.get(dtype, 1e-14))


def test_product_without_the_packed_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_packer", lambda dtype: None)
    x, weight = torch.randn(3, 37), torch.randn(29, 37)
    assert torch.equal(products.prepare(weight, 3, 100)(x), torch.mm(x, weight.t()))


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_memory_saved_per_token(name: str, precision: torch.dtype) -> None:
    """At most twice the inputs of the three products, parameters and outputs aside."""
    batch, length = 16, 64
    model = palimpsest.build("gpnm-tiny")
    config, state = model.config, model.init_state(batch)
    drive = torch.randn(batch, length, config.d_state, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    params = model.cell.params()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        out = grounded_loop(
            drive, params, state.predicted, state.grounded, state.memory, backend=name
        )
    for tensor in (drive, out[0], *model.parameters(), *(t for _, t in state.named_tensors())):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    folded = 4 * sum(p.numel() for p in model.cell.parameters())
    per_token = (sum(kept.values()) - folded) / (batch * length)
    inputs = (2 * config.d_state + config.d_ffn + config.n_heads * config.d_val) * (
        precision.itemsize
    )
    assert inputs < per_token <= 2 * inputs


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_weights_in_bf16_without_autocast(name: str) -> None:
    """States, norms and gates stay in fp32; only the products follow the weights."""
    model = palimpsest.build("gpnm-tiny")
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    ids = torch.randint(0, 259, (2, 12))
    want = model(ids, targets=ids).loss.item()
    model.to(torch.bfloat16)
    with palimpsest.force_backend(grounded_loop=name):
        out = model(ids, targets=ids)
        out.loss.backward()
    assert all(t.dtype == torch.float32 for _, t in out.state.named_tensors())
    assert out.loss.item() == pytest.approx(want, rel=1e-2)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
