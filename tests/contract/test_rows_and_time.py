"""Nothing looks ahead, rows do not see each other, and the same run gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import InputError
from tests.contract.configs import EARLIER_LOGITS_TO_ROUNDING
from tests.contract.harness import (
    LENGTH,
    Setting,
    assert_same_state,
    gradients,
    models_only,
    random_ids,
    settings,
    tensors,
    used_state,
)


@settings("fp64", "fp32")
def test_changed_token_leaves_earlier_logits(setting: Setting) -> None:
    model = setting.build()
    if not model.causal:
        pytest.skip("declares itself not causal")
    ids = random_ids(model, 2, LENGTH)
    with setting.active(), torch.no_grad():
        want = model(ids).logits
        rounding = 4 * torch.finfo(want.dtype).eps * float(want.abs().sum())
        allowed = rounding if setting.model in EARLIER_LOGITS_TO_ROUNDING else 0.0
        for j in range(LENGTH):
            changed = ids.clone()
            changed[:, j] = (changed[:, j] + 1) % model.config.vocab_size
            got = model(changed).logits
            moved = float((got[:, :j] - want[:, :j]).abs().sum())
            assert moved <= allowed, f"token {j} changed an earlier logit by {moved:.1e}"
            assert not torch.equal(got[:, j], want[:, j]), f"token {j} has no effect"


@settings("fp64")
def test_batch_equals_its_rows(setting: Setting) -> None:
    """Row by row, and in another order."""
    model = setting.build()
    ids = random_ids(model, 4, LENGTH)
    order = torch.tensor([3, 0, 2, 1])
    with setting.active():
        start = used_state(model, 4, leaf=True)
        whole = model(ids, start, targets=ids)
        want_grads = gradients(model, whole.loss_sum, start)
        parts = [model(ids[r : r + 1], start.select(r), targets=ids[r : r + 1]) for r in range(4)]
        grads = gradients(model, sum(part.loss_sum for part in parts), start)
        for row, part in enumerate(parts):
            setting.assert_close(part.logits[0], whole.logits[row], f"row {row}")
            assert_same_state(setting, model, part.state, whole.state.select(row), f"row {row}")
        setting.assert_same_gradients(grads, want_grads)
        with torch.no_grad():
            moved = model(ids[order], start.select(order))
        setting.assert_close(moved.logits, whole.logits[order], "logits")
        assert_same_state(setting, model, moved.state, whole.state.select(order))


@settings("fp32", "bf16")
def test_same_run_gives_the_same_bits(setting: Setting) -> None:
    def once() -> tuple[torch.Tensor, dict, dict]:
        model = setting.build()
        ids = random_ids(model, 3, LENGTH)
        with setting.active():
            out = model(ids, targets=ids)
            return out.loss.detach(), tensors(out.state.detach()), gradients(model, out.loss)

    first, second = once(), once()
    assert torch.equal(first[0], second[0])
    for one, two in zip(first[1:], second[1:], strict=True):
        for name in one:
            assert torch.equal(one[name], two[name]), name


@models_only()
def test_longest_text(setting: Setting) -> None:
    """An architecture with a bound refuses what goes past it, also through the state."""
    model = setting.build()
    if model.max_length is None:
        pytest.skip("has no longest text")
    ids = random_ids(model, 1, model.max_length + 1)
    state = model(ids[:, :-1]).state
    for too_long in (lambda: model(ids), lambda: model(ids[:, -1:], state)):
        with pytest.raises(InputError, match=str(model.max_length)):
            too_long()


@models_only()
def test_state_bytes(setting: Setting) -> None:
    model = setting.build()
    for batch, length in ((1, 3), (2, 8)):
        state = model(random_ids(model, batch, length)).state
        assert model.state_bytes(batch, length) == state.nbytes
        assert state.batch_size == batch


@models_only()
def test_a_state_keeps_nothing_else_in_memory(setting: Setting) -> None:
    """Not the text that it is the end of, for which its own size would then say nothing."""
    model = setting.build().eval()
    if getattr(model.config, "memory_cap", 0):
        pytest.skip("pairs above the cap give their room back once they are most of it")
    ids = random_ids(model, 2, min(64, model.max_length or 64))
    reset = torch.zeros_like(ids, dtype=torch.bool)
    reset[:, 5] = True
    for options in ({}, {"reset_mask": reset}):
        with torch.no_grad():
            state = model(ids, **options).state
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage() for _, t in state.named_tensors()
        }
        kept = sum(storage.nbytes() for storage in storages.values())
        # keys and values of documents that are over may lie before those of the last one
        assert kept <= model.state_bytes(2, ids.shape[1])


@models_only()
def test_state_bytes_in_bf16(setting: Setting) -> None:
    model = setting.build().eval()
    ids = random_ids(model, 2, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(ids).state.nbytes == model.state_bytes(2, 8)
    model.bfloat16()
    with torch.no_grad():
        assert model(ids).state.nbytes == model.state_bytes(2, 8)
