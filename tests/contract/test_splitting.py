"""Splitting is invisible, and a state is a value: passed in, given back, never changed."""

from __future__ import annotations

import pytest
import torch

from tests.contract.harness import (
    AUTOMATIC,
    BATCH,
    LENGTH,
    Setting,
    gradients,
    objective,
    random_ids,
    run_pieces,
    settings,
    snapshot,
    tensors,
    used_state,
)

LONG = 67


def assert_split_equals_whole(
    setting: Setting, lengths: list[list[int]], *, only_state: bool = False
) -> None:
    """Logits, last state and all gradients, initial state included, from a state mid-text."""
    model = setting.build()
    ids = random_ids(model, BATCH, sum(lengths[0]))
    with setting.active():
        start = used_state(model, BATCH, leaf=True)

        def run(pieces: list[int]) -> tuple[torch.Tensor, dict, dict]:
            logits, state = run_pieces(model, ids, pieces, start)
            loss = objective(None if only_state else logits, state)
            return logits.detach(), tensors(state.detach()), gradients(model, loss, start)

        want_logits, want_state, want_grads = run([ids.shape[1]])
        assert any(g.abs().max() > 0 for n, g in want_grads.items() if n.startswith("state."))
        for pieces in lengths:
            what = f"pieces {pieces} "
            logits, state, grads = run(pieces)
            setting.assert_close(logits, want_logits, what + "logits")
            setting.assert_all_close(state, want_state, what + "state.")
            setting.assert_same_gradients(grads, want_grads, what)


@settings("fp64", "fp32")
def test_two_pieces_at_every_cut(setting: Setting) -> None:
    cuts = range(1, LENGTH) if setting.precision == "fp64" else (1, 2, LENGTH - 1)
    assert_split_equals_whole(setting, [[a, LENGTH - a] for a in cuts])


@settings("fp64", "bf16")
def test_three_pieces_and_single_tokens(setting: Setting) -> None:
    assert_split_equals_whole(setting, [[2, 4, 3], [1] * LENGTH])


@settings("fp64")
def test_gradient_through_the_final_state_alone(setting: Setting) -> None:
    assert_split_equals_whole(setting, [[LENGTH], [3, 6], [8, 1]], only_state=True)


@settings("fp64", skip=["reference"])
def test_long_text_at_cuts_around_chunk_sizes(setting: Setting) -> None:
    assert_split_equals_whole(setting, [[a, LONG - a] for a in (33, 64, 65)])


@pytest.mark.slow
@settings("fp64", "fp32", "bf16")
def test_long_text_at_many_cuts(setting: Setting) -> None:
    cuts = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66)
    assert_split_equals_whole(setting, [[a, LONG - a] for a in cuts])
    assert_split_equals_whole(setting, [[1, 1, 30, 2, 32, 1], [33, 33, 1], [64, 1, 2]])


@settings("fp64")
def test_state_passed_in_never_changes(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, BATCH, LENGTH)
    attention = torch.ones_like(ids)
    attention[0, :2] = 0
    reset = torch.zeros_like(ids)
    reset[1, 4] = 1
    with setting.active():
        start = used_state(model, BATCH, leaf=True)
        given = (start, ids, attention, reset)
        before = snapshot(*given)
        out = model(ids, start, targets=ids, attention_mask=attention, reset_mask=reset)
        after_first = snapshot(out.state)
        out.loss.backward(retain_graph=True)
        # generation: one token at a time, and two continuations of one state
        branches = [model(ids[:, :1], out.state) for _ in range(2)]
        state = branches[0].state
        for t in range(1, 4):
            state = model(ids[:, t : t + 1], state).state
        objective(None, state).backward()
    assert snapshot(*given) == before
    assert snapshot(out.state) == after_first
    assert torch.equal(branches[0].logits, branches[1].logits)


@settings("fp64")
def test_truncated_backpropagation(setting: Setting) -> None:
    """A detached state cuts the gradient there and nowhere else."""
    model = setting.build()
    ids = random_ids(model, BATCH, LENGTH)
    first, second = ids[:, :5], ids[:, 5:]
    with setting.active():
        out = model(first, targets=first)
        kept = out.state.detach()
        assert not any(t.requires_grad for t in tensors(kept).values())
        following = model(second, kept, targets=second)
        got = gradients(model, out.loss + following.loss)

        one = gradients(model, model(first, targets=first).loss)
        copy = kept.clone()
        two = gradients(model, model(second, copy, targets=second).loss)
        whole = model(second, model(first).state, targets=second).loss
        uncut = gradients(model, whole)
    want = {name: one[name] + two[name] for name in one}
    setting.assert_same_gradients(got, want)
    assert any(not torch.allclose(uncut[name], two[name]) for name in uncut)


@settings("fp64", "fp32")
def test_every_short_length(setting: Setting) -> None:
    """T = 1 … 9, with and without gradients wanted: ops may take other paths at small T."""
    model = setting.build()
    ids = random_ids(model, BATCH, LENGTH)
    modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    with setting.active():
        whole = model(ids).logits
        for length in range(1, LENGTH + 1):
            with modes[length % len(modes)]():
                got = model(ids[:, :length]).logits
            setting.assert_close(got, whole[:, :length], f"length {length}")
        for mode in modes:
            with mode():
                setting.assert_close(model(ids).logits, whole, mode.__name__)


def test_automatic_is_among_the_settings() -> None:
    chosen = test_two_pieces_at_every_cut.pytestmark[0].args[1]
    assert AUTOMATIC in {param.values[0].backend for param in chosen}
