"""Value heads that share keys and queries, as in Mamba-2's SSD."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import backend_calls, threads
from palimpsest.ops.pair_memory import pair_memory, shared
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, H, S, R = 3, 6, 5, 7
FAST = ("chunked", "numba")


def inputs(length: int, key_heads: int = 2) -> tuple[Tensor, ...]:
    return (
        leaf(B, length, key_heads, S),
        leaf(B, length, H, R),
        leaf(B, length, key_heads, S),
        (-2 * torch.rand(B, length, H, dtype=torch.float64)).requires_grad_(),
        leaf(B, H, S, R),
    )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    key_heads = {1: 1, 2: 2, 0: 3}[length % 3]
    own = inputs(length, key_heads)
    compare(pair_memory, "pair_memory", backend, own, **masks(gates, B, length))


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_sharing_equals_repeating(backend: str) -> None:
    k, v, q, g, p = inputs(20)
    read, final = pair_memory(k, v, q, g, p, backend=backend)
    k, q = (x.repeat_interleave(3, dim=2) for x in (k, q))
    want, last = pair_memory(k, v, q, g, p, backend=backend)
    torch.testing.assert_close(read, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(final, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("length", [1, 65])
def test_gradient_of_the_final_memory_alone(length: int, backend: str) -> None:
    compare(pair_memory, "pair_memory", backend, inputs(length), only=1)


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    run = functools.partial(pair_memory, backend=backend)
    assert torch.autograd.gradcheck(run, inputs(3), fast_mode=True)


@pytest.mark.parametrize("chunk", [2, 16, 32, 128])
def test_every_chunk_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "shared_chunk", lambda length: min(chunk, length))
    compare(pair_memory, "pair_memory", "chunked", inputs(67), **masks("both", B, 67))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("decay", [0.0, -1e4, float("-inf"), -60.0])
def test_extreme_decays(decay: float, backend: str) -> None:
    k, v, q, g, p = inputs(70)
    same = torch.full_like(g, decay).requires_grad_()
    compare(pair_memory, "pair_memory", backend, (k, v, q, same, p))
    mixed = g.detach().clone()
    mixed[:, ::7] = decay
    compare(pair_memory, "pair_memory", backend, (k, v, q, mixed.requires_grad_(), p))


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("length", [12, 130])
def test_strided_views(batch: int, length: int) -> None:
    """As the layer gives them: slices of one tensor, and gradients that are not contiguous."""
    width = 2 * S
    block = leaf(batch, length, 2 * width + 3)
    v, g = leaf(batch, H, length, R), leaf(batch, H, length)

    def run(backend: str) -> list[Tensor]:
        k, q = block[..., :width], block[..., width : 2 * width]
        k, q = (x.unflatten(-1, (2, S)) for x in (k, q))
        read, final = pair_memory(k, v.mT.mT.transpose(1, 2), q, -g.exp().mT, backend=backend)
        loss = (read.transpose(1, 2) * v).sum() + read.sum() + final.mT.square().sum()
        return [read, final, *torch.autograd.grad(loss, (block, v, g))]

    for got, want in zip(run("chunked"), run("reference"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_float32_on_a_long_sequence() -> None:
    k, v, q, g, _ = (x.detach() for x in inputs(4096, 1))
    g = g * 0.05
    want, _ = pair_memory(k, v, q, g, backend="numba")
    got, _ = pair_memory(k.float(), v.float(), q.float(), g.float(), backend="chunked")
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_nothing_of_the_size_of_repeated_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the backward pass holds keys and queries once per group."""
    heads, length, width = 16, 64, 256
    k, q = leaf(1, length, 1, width), leaf(1, length, 1, width)
    v, g = leaf(1, length, heads, 2), -torch.rand(1, length, heads, dtype=torch.float64)
    kept: list[weakref.ref[Tensor]] = []

    def note(x: Tensor) -> Tensor:
        kept.append(weakref.ref(x))
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        read, _ = pair_memory(k, v, q, g, backend="chunked")
    sizes = [x.numel() for ref in kept if (x := ref()) is not None]
    assert read.requires_grad and len(sizes) >= 5
    assert max(sizes) <= max(heads * length * length, k.numel())
    assert sum(sizes) < heads * length * width


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(pair_memory, "pair_memory", "numba", inputs(40), **masks("both", B, 40))


def test_automatic_choice_for_published_sizes() -> None:
    k, v = torch.zeros(1, 2, 1, 128), torch.zeros(1, 2, 3, 64)
    before = backend_calls()
    read, final = pair_memory(k, v, k, torch.zeros(1, 2, 3))
    assert backend_calls() - before == {("pair_memory", "chunked"): 1}
    assert read.shape == (1, 2, 3, 64) and final.shape == (1, 3, 128, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys_BTKS": torch.zeros(B, 4, 4, S)}, "or a divisor of them"),
        ({"initial_BMSR": torch.zeros(B, 2, S, R)}, r"M=6, S=5, R=7"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "keys_BTKS": torch.zeros(B, 4, 2, S),
        "values_BTHR": torch.zeros(B, 4, H, R),
        "queries_BTKS": torch.zeros(B, 4, 2, S),
        "log_decay_BTH": torch.zeros(B, 4, H),
    }
    with pytest.raises(ValueError, match=message):
        pair_memory(**{**good, **change})
