"""What the tests of the linear recurrences share: lengths, gates, and one comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.ops import backend_calls
from tests.comparison import assert_close

LENGTHS = (1, 2, 3, 63, 64, 65, 100)
GATES = ("open", "hold", "reset", "both")


def masks(gates: str, batch: int, length: int) -> dict[str, Tensor | None]:
    """Random padding and document starts; both also at the same position, and at the ends."""
    hold = torch.rand(batch, length) < 0.3
    reset = torch.rand(batch, length) < 0.15
    hold[0, 0] = reset[0, 0] = reset[1, -1] = hold[2, -1] = True
    return {
        "hold": hold if gates in ("hold", "both") else None,
        "reset": reset if gates in ("reset", "both") else None,
    }


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def values_and_gradients(
    run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], only: int | None = None
) -> list[Tensor]:
    """Outputs, and the gradients of a random weighting of them (or of output ``only``)."""
    outputs = run(*inputs)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for i, output in enumerate(outputs):
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        if only is None or i == only:
            loss = loss + (output.double() * weight).sum()
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    zeros = [torch.zeros_like(x) for x in inputs]
    found = [z if g is None else g for g, z in zip(gradients, zeros, strict=True)]
    return [*outputs, *found]


def compare(
    op: Callable[..., Sequence[Tensor]],
    name: str,
    backend: str,
    inputs: Sequence[Tensor],
    tolerance: float = 1e-10,
    only: int | None = None,
    **options: Any,
) -> None:
    """A backend against the reference, with proof that it is the backend that ran."""
    before = backend_calls()[name, backend]
    got = values_and_gradients(lambda *x: op(*x, backend=backend, **options), inputs, only)
    assert backend_calls()[name, backend] == before + 1
    want = values_and_gradients(lambda *x: op(*x, backend="reference", **options), inputs, only)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert_close(g, w, tolerance, f"{backend} tensor {i}", floor=1e-3)
