"""Interventions: what is folded into parameters and taps is what token by token would do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.analysis import edit_state, intervene, patched
from palimpsest.analysis.causal import measure_interventions, standard_interventions
from palimpsest.analysis.directions import mean_states, push, random_direction, random_turn
from palimpsest.analysis.effects import (
    Intervention,
    measure_changes,
    task_probe,
    text_probes,
)
from palimpsest.analysis.memories import pool_interventions
from palimpsest.analysis.parts import cut_heads, frozen_heads, map_heads, model_parts
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.ops.grounded_loop.reference import ground, predict, write
from palimpsest.tasks import RecallTask
from tests.contract.configs import CONFIGS
from tests.contract.harness import random_ids, randomise

NAMES = sorted(CONFIGS)
WITH_MEMORY = [n for n in NAMES if n not in ("gpn", "transformer", "transformerpp")]


def build(name: str) -> LanguageModel:
    torch.manual_seed(5)
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values())))
    randomise(model)
    return model.double().eval()


def token_by_token(
    model: LanguageModel,
    ids_BT: Tensor,
    *,
    before_write: Callable[[Tensor], Tensor] = lambda s: s,
    after_write: Callable[[Tensor, Tensor], Tensor] = lambda old, new: new,
    layer: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Logits of a one-layer GPN+M from the equations, with hooks where interventions act."""
    params, batch = model.cell.params(), len(ids_BT)
    state = model.init_state(batch)
    predicted, grounded, memory = state.predicted, state.grounded, state.memory
    drive_BTD = model.fuse(model.fuse_norm(model.embedding(ids_BT)))
    found = []
    for t in range(ids_BT.shape[1]):
        new = before_write(ground(predicted, drive_BTD[:, t], params.ground))
        memory = after_write(memory, write(memory, grounded, new, params.write))
        one = layer or (lambda s, m: predict(s, m, params.layers[0]))
        predicted = one(new, memory)
        grounded = new
        found.append(model._decode(predicted) @ model.head_weight().T)
    return torch.stack(found, 1)


@torch.no_grad()
def test_subtracting_at_grounding_is_taking_from_the_drive(
    model: LanguageModel, ids: Tensor
) -> None:
    mean_D = mean_states(model, ids)["state.grounded"].vector
    with intervene(model, {"drive": push(mean_D, "subtract")}):
        folded = model(ids).logits
    wanted = token_by_token(model, ids, before_write=lambda s: s - mean_D)
    torch.testing.assert_close(folded, wanted, rtol=1e-9, atol=1e-11)
    assert (folded - model(ids).logits).abs().max() > 1e-3


@torch.no_grad()
def test_a_cut_head_adds_nothing(model: LanguageModel, ids: Tensor) -> None:
    params = model.cell.params().layers[0]
    memory_off = params._replace(read=None)

    def without_head_1(state: Tensor, memory: Tensor) -> Tensor:
        out = params.read.out_DQ.clone()
        out[:, 7:14] = 0.0  # three heads with values of 7
        return predict(state, memory, params._replace(read=params.read._replace(out_DQ=out)))

    with patched(model, cut_heads(model, [(0, 1)])):
        folded = model(ids).logits
    torch.testing.assert_close(folded, token_by_token(model, ids, layer=without_head_1))
    with patched(model, cut_heads(model, model_parts(model).heads)):
        folded = model(ids).logits
    wanted = token_by_token(model, ids, layer=lambda s, m: predict(s, None, memory_off))
    torch.testing.assert_close(folded, wanted)


@torch.no_grad()
def test_a_cut_ffn_adds_nothing(model: LanguageModel, ids: Tensor) -> None:
    params = model.cell.params().layers[0]
    names = model_parts(model).ffns
    with patched(model, dict.fromkeys(names, 0.0)):
        folded = model(ids).logits

    def without(state: Tensor, memory: Tensor) -> Tensor:
        whole = predict(state, memory, params)
        alone = predict(state, None, params._replace(read=None))
        gate = predict(
            state,
            None,
            params._replace(read=None, ffn_out_DF=torch.zeros_like(params.ffn_out_DF)),
        )
        return whole - (alone - gate)

    torch.testing.assert_close(folded, token_by_token(model, ids, layer=without))


@torch.no_grad()
def test_a_frozen_head_is_neither_written_nor_decays(model: LanguageModel, ids: Tensor) -> None:
    def keep_head_2(old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([new[:, :2], old[:, 2:]], 1)

    first, rest = ids[:, :4], ids[:, 4:]
    state = model(first).state
    with patched(model, frozen_heads(model, [(0, 2)])):
        out = model(rest, state)
    assert torch.equal(out.state.memory[:, 2], state.memory[:, 2])
    steps = iter(range(ids.shape[1]))
    wanted = token_by_token(
        model, ids, after_write=lambda old, new: new if next(steps) < 4 else keep_head_2(old, new)
    )
    torch.testing.assert_close(out.logits, wanted[:, 4:])


@pytest.mark.parametrize("name", WITH_MEMORY)
@torch.no_grad()
def test_freezing_touches_the_chosen_memories_only(name: str) -> None:
    model = build(name)
    parts, ids = model_parts(model), random_ids(model, 2, 9)
    chosen = parts.held_heads[1]  # in the first layer with a memory, which no other changes
    state = model(ids[:, :4]).state
    plain = dict(model(ids[:, 4:], state).state.named_tensors())
    with patched(model, frozen_heads(model, [chosen])):
        after = dict(model(ids[:, 4:], state).state.named_tensors())
    before = dict(state.named_tensors())
    feeds_itself = name in ("gpnm",)  # what the head reads changes the state that all heads write
    for held, axis in parts.memories[chosen[0]].held:
        for head in range(parts.memories[chosen[0]].n_heads):
            found, old, free = (x[held].select(axis, head) for x in (after, before, plain))
            if head == chosen[1]:
                assert torch.equal(found, old)
                assert not torch.equal(free, old)
            elif not feeds_itself:
                torch.testing.assert_close(found, free)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("gpn", "gpnm", "mamba2")])
@torch.no_grad()
def test_a_cut_head_leaves_what_the_others_read(name: str) -> None:
    """Zero at the tap is zero in the product, where no norm joins the heads in between."""
    model = build(name)
    parts, ids = model_parts(model), random_ids(model, 2, 7)
    place = parts.memories[0].name

    def without(read_BTHU: Tensor) -> Tensor:
        return read_BTHU.index_fill(2, torch.tensor([1]), 0.0)

    with patched(model, cut_heads(model, [(0, 1)])):
        folded = model(ids).logits
    with intervene(model, {f"{place}.memory_read": without}):
        wanted = model(ids).logits
    torch.testing.assert_close(folded, wanted)


@torch.no_grad()
def test_mean_states_and_pushes(model: LanguageModel, ids: Tensor) -> None:
    means = mean_states(model, ids)
    with palimpsest.analysis.record(model, ["state.predicted", "state.grounded"]) as tape:
        model(ids)
    for name, mean in means.items():
        states = tape[name].flatten(0, 1)
        torch.testing.assert_close(mean.vector, states.mean(0))
        assert mean.rms_norm == pytest.approx(float(states.square().sum(1).mean().sqrt()))
    x, mean_D = tape["state.predicted"], means["state.predicted"].vector
    unit = mean_D / mean_D.norm()
    torch.testing.assert_close(push(mean_D, "subtract")(x), x - mean_D)
    left = push(mean_D, "project")(x) @ unit
    torch.testing.assert_close(left, torch.zeros_like(left))
    held = push(mean_D, "clamp")(x) @ unit
    torch.testing.assert_close(held, mean_D.norm().expand_as(held))
    other = random_direction(len(mean_D), torch.Generator().manual_seed(1))
    for how in ("subtract", "project", "clamp"):
        own, control = (push(mean_D, how, along)(x) - x for along in (None, other))
        torch.testing.assert_close(own.norm(dim=-1), control.norm(dim=-1))
        assert float(torch.cosine_similarity(own, control, dim=-1).abs().max()) < 0.999


@torch.no_grad()
def test_the_control_of_a_cut_is_as_long(model: LanguageModel) -> None:
    old = dict(model.named_parameters())["cell.layers.0.read.out.weight"]
    turn = random_turn(len(old), torch.Generator().manual_seed(2))
    torch.testing.assert_close(turn @ turn.T, torch.eye(len(old), dtype=torch.float64))
    (new,) = cut_heads(model, [(0, 0)], turn).values()
    assert torch.equal(new[:, 7:], old[:, 7:])
    torch.testing.assert_close((new - old)[:, :7].norm(dim=0), old[:, :7].norm(dim=0))


@torch.no_grad()
def test_changes_are_those_of_a_hand_made_reading(model: LanguageModel) -> None:
    ids = random_ids(model, 6, 12)
    swap = Intervention(
        name="swap",
        group="memory",
        about="",
        edit=lambda state, _: map_heads(
            state,
            model_parts(model),
            model_parts(model).held_heads,
            dict(state.select([3, 4, 5, 0, 1, 2]).named_tensors()),
        ),
    )
    nothing = Intervention(name="nothing", group="", about="")
    probes = text_probes(ids)
    found = measure_changes(model, probes, [nothing, swap], batch_size=6)
    plain = model(ids[:, :-1], targets=ids[:, 1:])
    base = float(plain.loss) / math.log(2)
    assert found["nothing"][0].base == pytest.approx(base)
    for change in found["nothing"]:
        assert change.value == pytest.approx(0.0, abs=1e-12)
    state = model(ids[:, :5]).state
    other = state.memory[[3, 4, 5, 0, 1, 2]]
    state = type(state)(state.predicted, state.grounded, other)
    nats = model(ids[:, 5:-1], state, targets=ids[:, 6:]).token_losses.sum()
    wanted = float(nats - plain.token_losses[:, 5:].sum()) / math.log(2) / ids[:, 1:].numel()
    change = found["swap"][0]
    assert change.value == pytest.approx(wanted)
    assert change.low < change.value < change.high
    assert change.blocks == 6


@torch.no_grad()
def test_what_a_second_reading_saves(model: LanguageModel) -> None:
    ids = random_ids(model, 3, 13)
    _, repeat = text_probes(ids)
    twice = torch.cat([ids[:, :6]] * 2, 1)
    losses = model(twice[:, :-1], targets=twice[:, 1:]).token_losses / math.log(2)
    wanted = (losses[:, :5].sum() - losses[:, 6:].sum()) / 15
    nothing = Intervention(name="nothing", group="", about="")
    (change,) = measure_changes(model, [repeat], [nothing])["nothing"]
    assert change.base == pytest.approx(float(wanted))
    assert change.unit == "bits per byte saved"


@torch.no_grad()
def test_bytes_of_tokens_count(model: LanguageModel) -> None:
    ids = random_ids(model, 3, 13)
    nothing = [Intervention(name="nothing", group="", about="")]
    one, three = (
        measure_changes(model, text_probes(ids, lengths), nothing)["nothing"]
        for lengths in (None, torch.full_like(ids, 3))
    )
    for a, b in zip(one, three, strict=True):
        assert a.base == pytest.approx(3 * b.base)


@torch.no_grad()
def test_a_task_counts_right_answers() -> None:
    task = RecallTask(length=24)
    model = palimpsest.build(
        "gpnm", vocab_size=task.vocab_size, d_state=13, d_emb=6, n_heads=3, d_key=5, d_val=7
    ).eval()
    probe = task_probe(task, 32)
    batch = task.batch(32, torch.Generator().manual_seed(1_000_003))
    wanted = task.accuracy(model(batch.inputs).logits, batch.labels).accuracy
    nothing = [Intervention(name="nothing", group="", about="")]
    (change,) = measure_changes(model, [probe], nothing)["nothing"]
    assert (change.base, change.unit) == (pytest.approx(wanted), "accuracy")
    result = measure_interventions(model, batch.inputs, probes=[probe], draws=1)
    assert result.probes == (task.name,)
    assert result.effect("FFN cut").changes[0].blocks == 32


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture(name: str) -> None:
    model = build(name)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    ids, parts = random_ids(model, 3, 9), model_parts(model)
    pools = {"fast": parts.held_heads[:1], "slow": parts.held_heads[1:3]}
    result = measure_interventions(
        model, ids, pools=pools, heads=parts.heads[:1] or None, draws=1, batch_size=3
    )
    names = [effect.name for effect in result.effects]
    assert "mean state subtracted before decoding" in names
    assert ("mean state subtracted at every grounding" in names) == name.startswith("gpn")
    assert ("slow pool frozen" in names) == bool(parts.held_heads)
    assert ("memories of two texts swapped" in names) == bool(parts.held_heads)
    assert ("FFN cut" in names) == (name != "mamba2")
    assert ("retrieval cut" in names) == (name == "gated-hybrid")
    for effect in result.effects:
        assert len(effect.changes) == 2
        assert all(math.isfinite(change.value) for change in effect.changes)
        assert (effect.group == "noise" or effect.name == "memory emptied") == (not effect.controls)
    assert json.loads(json.dumps(result.to_dict()))["effects"][0]["name"] == names[0]
    for n, parameter in model.named_parameters():
        assert torch.equal(parameter, before[n]), n
    assert not model.training


def test_the_same_numbers_whatever_else_is_measured(model: LanguageModel) -> None:
    ids = random_ids(model, 4, 12)
    interventions, _ = standard_interventions(model, ids, draws=1)
    noise = [iv for iv in interventions if iv.group == "noise"]
    probes = text_probes(ids, repeat=False)
    alone = measure_changes(model, probes, noise[-1:])
    among = measure_changes(model, probes, noise)
    name = noise[-1].name
    assert alone[name] == among[name]


def test_pools_have_random_pools_of_the_same_size_beside_them(model: LanguageModel) -> None:
    found = pool_interventions(model, {"slow": [(0, 2)]}, draws=5)
    controls = [iv.about for iv in found if iv.control_of == "slow pool cut"]
    assert sorted(about[-6:] for about in controls) == ["head 0", "head 1"]
    every = pool_interventions(model, {"all": [(0, 0), (0, 1), (0, 2)]}, draws=5)
    assert not [iv for iv in every if iv.control_of]


@torch.no_grad()
def test_shuffling_mid_way_is_an_edit_of_the_state(model: LanguageModel) -> None:
    """The fold in pieces of a block, against the state edited between tokens."""
    ids = random_ids(model, 2, 12)
    shuffled = next(
        iv
        for iv in pool_interventions(model, {"slow": [(0, 1), (0, 2)]})
        if iv.name == "slow pool shuffled"
    )
    probe = text_probes(ids, repeat=False)[0]
    change = measure_changes(model, [probe], [shuffled], batch_size=2)[shuffled.name][0]
    swap = palimpsest.analysis.edit_heads("memory", [1, 2], "shuffle")
    with edit_state(model, lambda state, at: swap(state, at) if at == 5 else state, every=1):
        edited = model(ids[:, :-1], targets=ids[:, 1:]).loss
    plain = model(ids[:, :-1], targets=ids[:, 1:]).loss
    assert change.value == pytest.approx(float(edited - plain) / math.log(2))


def test_mistakes_are_named(model: LanguageModel, ids: Tensor) -> None:
    with pytest.raises(InputError, match=r"head \(0, 3\): memory 0 has 3 heads, numbered from 0"):
        measure_interventions(model, ids, heads=[(0, 3)])
    with pytest.raises(InputError, match=r"head \(1, 0\): the model has 1 memories"):
        measure_interventions(model, ids, pools={"slow": [(1, 0)]})
    with pytest.raises(InputError, match="at least 2 blocks of at least 8 tokens"):
        measure_interventions(model, ids[:, :5])
    with pytest.raises(InputError, match="at least 2 blocks"):
        measure_interventions(model, ids[:1])
    with pytest.raises(InputError, match=r"draws=0: an effect without a control"):
        measure_interventions(model, ids, draws=0)
    with pytest.raises(InputError, match="this model has no heads"):
        measure_interventions(build("gpn"), ids, heads=[(0, 0)])
    with pytest.raises(InputError, match="heads of attention, which carry no memory"):
        measure_interventions(build("transformerpp"), ids, pools={"slow": [(0, 0)]})
    with pytest.raises(InputError, match="how='drop': must be one of subtract, project, clamp"):
        push(torch.ones(3), "drop")
    with pytest.raises(InputError, match="examples=1: must be at least 2"):
        task_probe(RecallTask(), 1)
    with pytest.raises(InputError, match="middle=128: must be above 0 and below the task's 128"):
        task_probe(RecallTask(), 2, middle=128)
    result = measure_interventions(model, ids, draws=1)
    with pytest.raises(InputError, match="effect 'FFN': was not measured; there is"):
        result.effect("FFN")
