from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import backend_calls, threads
from palimpsest.ops.pair_memory import chunked, pair_memory
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, H, S, R = 3, 2, 5, 7
FAST = ("chunked", "numba")


def inputs(
    length: int, groups: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    key_heads = groups * H
    return (
        leaf(B, length, key_heads, S, dtype=dtype),
        leaf(B, length, H, R, dtype=dtype),
        leaf(B, length, key_heads, S, dtype=dtype),
        (-2 * torch.rand(B, length, H, dtype=dtype)).requires_grad_(),
        leaf(B, key_heads, S, R, dtype=dtype),
    )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    groups = 1 if length % 2 else 2
    compare(pair_memory, "pair_memory", backend, inputs(length, groups), **masks(gates, B, length))


def test_shared_values_equal_separate_calls() -> None:
    k, v, q, g, p = inputs(20)
    for backend in ("reference", *FAST):
        both, final = pair_memory(k, v, q, g, p, backend=backend)
        for group in range(2):
            own = slice(group * H, group * H + H)
            read, last = pair_memory(k[:, :, own], v, q[:, :, own], g, p[:, own], backend=backend)
            torch.testing.assert_close(both[:, :, own], read, rtol=0, atol=1e-12)
            torch.testing.assert_close(final[:, own], last, rtol=0, atol=1e-12)


def test_reads_after_the_write() -> None:
    k, v, q, g, p = inputs(1, groups=1)
    read, final = pair_memory(k, v, q, g, p)
    want = g.exp()[:, 0, :, None, None] * p + k[:, 0, :, :, None] * v[:, 0, :, None, :]
    torch.testing.assert_close(final, want)
    torch.testing.assert_close(read[:, 0], torch.einsum("bhs,bhsr->bhr", q[:, 0], want))


@pytest.mark.parametrize("backend", FAST)
def test_gradient_of_the_final_memory_alone(backend: str) -> None:
    compare(pair_memory, "pair_memory", backend, inputs(65), only=1)


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    run = functools.partial(pair_memory, backend=backend)
    assert torch.autograd.gradcheck(run, inputs(3), fast_mode=True)


@pytest.mark.parametrize("backend", FAST)
def test_splitting_is_invisible(backend: str) -> None:
    *sequences, p = inputs(67)
    whole, final = pair_memory(*sequences, p, backend=backend)
    for at in (1, 2, 3, 63, 64, 65):
        first, middle = pair_memory(*(x[:, :at] for x in sequences), p, backend=backend)
        second, last = pair_memory(*(x[:, at:] for x in sequences), middle, backend=backend)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 32, 64, 128])
def test_every_chunk_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "chunk_size", lambda width: chunk)
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


def test_float32_and_a_long_sequence() -> None:
    length = 8192
    k, q = (torch.randn(1, length, H, S, requires_grad=True) for _ in range(2))
    v = torch.randn(1, length, H, R, requires_grad=True)
    g = (-torch.rand(1, length, H) * 0.1).requires_grad_()
    read, final = pair_memory(k, v, q, g, backend="chunked")
    (read.square().mean() + final.sum()).backward()
    assert all(torch.isfinite(t).all() for t in (read, final, *(x.grad for x in (k, q, v, g))))
    with torch.no_grad():
        want, _ = pair_memory(k.double(), v.double(), q.double(), g.double(), backend="numba")
    torch.testing.assert_close(read.double(), want, rtol=1e-4, atol=1e-4)


def test_float32_with_resets_matches_float64() -> None:
    wide = inputs(100)
    gates = masks("both", B, 100)
    narrow = [x.detach().float() for x in wide]
    want, _ = pair_memory(*wide, backend="reference", **gates)
    got, _ = pair_memory(*narrow, backend="chunked", **gates)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_strided_views_and_no_gradient() -> None:
    block = torch.randn(B, 12, 3, H, S, dtype=torch.float64)
    v = torch.randn(B, H, 12, R, dtype=torch.float64).transpose(1, 2)
    g = -torch.rand(B, 12, H, dtype=torch.float64)
    want = pair_memory(block[:, :, 0], v, block[:, :, 2], g, backend="reference")
    for backend in FAST:
        initial = torch.zeros(B, H, S, R, dtype=torch.float64)
        got = pair_memory(block[:, :, 0], v, block[:, :, 2], g, initial, backend=backend)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        assert not initial.any(), "the initial memory was changed in place"


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(pair_memory, "pair_memory", "numba", inputs(40), **masks("both", B, 40))


def test_automatic_choice() -> None:
    k, v, q, g, _ = inputs(2)
    before = backend_calls()
    pair_memory(k, v, q, g)
    assert backend_calls() - before == {("pair_memory", "numba"): 1}
    before = backend_calls()
    wide = torch.zeros(1, 2, 1, 64)
    pair_memory(wide, wide, wide, torch.zeros(1, 2, 1))
    assert backend_calls() - before == {("pair_memory", "chunked"): 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys_BTKS": torch.zeros(B, 4, 3, S)}, "multiple of the H=2 heads"),
        ({"queries_BTKS": torch.zeros(B, 4, H, 1)}, "queries_BTKS has shape"),
        ({"log_decay_BTH": torch.zeros(B, 4, 2 * H)}, "log_decay_BTH has shape"),
        ({"initial_BMSR": torch.zeros(B, H, R, S)}, r"S=5, R=7"),
        ({"values_BTHR": torch.zeros(B, 0, H, R)}, "at least one position"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "keys_BTKS": torch.zeros(B, 4, H, S),
        "values_BTHR": torch.zeros(B, 4, H, R),
        "queries_BTKS": torch.zeros(B, 4, H, S),
        "log_decay_BTH": torch.zeros(B, 4, H),
    }
    with pytest.raises(ValueError, match=message):
        pair_memory(**{**good, **change})
