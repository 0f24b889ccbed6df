"""Replacing tensors, editing the state, patching parameters: by hand it is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest import analysis
from palimpsest.errors import InputError, StateError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from tests.comparison import assert_close
from tests.contract.configs import CONFIGS
from tests.contract.harness import gradients, random_ids, randomise, run_pieces

EXACT = 1e-11


def named(name: str) -> LanguageModel:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values())))
    randomise(model)
    return model.double().eval()


def bend(x: Tensor) -> Tensor:
    """Not what a norm would undo."""
    return 1.5 * x + 0.5 + torch.arange(x.shape[-1]) % 3


@pytest.mark.parametrize("name", palimpsest.list_models())
def test_what_is_replaceable_has_an_effect(name: str) -> None:
    """Each replaceable tap of each model: the identity changes nothing, another value does."""
    model = named(name)
    ids = random_ids(model, 2, 9)
    plain = model(ids).logits
    names = [tap for tap, about in analysis.taps(model).items() if about.replaceable]
    assert names
    for tap in names:
        with analysis.intervene(model, {tap: lambda x: x}):
            assert torch.equal(model(ids).logits, plain), tap
        with analysis.intervene(model, {tap: bend}):
            assert not torch.allclose(model(ids).logits, plain, atol=1e-6), tap
    assert torch.equal(model(ids).logits, plain)


def test_order_of_listeners_and_gradients(model: LanguageModel, ids: Tensor) -> None:
    with (
        analysis.record(model, ["drive"]) as before,
        analysis.intervene(model, {"dri*": lambda x: 2.0 * x}),
        analysis.record(model, ["drive"]) as after,
    ):
        doubled = model(ids, targets=ids)
    assert torch.equal(2.0 * before["drive"], after["drive"])
    got_grads = gradients(model, doubled.loss)
    with analysis.patched(model, {"fuse.weight": 2.0 * model.fuse.weight}):
        want = model(ids, targets=ids)
        assert_close(doubled.loss, want.loss, EXACT)
        want_grads = gradients(model, want.loss)
    assert_close(got_grads["fuse.weight"], 2.0 * want_grads["fuse.weight"], 1e-9)


def test_taps_that_cannot_be_replaced(model: LanguageModel, ids: Tensor) -> None:
    with (
        pytest.raises(InputError, match=r"'memory.beta' can be recorded but not replaced.*drive"),
        analysis.intervene(model, {"memory.beta": torch.zeros_like}),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"no 'bete'"),
        analysis.intervene(model, {"bete": torch.zeros_like}),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"for 'drive' returned \(4, 11, 1\)"),
        analysis.intervene(model, {"drive": lambda x: x[..., :1]}),
    ):
        model(ids)
    assert torch.isfinite(model(ids).logits).all()


def halve(state: State, position: int) -> State:
    return state.map(lambda t: t * 0.5 if t.is_floating_point() else t)


@pytest.mark.parametrize("name", ["gpnm", "gdn", "triple-slot", "transformer"])
@pytest.mark.parametrize("pieces", [[10], [3, 1, 6]], ids=str)
def test_edited_states(name: str, pieces: list[int]) -> None:
    """As one would write it by hand, with gradients, and however the text is cut."""
    model = named(name)
    ids = random_ids(model, 2, 10)
    seen = []

    def edit(state: State, position: int) -> State:
        seen.append(position)
        return halve(state, position)

    with analysis.edit_state(model, edit, every=4), analysis.record(model, ["*"]) as tape:
        logits, state = run_pieces(model, ids, pieces)
    assert seen == [4, 8]
    by_hand, start = [], None
    with analysis.record(model, ["*"]) as want:
        for i, piece in enumerate(ids.split(4, 1)):
            out = model(piece, start)
            by_hand.append(out.logits)
            start = halve(out.state, 0) if i < 2 else out.state
    assert_close(logits, torch.cat(by_hand, 1), EXACT)
    for (what, one), (_, two) in zip(state.named_tensors(), start.named_tensors(), strict=True):
        assert_close(one, two, EXACT, what)
    got, expected = (gradients(model, x.square().sum()) for x in (logits, torch.cat(by_hand, 1)))
    for parameter, gradient in expected.items():
        assert_close(got[parameter], gradient, 1e-9, parameter)
    for tap in want:
        assert_close(tape[tap], want[tap], EXACT, tap)


def test_every_token_with_masks(model: LanguageModel, ids: Tensor) -> None:
    """An edit that changes nothing, one token at a time, with padding and documents."""
    attention, reset = torch.ones_like(ids), torch.zeros_like(ids)
    attention[0, :3] = attention[1, 9:] = 0
    reset[2, 5] = 1
    masks = {"attention_mask": attention, "reset_mask": reset}
    want = model(ids, **masks)
    with analysis.edit_state(model, lambda state, position: state):
        got = model(ids, **masks)
        with analysis.edit_state(model, halve, every=11):
            edited = model(ids, **masks)
    assert_close(got.logits, want.logits, EXACT)
    assert_close(edited.state.predicted, 0.5 * got.state.predicted, EXACT)
    assert "encode" not in vars(model)


def test_edits_of_the_wrong_kind(model: LanguageModel, ids: Tensor) -> None:
    with (
        pytest.raises(StateError, match="rows"),
        analysis.edit_state(model, lambda state, position: state.select([0])),
    ):
        model(ids)
    assert "encode" not in vars(model)
    with pytest.raises(InputError, match="every=0"), analysis.edit_state(model, halve, every=0):
        pass


@pytest.mark.parametrize("how", ["zero", "freeze", "shuffle"])
def test_heads(model: LanguageModel, ids: Tensor, how: str) -> None:
    edit = analysis.edit_heads("memory", [0, 2], how)
    with torch.no_grad():
        with (
            analysis.edit_state(model, edit, every=3),
            analysis.record(model, ["memory.matrix"]) as tape,
        ):
            state = model(ids[:, :9]).state
        plain = model(ids[:, :9]).state
    assert not torch.allclose(state.memory, plain.memory)
    matrix = tape["memory.matrix"][:, 8]
    assert torch.allclose(state.memory[:, 1], matrix[:, 1])
    heads = state.memory[:, [0, 2]]
    if how == "zero":
        assert not heads.any()
    elif how == "shuffle":
        assert torch.allclose(heads, matrix[:, [0, 2]].roll(1, 0))
    else:
        assert torch.allclose(heads, tape["memory.matrix"][:, 2][:, [0, 2]])


def test_heads_of_layers_and_of_slots() -> None:
    for name, path, axis in (("gdn", "memories.1", 1), ("triple-slot", "memory.0", 2)):
        model = named(name)
        ids = random_ids(model, 2, 4)
        edit = analysis.edit_heads(path, [1], "zero", axis=axis)
        with analysis.edit_state(model, edit, every=4):
            state = dict(model(ids).state.named_tensors())
        assert not state[path].select(axis, 1).any()
        assert state[path].select(axis, 0).any()


def test_heads_that_do_not_exist(model: LanguageModel, ids: Tensor) -> None:
    for edit, message in (
        (analysis.edit_heads("memory", [3], "zero"), "head 3 of 3"),
        (analysis.edit_heads("memories", [0], "zero"), "no 'memories'; it has predicted"),
        (analysis.edit_heads("memory", [0], "zero", axis=7), "axis=7"),
    ):
        with pytest.raises(InputError, match=message), analysis.edit_state(model, edit):
            model(ids)
    with pytest.raises(InputError, match="how='cut'"):
        analysis.edit_heads("memory", [0], "cut")  # type: ignore[arg-type]
    with (
        pytest.raises(InputError, match="at least two rows"),
        analysis.edit_state(model, analysis.edit_heads("memory", [0], "shuffle")),
    ):
        model(ids[:1])


def test_patched_parameters(model: LanguageModel, ids: Tensor) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    want = model(ids).logits
    cut = {"cell.layers.0.ffn_out.weight": 0.0, "cell.layers.0.read.out.weight": 0.0}
    with analysis.patched(model, cut), analysis.record(model, ["layers.0.*"]) as tape:
        assert not torch.allclose(model(ids).logits, want)
        with analysis.patched(model, {"decode_norm.weight": torch.full((13,), 2.0)}):
            assert model.decode_norm.weight.eq(2.0).all()
    assert not tape["layers.0.read"].any()
    assert tape["layers.0.ffn"].abs().max() < 1e-12
    with pytest.raises(ZeroDivisionError), analysis.patched(model, cut):
        raise ZeroDivisionError
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    with (
        pytest.raises(InputError, match=r"no parameter 'cell.W'"),
        analysis.patched(model, {"cell.W": 0.0}),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"given as \(2,\): must be \(13,\)"),
        analysis.patched(model, {"decode_norm.weight": torch.zeros(2)}),
    ):
        pass
