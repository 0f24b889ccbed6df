from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import backend_calls, force_backend, threads
from palimpsest.ops.triple_scan import triple_scan
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, H, S = 3, 2, 5
COLUMNS = H * (4 * S + 2)
FAST = ("composed", "numba")


def scan(projected: Tensor, state: Tensor, pairs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return triple_scan(projected, H, state, pairs, **options)


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return (
        leaf(B, length, COLUMNS, dtype=dtype),
        leaf(B, H, S, dtype=dtype),
        leaf(B, H, S, S, dtype=dtype),
    )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", (*LENGTHS, 32, 33))
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    compare(scan, "triple_scan", backend, inputs(length), **masks(gates, B, length))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("only", [1, 2])
def test_gradient_of_a_final_state_alone(only: int, backend: str) -> None:
    compare(scan, "triple_scan", backend, inputs(65), only=only)


def test_composed_of_chunks_alone() -> None:
    before = backend_calls()
    with force_backend("chunked"):
        compare(scan, "triple_scan", "composed", inputs(40))
    ran = backend_calls() - before
    assert ran["decay_scan", "chunked"] == ran["pair_memory", "chunked"] == 1


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    run = functools.partial(scan, backend=backend)
    assert torch.autograd.gradcheck(run, inputs(3), fast_mode=True)


@pytest.mark.parametrize("backend", FAST)
def test_splitting_is_invisible(backend: str) -> None:
    projected, *start = inputs(67)
    whole, *final = scan(projected, *start, backend=backend)
    for at in (1, 2, 3, 63, 64, 65):
        first, *middle = scan(projected[:, :at], *start, backend=backend)
        second, *last = scan(projected[:, at:], *middle, backend=backend)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        for a, b in zip(last, final, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
def test_saturated_gates(backend: str) -> None:
    projected, *start = inputs(70)
    for size in (-200.0, 200.0):
        extreme = projected.detach().clone()
        extreme[..., -2 * H :] = size
        compare(scan, "triple_scan", backend, (extreme.requires_grad_(), *start))


def test_float32_matches_float64() -> None:
    wide = inputs(100)
    narrow = tuple(x.detach().float().requires_grad_() for x in wide)
    gates = masks("both", B, 100)
    compare(scan, "triple_scan", "numba", narrow, tolerance=1e-5, **gates)
    want, *_ = scan(*wide, backend="reference", **gates)
    got, *_ = scan(*narrow, backend="numba", **gates)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_long_sequence_is_finite() -> None:
    projected = torch.randn(1, 8192, COLUMNS, requires_grad=True)
    out, *states = triple_scan(projected, H, backend="numba")
    out.square().mean().backward()
    assert all(torch.isfinite(x).all() for x in (out, *states, projected.grad))


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(scan, "triple_scan", "numba", inputs(40), **masks("both", B, 40))


def test_without_gradient_nothing_changes() -> None:
    projected, *start = inputs(40)
    out, *_ = scan(projected, *start, backend="numba")
    kept = [x.detach().clone() for x in start]
    with torch.no_grad():
        again, *_ = scan(projected, *start, backend="numba")
    assert torch.equal(out, again)
    assert all(torch.equal(a, b) for a, b in zip(start, kept, strict=True))


def test_automatic_choice() -> None:
    before = backend_calls()
    triple_scan(torch.zeros(1, 2, COLUMNS, dtype=torch.float64), H)
    assert backend_calls() - before == {("triple_scan", "numba"): 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 0}, "n_heads=0"),
        ({"n_heads": 5}, "multiple of n_heads=5"),
        ({"projected_BTX": torch.zeros(B, 4, COLUMNS + 2)}, "46 columns"),
        ({"projected_BTX": torch.zeros(B, 0, COLUMNS)}, "one position"),
        ({"state_BHS": torch.zeros(B, H, S + 1)}, "state_BHS has shape"),
        ({"pairs_BHSS": torch.zeros(B, H, S)}, "pairs_BHSS has shape"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"projected_BTX": torch.zeros(B, 4, COLUMNS), "n_heads": H}
    with pytest.raises(ValueError, match=message):
        triple_scan(**{**good, **change})
