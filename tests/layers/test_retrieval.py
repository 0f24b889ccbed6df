"""Exact retrieval: what is read, ties, the cap, and the table of keys kept while generating."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from palimpsest.layers.retrieval import Retrieval, RetrievalMemory
from tests.comparison import assert_close

B, T, V, D, A, K = 2, 23, 11, 7, 5, 3


def make(**changes: object) -> Retrieval:
    fields = dict(read_gate=True, write_gate=False, start="published", learned_temperature=False)
    layer = Retrieval(D, A, K, "previous", **{**fields, **changes}).double()
    for parameter in layer.parameters():
        parameter.data.normal_(0.0, 0.7)
    return layer


def run(layer: Retrieval, embedding: Tensor, ids: Tensor, cap: int = 0, **masks: Tensor) -> Tensor:
    memory = RetrievalMemory.empty(len(ids), "cpu")
    _, view = memory.extend(ids, masks.get("hold"), masks.get("reset"), cap)
    return layer(embedding, torch.zeros(*ids.shape, D, dtype=torch.float64), view)


def by_hand(layer: Retrieval, embedding: Tensor, ids: list[int], cap: int = 0) -> Tensor:
    """One row, token by token, straight from the equations."""
    reads = []
    for t in range(len(ids)):
        pairs = list(range(1, t))  # pair j: key of token j - 1, value of token j
        pairs = pairs[-cap:] if cap else pairs
        if not pairs:
            reads.append(torch.zeros(D, dtype=torch.float64))
            continue
        basis = embedding[ids[t - 1]]
        query = layer.query.weight @ basis
        scored = []
        for j in pairs:
            key = layer.key.weight @ embedding[ids[j - 1]]
            score = torch.cosine_similarity(query, key, dim=0) / math.sqrt(A)
            if layer.log_temperature is not None:
                score = score * math.sqrt(A) * layer.log_temperature.exp() / 8
            strength = torch.ones((), dtype=torch.float64)
            if layer.write_gate is not None:
                both = torch.cat([embedding[ids[j - 1]], embedding[ids[j]]])
                strength = layer.write_gate(both)[0].sigmoid()
            scored.append((score + strength.clamp(min=1e-4).log(), j, strength))
        best = sorted(scored, key=lambda s: (-round(float(s[0].detach()), 9), -s[1]))[:K]
        weights = (8 * torch.stack([s[0] for s in best])).softmax(0)
        read = sum(
            w * strength * (layer.value.weight @ embedding[ids[j]])
            for w, (_, j, strength) in zip(weights, best, strict=True)
        )
        if layer.read_gate is not None:
            read = read * layer.read_gate(basis).sigmoid()
        reads.append(read)
    return torch.stack(reads)


@pytest.mark.parametrize("cap", [0, 4])
@pytest.mark.parametrize(
    "fields",
    [{}, {"read_gate": False}, {"write_gate": True}, {"learned_temperature": True}],
    ids=["published", "ungated", "write gate", "learned temperature"],
)
def test_equations(fields: dict[str, object], cap: int) -> None:
    """Values and gradients; eleven tokens in 23 places, so that ties are everywhere."""
    layer = make(**fields)
    embedding = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, V, (B, T))
    weights = torch.randn(B, T, D, dtype=torch.float64)
    leaves = [embedding, *layer.parameters()]
    got = run(layer, embedding, ids, cap)
    want = torch.stack([by_hand(layer, embedding, row.tolist(), cap) for row in ids])
    assert_close(got, want, 1e-9)
    got_grads, want_grads = (
        torch.autograd.grad((read * weights).sum(), leaves) for read in (got, want)
    )
    for one, two in zip(got_grads, want_grads, strict=True):
        assert_close(one, two, 1e-8, "gradient")


def test_the_most_recent_of_equal_keys_is_read() -> None:
    layer = Retrieval(
        D, A, 1, "previous",
        read_gate=False, write_gate=False, start="stable", learned_temperature=False,
    ).double()  # fmt: skip
    embedding = torch.randn(V, D, dtype=torch.float64)
    ids = torch.tensor([[1, 2, 1, 3, 1, 4, 9, 1, 0]])  # after 1 came 2, 3, 4
    read = run(layer, embedding, ids)
    assert_close(read[0, 8], embedding[4], 1e-12)
    assert_close(read[0, 3], embedding[2], 1e-12)
    assert not read[0, :2].any()  # nothing to read yet


def test_padding_and_documents_form_no_pairs() -> None:
    layer = make()
    embedding = torch.randn(V, D, dtype=torch.float64)
    ids = torch.randint(0, V, (1, T))
    hold = torch.rand(1, T) < 0.4
    real = ~hold[0]
    read = run(layer, embedding, ids, hold=hold)
    assert_close(read[:, real], run(layer, embedding, ids[:, real]), 1e-12)
    reset = torch.zeros(1, T, dtype=torch.bool)
    reset[0, 9] = True
    read = run(layer, embedding, ids, reset=reset)
    assert_close(read[:, :9], run(layer, embedding, ids[:, :9]), 1e-12)
    assert_close(read[:, 9:], run(layer, embedding, ids[:, 9:]), 1e-12)


def test_pairs_that_no_row_can_read_are_dropped() -> None:
    memory, ids = RetrievalMemory.empty(2, "cpu"), torch.randint(0, V, (2, T))
    reset = torch.zeros(2, T, dtype=torch.bool)
    reset[0, 4] = reset[1, 9] = True
    memory, _ = memory.extend(ids, None, reset, 0)
    assert memory.keys.length == T - 4
    assert memory.first.tolist() == [0, 5]
    memory, _ = memory.extend(ids, None, None, cap=6)
    assert memory.keys.length == memory.values.length == 6


def test_large_vocabulary_projects_only_what_occurs() -> None:
    layer = make(write_gate=True)
    embedding = torch.randn(500, D, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 500, (1, T))
    with torch.no_grad():
        want = run(layer, embedding, ids)
    got = run(layer, embedding, ids)
    assert_close(got, want, 1e-12)
    got.sum().backward()
    unused = torch.ones(500, dtype=torch.bool)
    unused[ids] = False
    assert not embedding.grad[unused].any()


@torch.no_grad()
@pytest.mark.parametrize("what", ["embedding", "key"])
def test_kept_table_notices_every_change(what: str) -> None:
    """Also a write through ``.data``, which torch's own counters do not see."""
    layer, embedding = make(), torch.randn(500, D, dtype=torch.float64)
    ids = torch.randint(0, 500, (1, T))
    before = run(layer, embedding, ids)
    assert torch.equal(run(layer, embedding, ids), before)
    changed = embedding if what == "embedding" else layer.key.weight
    changed.data.view(-1)[:].mul_(torch.rand(changed.numel(), dtype=torch.float64))
    after = run(layer, embedding, ids)
    assert not torch.equal(after, before)
    with torch.enable_grad():
        assert_close(after, run(layer, embedding, ids), 1e-12)


def nearly_equal_tokens(wide: int) -> tuple[Retrieval, Tensor]:
    """Tokens whose keys differ in their last bits, and whose values are far apart."""
    layer = Retrieval(
        wide, wide // 2, K, "previous",
        read_gate=False, write_gate=False, start="published", learned_temperature=False,
    )  # fmt: skip
    half = wide // 2  # keys and queries see this part of a token alone
    layer.key.weight.data[:, half:] = layer.query.weight.data[:, half:] = 0.0
    layer.value.weight.data.normal_()
    embedding = torch.randn(V, wide)
    embedding[:, :half] = embedding[:1, :half] + 1e-7 * embedding[:, :half]
    return layer, embedding


@pytest.mark.parametrize("length", [5, 150])
def test_nearly_equal_keys_rank_alike_at_once_and_token_by_token(length: int) -> None:
    layer, embedding = nearly_equal_tokens(64)
    ids = torch.randint(V, (B, length))
    memory = RetrievalMemory.empty(B, "cpu")
    steps = []
    with torch.no_grad():
        _, whole = memory.extend(ids, None, None, 0)
        at_once = layer(embedding, torch.zeros(B, length, 64), whole)
        for t in range(length):
            memory, view = memory.extend(ids[:, t : t + 1], None, None, 0)
            steps.append(layer(embedding, torch.zeros(B, 1, 64), view))
    assert_close(torch.cat(steps, 1), at_once, 1e-5)
    assert len(at_once[:, 2:].flatten(0, 1).unique(dim=0)) > 1  # else there is nothing to rank
