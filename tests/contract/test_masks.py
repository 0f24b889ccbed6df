"""Padding holds the state, packing clears it: both equal the texts run by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import InputError
from palimpsest.state import State
from tests.contract.harness import (
    Grads,
    Setting,
    assert_same_state,
    gradients,
    objective,
    random_ids,
    settings,
    used_state,
)

WIDTH = 11
# where each row's real tokens lie: no padding, left, right, a single token with both
REAL = (slice(0, 11), slice(5, 11), slice(0, 7), slice(6, 7))


def attention() -> Tensor:
    mask = torch.zeros(len(REAL), WIDTH, dtype=torch.long)
    for row, where in enumerate(REAL):
        mask[row, where] = 1
    return mask


def objective_of_rows(logits: list[Tensor]) -> Tensor:
    return sum((objective(row, None) for row in logits), torch.zeros((), dtype=torch.float64))


@settings("fp64", "fp32", "bf16")
def test_padding_equals_no_padding(setting: Setting) -> None:
    """Left, right and on both sides, in one batch, from a state mid-text."""
    model = setting.build()
    ids = random_ids(model, len(REAL), WIDTH)
    with setting.active():
        start = used_state(model, len(REAL), leaf=True)
        alone = [
            model(ids[r : r + 1, where], start.select(r), targets=ids[r : r + 1, where])
            for r, where in enumerate(REAL)
        ]
        want_loss = sum(out.loss_sum for out in alone)
        want_grads = gradients(
            model, objective_of_rows([out.logits for out in alone]) + want_loss, start
        )
        out = model(ids, start, targets=ids, attention_mask=attention())
        real = [out.logits[r : r + 1, where] for r, where in enumerate(REAL)]
        for r, (got, want) in enumerate(zip(real, alone, strict=True)):
            setting.assert_close(got, want.logits, f"row {r} logits")
            assert_same_state(setting, model, out.state.select(r), want.state, f"row {r}")
        setting.assert_close(out.loss_sum, want_loss, "loss")
        assert out.n_targets == attention().sum()
        assert not out.token_losses[attention() == 0].any()
        grads = gradients(model, objective_of_rows(real) + out.loss_sum, start)
        setting.assert_same_gradients(grads, want_grads)


@settings("fp64")
def test_padding_at_the_start_of_a_text(setting: Setting) -> None:
    """From no state at all."""
    model = setting.build()
    ids = random_ids(model, 2, 9)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with setting.active(), torch.no_grad():
        out, want = model(ids, attention_mask=mask), model(ids[:1, 4:])
        setting.assert_close(out.logits[:1, 4:], want.logits, "logits")
        assert_same_state(setting, model, out.state.select(0), want.state)


@settings("fp64")
def test_row_of_padding_only_holds_its_state(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, 9)
    mask = torch.ones_like(ids)
    mask[0] = 0
    with setting.active(), torch.no_grad():
        for start in (used_state(model, 2), model.init_state(2)):
            out = model(ids, start, targets=ids, attention_mask=mask)
            assert_same_state(setting, model, out.state.select(0), start.select(0), "held")
            assert out.n_targets == ids.shape[1]
            assert not out.token_losses[0].any()


DOCUMENTS = ((4, 1, 2, 5), (1, 7, 3, 1))  # lengths of the documents packed into each row


def starts_of(rows: tuple[tuple[int, ...], ...]) -> Tensor:
    reset = torch.zeros(len(rows), sum(rows[0]), dtype=torch.bool)
    for row, lengths in enumerate(rows):
        for i in range(len(lengths)):
            reset[row, sum(lengths[:i])] = True
    return reset


def separate(
    model: palimpsest.LanguageModel, ids: Tensor, predict: str = "next"
) -> tuple[Tensor, list[State], Tensor, Grads]:
    """Every document by itself, put back where it was packed."""
    rows, last, loss = [], [], torch.zeros((), dtype=torch.float64)
    for row, lengths in enumerate(DOCUMENTS):
        pieces, start = [], 0
        for length in lengths:
            x = ids[row : row + 1, start : start + length]
            out = model(x, targets=x, predict=predict)
            pieces.append(out.logits)
            loss, start = loss + out.loss_sum, start + length
        rows.append(torch.cat(pieces, 1))
        last.append(out.state)
    logits = torch.cat(rows)
    return logits.detach(), last, loss, gradients(model, loss + objective(logits, None))


@settings("fp64", "fp32", "bf16")
def test_packed_equals_separate(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, len(DOCUMENTS), sum(DOCUMENTS[0]))
    with setting.active():
        want_logits, want_states, want_loss, want_grads = separate(model, ids)
        # a state passed in ends where the first document starts
        out = model(ids, used_state(model, 2), targets=ids, reset_mask=starts_of(DOCUMENTS))
        setting.assert_close(out.logits, want_logits, "logits")
        setting.assert_close(out.loss_sum, want_loss, "loss")
        for row, state in enumerate(want_states):
            assert_same_state(setting, model, out.state.select(row), state, f"row {row}")
        grads = gradients(model, out.loss_sum + objective(out.logits, None))
        setting.assert_same_gradients(grads, want_grads)


@settings("fp64")
def test_packed_and_padded(setting: Setting) -> None:
    """Padding before, between and after documents; whatever the padding's own reset says."""
    model = setting.build()
    packed = random_ids(model, len(DOCUMENTS), sum(DOCUMENTS[0]))
    reset = starts_of(DOCUMENTS)
    keep = torch.tensor([0, 1, 0, 0] + [1] * 6 + [0, 0] + [1] * 5 + [0], dtype=torch.bool)
    width = len(keep)
    assert int(keep.sum()) == packed.shape[1]
    ids = random_ids(model, len(packed), width, seed=8)
    ids[:, keep] = packed
    wide_reset = torch.zeros(len(packed), width, dtype=torch.bool)
    wide_reset[:, keep] = reset
    mask = keep.expand(len(packed), -1)
    with setting.active():
        want_logits, want_states, want_loss, want_grads = separate(model, packed)
        out = model(ids, targets=ids, attention_mask=mask, reset_mask=wide_reset)
        real = out.logits[:, keep]
        setting.assert_close(real, want_logits, "logits")
        setting.assert_close(out.loss_sum, want_loss, "loss")
        for row, state in enumerate(want_states):
            assert_same_state(setting, model, out.state.select(row), state, f"row {row}")
        grads = gradients(model, out.loss_sum + objective(real, None))
        setting.assert_same_gradients(grads, want_grads)


@settings("fp64")
def test_published_reading_predicts_each_token_before_it_is_seen(setting: Setting) -> None:
    """predict="current" is predict="next" one position later, from the state passed in."""
    model = setting.build()
    ids = random_ids(model, len(DOCUMENTS), sum(DOCUMENTS[0]))
    with setting.active():
        try:
            current = model(ids[:, 4:], model(ids[:, :4]).state, predict="current").logits
        except InputError:
            pytest.skip("predicts nothing before its first token")
        following = model(ids).logits
        setting.assert_close(current, following[:, 3:-1], "logits")
        # packed documents: each one's first token is predicted from the empty state
        want_logits, _, want_loss, _ = separate(model, ids, "current")
        reset = starts_of(DOCUMENTS)
        out = model(ids, targets=ids, reset_mask=reset, predict="current")
        setting.assert_close(out.logits, want_logits, "logits")
        setting.assert_close(out.loss_sum, want_loss, "loss")


@settings("fp64")
def test_masks_that_mask_nothing(setting: Setting) -> None:
    """All-true attention and no document start are the same as no masks, in any mask dtype."""
    model = setting.build()
    ids = random_ids(model, 2, 9)
    with setting.active(), torch.no_grad():
        want = model(ids, targets=ids)
        for dtype in (torch.bool, torch.long, torch.float32):
            got = model(
                ids,
                targets=ids,
                attention_mask=torch.ones(ids.shape, dtype=dtype),
                reset_mask=torch.zeros(ids.shape, dtype=dtype),
            )
            setting.assert_close(got.logits, want.logits, "logits")
            assert got.n_targets == want.n_targets
