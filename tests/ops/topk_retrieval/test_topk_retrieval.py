from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import backend_calls
from palimpsest.ops.topk_retrieval import Retrieval, blockwise, compiled, ranking, topk_retrieval
from tests.ops.decay_scan.cases import GATES, compare, leaf, masks

B, A, D, V, K = 3, 5, 7, 6, 4
BACKENDS = ("reference", "blockwise", "numba")


@pytest.fixture(params=[(256, 1024), (4, 8), (7, 3)], ids=str)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = request.param
    small = partial(blockwise.choose_pairs, query_block=queries, key_block=keys)
    monkeypatch.setattr(blockwise, "choose_pairs", small)
    monkeypatch.setattr(compiled, "QUERY_BLOCK", queries)


def case(length: int, past: int, strengths: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A table of keys and few strengths, so that most pairs tie."""
    n = past + length
    tensors = {
        "queries_BTA": leaf(B, length, A),
        "keys": leaf(V, A),
        "values_BND": leaf(B, n, D),
        "scale": torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
        "temperature": torch.tensor(3.0, dtype=torch.float64, requires_grad=True),
    }
    if strengths:
        log = -torch.randint(1, 4, (B, n)).double() / 4
        tensors["log_strength_BN"] = log.requires_grad_()
    return tensors, torch.randint(V, (B, n))


def check(backend: str, tensors: dict[str, Tensor], **options: Any) -> None:
    def run(*inputs: Tensor, backend: str, **rest: Any) -> tuple[Tensor, ...]:
        named = dict(zip(tensors, inputs, strict=True))
        got = topk_retrieval(**named, backend=backend, **rest)
        pairs.append(got.pairs_BTK)
        return got.read_BTD, got.weights_BTK

    pairs: list[Tensor] = []
    compare(run, "topk_retrieval", backend, list(tensors.values()), **options)
    assert torch.equal(*pairs)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("backend", ["blockwise", "numba"])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize(("length", "past"), [(1, 0), (2, 9), (3, 0), (33, 20)])
def test_equals_the_reference(length: int, past: int, gates: str, backend: str) -> None:
    for strengths in (False, True):
        tensors, ids = case(length, past, strengths)
        usable = torch.rand(B, past + length) < 0.7 if gates == "both" else None
        gated = masks(gates, B, length)
        check(backend, tensors, key_ids_BN=ids, top_k=K, usable_BN=usable, **gated)


@pytest.mark.parametrize("length", [63, 64, 65, 100])
def test_keys_of_every_position(length: int) -> None:
    tensors, ids = case(length, 5, True)
    tensors["keys"] = tensors["keys"].detach()[ids].requires_grad_()
    for delay in (0, 1, 3):
        check("blockwise", tensors, top_k=K, delay=delay, **masks("reset", B, length))


def test_many_distinct_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT_COSINES", 0)
    monkeypatch.setattr(compiled, "QUERY_BLOCK", 4)
    tensors, ids = case(10, 3, True)
    tensors["keys"] = leaf(1000, A)
    check("numba", tensors, key_ids_BN=ids * 150, top_k=K, **masks("both", B, 10))


def test_gradcheck() -> None:
    """Without ties: where pairs tie, the order is no smooth function of the scores."""
    tensors, _ = case(3, 2, True)
    ids = torch.arange(5).expand(B, 5)
    for backend in BACKENDS:
        assert torch.autograd.gradcheck(
            lambda *x, b=backend: (
                topk_retrieval(
                    **dict(zip(tensors, x, strict=True)), key_ids_BN=ids, top_k=2, backend=b
                ).read_BTD
            ),
            list(tensors.values()),
            fast_mode=True,
        )


def simple(ids: Tensor, backend: str, dtype: torch.dtype, top_k: int, **options: Any) -> Retrieval:
    """One query that likes key 0 best, then 1, 2 …; keys from a table, or laid out."""
    angles = torch.arange(V) * 0.3
    table = torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)
    query = torch.tensor([1.0, -0.1], dtype=dtype).expand(1, options.pop("length", 1), 2)
    values = torch.arange(ids.shape[1], dtype=dtype).view(1, -1, 1)
    if backend == "numba":
        options["key_ids_BN"] = ids
    keys = table if backend == "numba" else table[ids]
    return topk_retrieval(query, keys, values, top_k=top_k, delay=0, backend=backend, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_best_then_the_most_recent(backend: str, dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 1, 0, 3, 1, 1, 0, 2, 1, 5]])
    assert simple(ids, backend, dtype, 2).pairs_BTK.tolist() == [[[6, 2]]]
    assert simple(ids, backend, dtype, 5).pairs_BTK.tolist() == [[[6, 2, 0, 8, 5]]]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 16, 33, 250])
def test_ties_whatever_the_shape(width: int, dtype: torch.dtype) -> None:
    """All keys equal: the most recent pairs, although a product's last bits depend on its shape."""
    length = 61
    key = torch.randn(width, dtype=dtype)
    queries = torch.randn(B, length, width, dtype=dtype)
    keys = key.expand(B, length, width)
    values = torch.randn(B, length, D, dtype=dtype)
    want = torch.arange(length)[:, None] - 1 - torch.arange(K)
    want = want.masked_fill(want < 0, -1).expand(B, length, K)
    whole = topk_retrieval(queries, keys, values, top_k=K)
    assert torch.equal(whole.pairs_BTK, want)
    for t in range(0, length, 7):  # decoding: one query at a time over a growing list
        step = topk_retrieval(queries[:, t : t + 1], keys[:, : t + 1], values[:, : t + 1], top_k=K)
        width_now = step.pairs_BTK.shape[2]
        assert torch.equal(step.pairs_BTK, want[:, t : t + 1, :width_now])
        torch.testing.assert_close(step.read_BTD, whole.read_BTD[:, t : t + 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding_equals_the_whole(backend: str) -> None:
    tensors, ids = case(40, 0, True)
    whole = topk_retrieval(**tensors, key_ids_BN=ids, top_k=K, backend=backend)
    for t in range(40):
        step = topk_retrieval(
            tensors["queries_BTA"][:, t : t + 1],
            tensors["keys"],
            tensors["values_BND"][:, : t + 1],
            tensors["log_strength_BN"][:, : t + 1],
            key_ids_BN=ids[:, : t + 1],
            top_k=K,
            scale=tensors["scale"],
            temperature=tensors["temperature"],
            backend=backend,
        )
        torch.testing.assert_close(step.read_BTD, whole.read_BTD[:, t : t + 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_values_pairs_and_weights_are_the_same(backend: str) -> None:
    tensors, ids = case(20, 3, True)
    options: dict[str, Any] = {"key_ids_BN": ids, "top_k": K, "backend": backend}
    want = topk_retrieval(**tensors, **options)
    values = tensors.pop("values_BND").detach()
    got = topk_retrieval(**tensors, values_BND=None, **options)
    assert got.read_BTD.shape == (B, 20, 0)
    assert torch.equal(got.pairs_BTK, want.pairs_BTK)
    torch.testing.assert_close(got.weights_BTK, want.weights_BTK, rtol=0, atol=1e-14)
    summed = got.weights_BTK[..., None] * values[torch.arange(B)[:, None, None], got.pairs_BTK]
    torch.testing.assert_close(summed.sum(2), want.read_BTD)
    inputs = list(tensors.values())
    want_gradients = torch.autograd.grad(want.read_BTD.sum(), inputs)
    for g, w in zip(torch.autograd.grad(summed.sum(), inputs), want_gradients, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("gates", ["open", "reset"])
@pytest.mark.parametrize("backend", ["blockwise", "numba"])
def test_a_first_pair_for_each_position(backend: str, gates: str) -> None:
    """A window on the newest pairs, at some positions empty, and together with documents."""
    length, past = 20, 6
    tensors, ids = case(length, past, True)
    place = torch.arange(past, past + length)
    first = (place - torch.randint(0, 9, (B, length))).clamp(min=0)
    first[0] = past + length
    check(backend, tensors, key_ids_BN=ids, top_k=K, first_BT=first, **masks(gates, B, length))
    got = topk_retrieval(**tensors, key_ids_BN=ids, top_k=K, first_BT=first, backend=backend)
    assert (got.pairs_BTK[0] == -1).all() and not got.read_BTD[0].any()
    outside = (got.pairs_BTK < first[..., None]) & (got.pairs_BTK >= 0)
    assert not outside.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nearly_equal_keys_rank_by_exact_cosines(backend: str) -> None:
    """Keys closer than fp32 products resolve: the order is that of whole numbers, in any shape."""
    width, tokens, length = 24, 30, 50
    query = torch.nn.functional.normalize(torch.randn(width), dim=0)
    side = torch.randn(width)
    side = torch.nn.functional.normalize(side - (side @ query) * query, dim=0)
    angles = 0.8 + 2e-7 * torch.randperm(tokens)
    table = torch.outer(angles.cos(), query) + torch.outer(angles.sin(), side)
    ids = torch.randint(tokens, (1, length))
    queries = query.expand(1, length, width)
    whole = topk_retrieval(
        queries, table, None, top_k=K, key_ids_BN=ids, delay=0, backend=backend
    ).pairs_BTK
    exact = (ranking.cosine_units(table) @ ranking.cosine_units(query)).tolist()
    for t in range(length):
        newest_first = sorted(range(t, -1, -1), key=lambda n: -exact[ids[0, n]])[:K]
        assert [n for n in whole[0, t].tolist() if n >= 0] == newest_first
        step = topk_retrieval(
            queries[:, :1], table, None, top_k=K, key_ids_BN=ids[:, : t + 1], delay=0,
            backend=backend,
        )  # fmt: skip
        assert step.pairs_BTK[0, 0].tolist() == newest_first


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_read_reads_zero(backend: str) -> None:
    tensors, ids = case(4, 0, False)
    usable = torch.ones(B, 4, dtype=torch.bool)
    usable[1] = False
    got = topk_retrieval(**tensors, key_ids_BN=ids, top_k=K, usable_BN=usable, backend=backend)
    assert not got.read_BTD[:, 0].any() and not got.read_BTD[1].any()
    assert (got.pairs_BTK[1] == -1).all()
    sums = got.weights_BTK.sum(-1)
    torch.testing.assert_close(sums[[0, 2], 1:], torch.ones(2, 3, dtype=torch.float64))
    gradients = torch.autograd.grad(got.read_BTD.sum(), list(tensors.values()))
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_turns_the_order(backend: str, scale: float) -> None:
    ids = torch.tensor([[0, 1, 2, 1, 2, 0]])
    want = [[[4, 2]]] if scale < 0 else [[[5, 4]]]
    assert simple(ids, backend, torch.float64, 2, scale=scale).pairs_BTK.tolist() == want


def test_more_than_one_block_of_keys() -> None:
    length = 1500
    table = torch.randn(40, A)
    ids = torch.randint(40, (1, length))
    queries, values = torch.randn(1, length, A), torch.randn(1, length, D)
    got = topk_retrieval(queries, table[ids], values, top_k=8, backend="blockwise")
    want = topk_retrieval(queries, table, values, top_k=8, key_ids_BN=ids, backend="numba")
    assert torch.equal(got.pairs_BTK, want.pairs_BTK)
    torch.testing.assert_close(got.read_BTD, want.read_BTD)


def test_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    multiply = torch.bmm

    def watched(left: Tensor, right: Tensor) -> Tensor:
        nonlocal largest
        product = multiply(left, right)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr(torch, "bmm", watched)
    length = 3000
    topk_retrieval(
        torch.randn(1, length, A), torch.randn(1, length, A), torch.zeros(1, length, 1), top_k=2
    )
    assert largest <= blockwise.QUERY_BLOCK * blockwise.KEY_BLOCK < length * length / 30


def test_automatic_choice() -> None:
    tensors, ids = case(3, 0, False)
    for options, name in (({"key_ids_BN": ids}, "numba"), ({}, "blockwise")):
        keys = tensors["keys"] if options else tensors["keys"][ids]
        before = backend_calls()
        topk_retrieval(tensors["queries_BTA"], keys, tensors["values_BND"], top_k=1, **options)
        assert backend_calls() - before == {("topk_retrieval", name): 1}


IDS = torch.zeros(B, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"top_k": 0}, ValueError, "top_k=0"),
        ({"delay": -1}, ValueError, "delay=-1"),
        ({"values_BND": torch.zeros(B, 3, D)}, ValueError, "each of the T=4 positions"),
        ({"keys": torch.zeros(B, 5, A)}, ValueError, "N=4"),
        ({"keys": torch.zeros(B, 4, A), "key_ids_BN": IDS}, ValueError, "table"),
        ({"keys": torch.zeros(V, A), "key_ids_BN": IDS + V}, ValueError, "rows 0 to 5"),
        ({"keys": torch.zeros(V, A), "key_ids_BN": IDS.int()}, TypeError, "int64"),
        ({"scale": torch.zeros(2)}, ValueError, "scale has shape"),
        ({"scale": float("nan")}, ValueError, "scale=nan"),
        ({"usable_BN": IDS}, TypeError, "usable_BN.bool"),
        ({"backend": "numba"}, ValueError, "needs key_ids_BN"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {
        "queries_BTA": torch.zeros(B, 4, A),
        "keys": torch.zeros(B, 4, A),
        "values_BND": torch.zeros(B, 4, D),
        "top_k": K,
    }
    with pytest.raises(error, match=message):
        topk_retrieval(**{**good, **change})
