"""Every tap of every registered model: one tape however the text is read, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest import analysis
from palimpsest.analysis import Tape
from palimpsest.models.language_model import LanguageModel
from tests.comparison import assert_close
from tests.contract.configs import CONFIGS
from tests.contract.harness import random_ids, randomise, run_pieces

LENGTH = 39  # past a chunk of the memory's trace
EXACT = 1e-11

every_configuration = pytest.mark.parametrize(
    ("name", "label"),
    [(name, label) for name in palimpsest.list_models() for label in CONFIGS[name]],
)


def build(name: str, label: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    model = palimpsest.build(name, **CONFIGS[name][label])
    randomise(model)
    return model.to(dtype).eval()


def resets(ids: Tensor) -> Tensor:
    """Documents that start in the middle of a row, and at a cut between calls."""
    mask = torch.zeros_like(ids)
    mask[0, 33] = mask[1, 5] = mask[1, 17] = 1
    return mask


@torch.no_grad()
def in_pieces(model: LanguageModel, ids: Tensor, lengths: list[int]) -> Tape:
    with analysis.record(model, ["*"]) as tape:
        run_pieces(model, ids, lengths, reset_mask=resets(ids))
    return tape


@every_configuration
def test_training_prefill_and_tokens_give_one_tape(name: str, label: str) -> None:
    model = build(name, label)
    ids = random_ids(model, 3, LENGTH)
    prefill = in_pieces(model, ids, [LENGTH])
    by_token = in_pieces(model, ids, [17, *[1] * (LENGTH - 17)])
    with analysis.record(model, ["*"]) as training:
        model(ids, targets=ids, reset_mask=resets(ids)).loss.backward()
    known = analysis.taps(model)
    assert list(known) == prefill.names == by_token.names == training.names
    for tap, about in known.items():
        whole = prefill[tap]
        assert whole.shape[:2] == ids.shape, tap
        assert whole.ndim == about.shape.count(",") + 1, f"{tap}: {tuple(whole.shape)}"
        assert whole.dtype == (torch.int64 if about.dtype == "int64" else torch.float64), tap
        assert not whole.requires_grad
        assert_close(by_token[tap], whole, EXACT, f"{tap} token by token")
        assert_close(training[tap], whole, EXACT, f"{tap} while training")


@every_configuration
def test_recording_changes_nothing(name: str, label: str) -> None:
    model = build(name, label, torch.float32)
    ids = random_ids(model, 2, 9)
    for length in (9, 1):
        plain = model(ids[:, :length])
        with analysis.record(model, ["*"]):
            watched = model(ids[:, :length])
        assert torch.equal(plain.logits, watched.logits)
        for (_, one), (_, two) in zip(
            plain.state.named_tensors(), watched.state.named_tensors(), strict=True
        ):
            assert torch.equal(one, two)


@every_configuration
def test_padding_is_not_seen_by_the_rest(name: str, label: str) -> None:
    """A padded text under a mask gives what the text gives."""
    model = build(name, label)
    ids = random_ids(model, 2, 12)
    padded = torch.cat([random_ids(model, 2, 3, seed=8), ids], 1)
    attention = torch.ones_like(padded)
    attention[:, :3] = 0
    with torch.no_grad():
        with analysis.record(model, ["*"]) as plain:
            model(ids)
        where = attention.bool()
        with analysis.record(model, ["*"], where=where) as masked:
            model(padded, attention_mask=attention)
    for tap in plain:
        want = plain[tap].transpose(0, 1).flatten(0, 1)
        assert_close(masked[tap], want, EXACT, tap)


def memories(model: LanguageModel) -> Iterator[str]:
    """What the names of a model's matrix memories start with."""
    for tap in analysis.taps(model):
        if tap.endswith("memory.matrix"):
            yield tap.removesuffix("matrix")


@every_configuration
def test_memories_and_streams_add_up(name: str, label: str) -> None:
    """Norms are of the memories, the last memory is the state's, layers add what they add."""
    model = build(name, label)
    ids = random_ids(model, 3, LENGTH)
    with torch.no_grad(), analysis.record(model, ["*"]) as tape:
        state = model(ids, reset_mask=resets(ids)).state
    finals = [t for n, t in state.named_tensors() if n.startswith(("memory", "memories"))]
    finals = [t for t in finals if t.numel()]
    starts = list(memories(model))
    assert len(starts) == len(finals)
    for start, final in zip(starts, finals, strict=True):
        matrix = tape[f"{start}matrix"]
        assert_close(matrix[:, -1], final, EXACT, start)
        norms = matrix.square().sum((-1, -2)).sqrt()
        assert_close(tape[f"{start}norm"], norms, 1e-7, f"{start}norm")
    depth = sum(tap.endswith(".residual") for tap in tape)
    if "embedding" in tape and name not in ("gated-hybrid", "transformer-triple"):
        below = tape["embedding"]
        if "local_conv.added" in tape:
            below = below + tape["local_conv.added"]
        for i in range(depth):
            above = below + tape[f"layers.{i}.read"]
            if f"layers.{i}.ffn" in tape:  # Mamba-2 has none
                above = above + tape[f"layers.{i}.ffn"]
            below = tape[f"layers.{i}.residual"]
            assert_close(above, below, EXACT, f"layer {i}")


@pytest.mark.parametrize("name", ["triple-latent", "triple-slot"])
def test_running_state_of_the_triple_family(name: str) -> None:
    model = build(name, "learned")
    ids = random_ids(model, 2, 9)
    with torch.no_grad(), analysis.record(model, ["layers.1.*"]) as tape:
        state = model(ids).state
    running, keep = tape["layers.1.state"], tape["layers.1.decay.state"][..., None]
    assert_close(running[:, -1], dict(state.named_tensors())["running.1"], EXACT)
    before = torch.cat([torch.zeros_like(running[:, :1]), running[:, :-1]], 1)
    assert_close(keep * before + (1 - keep) * tape["layers.1.left"], running, EXACT)
    pairs, decay = tape["layers.1.memory.norm"], tape["layers.1.decay.pair"]
    assert pairs.shape[:2] == decay.shape[:2] == ids.shape
    if name == "triple-latent":
        read = torch.einsum(
            "bthsr,bths->bthr", tape["layers.1.memory.matrix"], tape["layers.1.query.left"]
        )
        assert_close(read * tape["layers.1.query.right"], tape["layers.1.memory_read"], EXACT)


def test_grounded_block_by_its_equations() -> None:
    """Each tap of GPN+M in the equations of the paper, with two layers."""
    model = build("gpnm", "2l-bias")
    ids = random_ids(model, 2, 11)
    with torch.no_grad(), analysis.record(model, ["*"]) as tape:
        model(ids)

    def before(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)

    predicted, grounded = tape["state.predicted"], tape["state.grounded"]
    assert_close(tape["gate.ground"] * before(predicted) + tape["drive"], grounded, EXACT)
    below = grounded
    matrix = tape["memory.matrix"]
    for i in range(2):
        layer = f"layers.{i}."
        added = tape[layer + "ffn"] + tape[layer + "read"]
        above = tape[layer + "residual"]
        assert_close(tape[layer + "gate.predict"] * below + added, above, EXACT, layer)
        found = torch.einsum("bthku,bthk->bthu", matrix, tape[layer + "query"])
        assert_close(found, tape[layer + "memory_read"], EXACT, layer)
        read = model.cell.layers[i].read
        gated = read.out_norm(found.flatten(2)) * tape[layer + "read_gate"].flatten(2)
        assert_close(read.out(gated), tape[layer + "read"], EXACT, layer)
        below = above
    assert_close(above, predicted, 0.0)
    held = torch.einsum("bthku,bthk->bthu", before(matrix), tape["memory.key"])
    assert_close(tape["memory.value"] - held, tape["memory.error"], EXACT)
    update = (tape["memory.beta"][..., None] * tape["memory.error"])[..., None, :]
    decay = tape["memory.log_decay"].exp()[..., None, None]
    new = decay * before(matrix) + tape["memory.key"][..., None] * update
    assert_close(new, matrix, EXACT)
    write = model.cell.write
    assert write is not None
    assert_close(write.value(write.norm(grounded)), tape["memory.value"].flatten(2), EXACT)
    a, b = model.cell.layers[0].ffn_in(model.cell.layers[0].ffn_norm(grounded)).chunk(2, -1)
    ffn = model.cell.layers[0].ffn_out(torch.nn.functional.silu(a) * b)
    assert_close(ffn, tape["layers.0.ffn"], EXACT)


@pytest.mark.parametrize("name", ["gpnm", "gdn", "triple-latent"])
def test_under_autocast(name: str) -> None:
    """Products in bf16: near the tape in fp32, states kept in fp32."""
    label = next(iter(CONFIGS[name]))
    model = build(name, label, torch.float32)
    ids = random_ids(model, 2, 12)
    with torch.no_grad():
        with analysis.record(model, ["*"]) as wide:
            model(ids)
        with torch.autocast("cpu", torch.bfloat16), analysis.record(model, ["*"]) as narrow:
            model(ids)
    for tap, about in analysis.taps(model).items():
        if about.dtype == "state":
            assert narrow[tap].dtype == torch.float32, tap
        difference = (narrow[tap].float() - wide[tap].float()).norm()
        assert difference <= 0.2 * wide[tap].float().norm() + 1e-3, tap


def test_long_window_without_gradients_is_one_tape() -> None:
    """The grounded loop cuts windows of more than 1024 tokens into segments."""
    model = build("gpnm", "1l")
    ids = random_ids(model, 1, 1100)
    at = analysis.At(positions=[3, 1023, 1024, 1099])
    with torch.no_grad(), analysis.record(model, ["*"], where=at) as cut:
        model(ids)
    with analysis.record(model, ["*"], where=at) as whole:
        model(ids)
    assert cut.positions.tolist() == [3, 1023, 1024, 1099]
    for tap in cut:
        assert_close(cut[tap], whole[tap], 1e-9, tap)
