"""Each backend of each op: a second derivative is right or refused, however it is taken.

B batch, T positions, H heads, S, K, V, U widths, R slots.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import GradientError
from palimpsest.ops import library_kernels
from palimpsest.ops.causal_conv import causal_conv
from palimpsest.ops.cross_entropy import cross_entropy
from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.dispatch import dispatchers
from palimpsest.ops.gated_delta import gated_delta
from palimpsest.ops.pair_memory import pair_memory
from palimpsest.ops.short_conv import short_conv
from palimpsest.ops.slot_scan import slot_scan
from palimpsest.ops.topk_retrieval import topk_retrieval
from palimpsest.ops.triple_scan import triple_scan
from tests.comparison import assert_all_close
from tests.ops.grounded_loop.blocks import make_inputs

B, T, H, S, R = 2, 9, 3, 5, 7


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def decays(*shape: int) -> Tensor:
    return -torch.rand(shape, dtype=torch.float64)


def grounded(backend: str) -> tuple[list[Tensor], Callable[..., Any]]:
    given = make_inputs(T, batch=B).require_grad()
    return list(given.leaves().values()), lambda *_: given.run(backend)


def case(op: str, backend: str) -> tuple[list[Tensor], Callable[..., Any]]:
    """Inputs, and the op as a function of them."""
    if op == "grounded_loop":
        return grounded(backend)
    ids = torch.randint(0, 11, (B, T))
    made: dict[str, tuple[list[Tensor], Callable[..., Any]]] = {
        "causal_conv": (
            [normal(B, T, S), normal(R, S, 3), normal(R)],
            lambda *x: causal_conv(*x, backend=backend),
        ),
        "cross_entropy": (
            [normal(B, T, S), normal(11, S)],
            lambda x, w: cross_entropy(x, w, ids, backend=backend)[0],
        ),
        "decay_scan": (
            [normal(B, T, H, S), decays(B, T, H), normal(B, H, S)],
            lambda *x: decay_scan(*x, backend=backend),
        ),
        "gated_delta": (
            [
                normal(B, T, H, S),
                torch.nn.functional.normalize(normal(B, T, H, S), dim=-1),
                normal(B, T, H, R),
                decays(B, T, H),
                normal(B, T, H).sigmoid(),
                normal(B, H, S, R),
            ],
            lambda *x: gated_delta(*x, backend=backend),
        ),
        "pair_memory": (
            [normal(B, T, H, S), normal(B, T, 1, R), normal(B, T, H, S), decays(B, T, 1)],
            lambda *x: pair_memory(*x, backend=backend),
        ),
        "short_conv": (
            [normal(B, T, S), normal(S, 4), normal(S), normal(B, 3, S)],
            lambda *x: short_conv(*x, backend=backend),
        ),
        "slot_scan": (
            [normal(B, T, H * (4 * S + 2 + R)), normal(B, H, S), normal(B, 2, H, S, R)],
            lambda p, s, m: slot_scan(p, H, R, s, m, backend=backend),
        ),
        "topk_retrieval": (
            [normal(B, T, S), normal(11, S), normal(B, T, R)],
            lambda q, k, v: topk_retrieval(
                q, k, v, top_k=2, key_ids_BN=ids, temperature=2.0, backend=backend
            ),
        ),
        "triple_scan": (
            [normal(B, T, H * (4 * S + 2)), normal(B, H, S), normal(B, H, S, S)],
            lambda p, s, m: triple_scan(p, H, s, m, backend=backend),
        ),
    }
    inputs, call = made[op]
    return [x.requires_grad_() for x in inputs], call


def curved_sum(outputs: Any) -> Tensor:
    """A loss whose gradient depends on the outputs, so that no second derivative is zero."""
    tensors = [outputs] if isinstance(outputs, Tensor) else outputs
    return sum(x.sin().sum() for x in tensors if x is not None and x.requires_grad and x.numel())  # type: ignore[return-value]


def second(op: str, backend: str, via: str) -> dict[str, Tensor]:
    """The Hessian's row sums; with "alone", by the first input only."""
    torch.manual_seed(0)
    inputs, call = case(op, backend)
    first = torch.autograd.grad(
        curved_sum(call(*inputs)), inputs, create_graph=True, allow_unused=True
    )
    total = curved_sum([g for g in first if g is not None])
    if via == "backward":
        total.backward()
        return {
            str(i): torch.zeros_like(x) if x.grad is None else x.grad for i, x in enumerate(inputs)
        }
    return {"0": torch.autograd.grad(total, inputs[:1])[0]}


FAST = [
    (op, backend)
    for op, dispatcher in sorted(dispatchers().items())
    for backend in dispatcher.available()
    if backend not in ("reference", "fla")  # which runs on CUDA only
]


@pytest.mark.parametrize("via", ["backward", "alone"])
@pytest.mark.parametrize(("op", "backend"), FAST)
def test_right_or_refused(op: str, backend: str, via: str) -> None:
    want = second(op, "reference", via)
    try:
        got = second(op, backend, via)
    except GradientError as refusal:
        assert 'palimpsest.force_backend("reference")' in str(refusal)
    else:
        assert_all_close(got, want, 1e-8)


@pytest.mark.parametrize("op", sorted(dispatchers()))
def test_the_remedy_is_right(op: str) -> None:
    """Forcing the reference gives the second derivative, checked by finite differences."""
    inputs, call = case(op, "reference")

    def loss(*given: Tensor) -> Tensor:
        for x, new in zip(inputs, given, strict=True):
            x.data = new.detach()
        return curved_sum(call(*inputs))

    step, ends = 1e-6, []
    along = [normal(*x.shape) for x in inputs]
    with palimpsest.force_backend("reference"):
        first = torch.autograd.grad(
            curved_sum(call(*inputs)), inputs, create_graph=True, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        total = sum((g * a).sum() for g, a in zip(first, along, strict=True))
        got = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
        start = [x.detach().clone() for x in inputs]
        for side in (step, -step):
            moved = loss(*(x + side * a for x, a in zip(start, along, strict=True)))
            ends.append(
                torch.autograd.grad(moved, inputs, allow_unused=True, materialize_grads=True)
            )
    want = [(a - b) / (2 * step) for a, b in zip(*ends, strict=True)]
    assert_all_close(
        {str(i): x for i, x in enumerate(got)}, {str(i): x for i, x in enumerate(want)}, 1e-5
    )


def test_every_function_is_guarded() -> None:
    """A new hand-written backward cannot be forgotten."""
    package = importlib.import_module("palimpsest.ops")
    for module in pkgutil.walk_packages(package.__path__, "palimpsest.ops."):
        importlib.import_module(module.name)
    functions = [
        f
        for f in torch.autograd.Function.__subclasses__()
        if f.__module__.startswith("palimpsest.")
    ]
    assert len(functions) >= 12
    for function in functions:
        guarded = getattr(function.backward, "first_derivatives_only", None)
        assert guarded in dispatchers(), f"{function.__module__}: {function.__name__}"


def test_fused_attention_is_refused_and_the_reference_right() -> None:
    def gradient(create_graph: bool) -> Tensor:
        read = library_kernels.attend(*leaves, None, causal=True)
        (found,) = torch.autograd.grad(read.sin().sum(), leaves[:1], create_graph=create_graph)
        return found

    leaves = [normal(B, H, T, S).requires_grad_() for _ in range(3)]
    plain = gradient(create_graph=False)
    with pytest.raises(GradientError, match="op 'attention'"):
        gradient(create_graph=True)
    with palimpsest.force_backend("reference"):
        found = gradient(create_graph=True)
        assert found.requires_grad
    torch.testing.assert_close(found.detach(), plain)
