"""Hand-written backward passes have first derivatives only, and refuse to give a wrong second one.

A backward that returns plain tensors makes a gradient look like a constant: its own derivative is
silently incomplete. ``torch.autograd.function.once_differentiable`` attaches a node that raises,
but ``torch.autograd.grad(..., inputs)`` prunes that node if no input lies behind it. So the error
is raised at the first backward pass of ``create_graph=True``, which nothing can prune.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from palimpsest.errors import GradientError

__all__ = ["first_derivatives_only", "guard_outputs"]

F = TypeVar("F", bound=Callable[..., Any])


def first_derivatives_only(op: str) -> Callable[[F], F]:
    """Decorator for the ``backward`` of an autograd.Function, below ``@staticmethod``.

    Args:
        op: the public name of the op that the Function belongs to.

    Raises (from the decorated function):
        GradientError: the backward pass runs with ``create_graph=True``.
    """

    def decorate(backward: F) -> F:
        @functools.wraps(backward)
        def guarded(ctx: Any, *gradients: Any) -> Any:
            _refuse_graph(op)
            return backward(ctx, *gradients)

        guarded.first_derivatives_only = op  # type: ignore[attr-defined]
        return guarded  # type: ignore[return-value]

    return decorate


def guard_outputs(op: str, *outputs: Tensor) -> None:
    """Make outputs of code whose backward is not ours raise the same error.

    Args:
        op: the op's public name.
        outputs: tensors; those without gradients are left alone.
    """
    if torch.compiler.is_compiling():
        return  # a compiled graph refuses a second derivative itself, and takes no hooks
    for output in outputs:
        if output.requires_grad:
            output.register_hook(lambda _: _refuse_graph(op))


def _refuse_graph(op: str) -> None:
    """The engine enables grad mode inside a backward pass only for ``create_graph=True``."""
    if torch.is_grad_enabled():
        raise GradientError(
            f"create_graph=True: the fast form of op {op!r} has no second derivatives; run the "
            'forward pass inside `with palimpsest.force_backend("reference"):`, or leave out '
            "create_graph if only first derivatives are needed"
        )
