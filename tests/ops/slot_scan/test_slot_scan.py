from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import backend_calls, force_backend, threads
from palimpsest.ops.slot_scan import slot_scan
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, H, S, R = 3, 2, 5, 7
COLUMNS = H * (4 * S + 2 + R)
FAST = ("composed", "numba")


def scan(projected: Tensor, *states: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return slot_scan(projected, H, R, *states, **options)


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    return leaf(B, length, COLUMNS), leaf(B, H, S), leaf(B, 2, H, S, R)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    compare(scan, "slot_scan", backend, inputs(length), **masks(gates, B, length))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("only", [1, 2])
def test_gradient_of_a_final_state_alone(only: int, backend: str) -> None:
    compare(scan, "slot_scan", backend, inputs(65), only=only)


def test_composed_of_chunks_alone() -> None:
    before = backend_calls()
    with force_backend("chunked"):
        compare(scan, "slot_scan", "composed", inputs(40))
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


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(scan, "slot_scan", "numba", inputs(40), **masks("both", B, 40))


def test_float32_without_gradient() -> None:
    wide = inputs(100)
    kept = [x.detach().float() for x in wide]
    got = scan(*kept, backend="composed")
    want = scan(*wide, backend="reference")
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        again = scan(*wide, backend="numba")
    for a, b in zip(again, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_automatic_choice() -> None:
    before = backend_calls()
    slot_scan(torch.zeros(1, 2, COLUMNS, dtype=torch.float64), H, R)
    assert backend_calls() - before == {("slot_scan", "numba"): 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_slots": 0}, "n_slots=0"),
        ({"n_slots": R + 1}, "must have 2·\\(4·S \\+ 10\\)"),
        ({"projected_BTX": torch.zeros(B, 4, COLUMNS + 2)}, "60 columns"),
        ({"state_BHS": torch.zeros(B, H, S + 1)}, "state_BHS has shape"),
        ({"slots_B2HSR": torch.zeros(B, H, S, R)}, "slots_B2HSR has shape"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"projected_BTX": torch.zeros(B, 4, COLUMNS), "n_heads": H, "n_slots": R}
    with pytest.raises(ValueError, match=message):
        slot_scan(**{**good, **change})
