"""What a memory held, from its writes, against stepping through them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from palimpsest.ops.gated_delta.reference import gated_delta_reference
from palimpsest.ops.memory_trace import trace_memory
from palimpsest.ops.pair_memory.reference import pair_memory_reference
from tests.comparison import assert_close

B, T, H, K, U = 3, 23, 2, 5, 7
EXACT = 1e-12


def rows(*shape: int) -> Tensor:
    return torch.randn(B, *shape, dtype=torch.float64)


@pytest.fixture
def masks() -> tuple[Tensor, Tensor]:
    hold, reset = torch.zeros(2, B, T, dtype=torch.bool)
    hold[0, :3] = hold[1, 7] = hold[1, 20:] = True
    reset[0, 3] = reset[2, 8] = reset[2, 9] = reset[1, 0] = True
    return hold, reset


@pytest.mark.parametrize("chunk", [1, 8, 64])
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_against_the_loops(chunk: int, rule: str, masks: tuple[Tensor, Tensor]) -> None:
    hold, reset = masks
    key = torch.nn.functional.normalize(rows(T, H, K), dim=-1)
    value, decay, beta, start = (
        rows(T, H, U),
        -rows(T, H).abs(),
        rows(T, H).sigmoid(),
        rows(H, K, U),
    )
    queries = [rows(T, H, K), rows(T, H, K)]

    def step(lo: int, hi: int, memory: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        at = slice(lo, hi)
        if rule == "sum":
            given = (key[:, at], value[:, at], query[:, at], decay[:, at], memory)
            return pair_memory_reference(*given, hold[:, at], reset[:, at])
        given = (query[:, at], key[:, at], value[:, at], decay[:, at], beta[:, at], memory)
        return gated_delta_reference(*given, hold[:, at], reset[:, at], 1.0)

    steps = torch.tensor([0, 6, 7, 8, 22])
    found = trace_memory(
        key,
        value,
        decay,
        start,
        beta_BTH=beta if rule == "delta" else None,
        queries=queries,
        steps=steps,
        hold_BT=hold,
        reset_BT=reset,
        chunk=chunk,
    )
    for read, query in zip(found.reads, queries, strict=True):
        want, final = step(0, T, start, query)
        assert_close(read, want, EXACT, "reads")
        assert_close(found.final, final, EXACT, "final")
    memory, memories = start, []
    for t in range(T):
        _, memory = step(t, t + 1, memory, queries[0])
        memories.append(memory)
    stacked = torch.stack(memories, 1)
    assert_close(found.memories, stacked[:, steps], EXACT, "memories")
    assert_close(found.norms, stacked.square().sum((-1, -2)).sqrt(), EXACT, "norms")


def test_extremes() -> None:
    """A memory that forgets everything, and keys that erase what they wrote."""
    key = torch.nn.functional.normalize(rows(T, H, K), dim=-1)[:, :1].expand(B, T, H, K)
    value, start = torch.zeros(B, T, H, U).double(), rows(H, K, U)
    forgets = torch.full((B, T, H), -900.0, dtype=torch.float64)
    found = trace_memory(key, value, forgets, start)
    assert torch.isfinite(found.norms).all() and not found.final.any()
    keeps = torch.zeros(B, T, H, dtype=torch.float64)
    erased = trace_memory(key, value, keeps, start, beta_BTH=torch.ones(B, T, H).double())
    assert torch.isfinite(erased.norms).all()
    assert torch.einsum("bhku,bhk->bhu", erased.final, key[:, 0]).abs().max() < 1e-12


def test_single_precision_is_near() -> None:
    key = torch.nn.functional.normalize(rows(400, H, K), dim=-1)
    given = (key, rows(400, H, U), -0.1 * rows(400, H).abs(), rows(H, K, U))
    beta = rows(400, H).sigmoid()
    wide = trace_memory(*given, beta_BTH=beta)
    narrow = trace_memory(*(x.float() for x in given), beta_BTH=beta.float())
    assert narrow.norms.dtype == torch.float32
    assert_close(narrow.norms, wide.norms, 1e-4)
    assert_close(narrow.final, wide.final, 1e-4)
