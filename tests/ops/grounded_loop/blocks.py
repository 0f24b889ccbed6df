"""Random blocks and inputs for the grounded loop's tests, as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.grounded_loop import (
    GroundedParams,
    GroundParams,
    PredictParams,
    ReadParams,
    WriteParams,
    grounded_loop,
)

D, F, H, K, U = 13, 17, 3, 5, 7  # distinct, and no multiple of a vector register
BATCH = 4


@dataclass
class Inputs:
    """All arguments of one call; every floating-point tensor may be a leaf."""

    drive: Tensor
    params: GroundedParams
    predicted: Tensor
    grounded: Tensor
    memory: Tensor | None
    hold: Tensor | None = None
    reset: Tensor | None = None

    def leaves(self) -> dict[str, Tensor]:
        """Every floating-point tensor by name."""
        found = {"drive": self.drive, "predicted": self.predicted, "grounded": self.grounded}
        if self.memory is not None:
            found["memory"] = self.memory
        found.update(_named("params", self.params))
        return found

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Inputs:
        """A copy with every floating-point tensor changed."""
        return Inputs(
            change("drive", self.drive),
            _map("params", self.params, change),
            change("predicted", self.predicted),
            change("grounded", self.grounded),
            None if self.memory is None else change("memory", self.memory),
            self.hold,
            self.reset,
        )

    def to(self, dtype: torch.dtype) -> Inputs:
        return self.map(lambda _, t: t.detach().to(dtype))

    def require_grad(self, *names: str) -> Inputs:
        """Leaves of these names (all without names) want a gradient."""
        return self.map(lambda n, t: t.detach().clone().requires_grad_(not names or n in names))

    def run(self, backend: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return grounded_loop(
            self.drive,
            self.params,
            self.predicted,
            self.grounded,
            self.memory,
            hold_BT=self.hold,
            reset_BT=self.reset,
            backend=backend,
        )


def make_inputs(
    length: int,
    *,
    layers: int = 1,
    memory: bool = True,
    masks: bool = False,
    batch: int = BATCH,
    seed: int = 0,
    sizes: tuple[int, int, int, int, int] = (D, F, H, K, U),
) -> Inputs:
    """Random fp64 inputs: matrices of variance 0.5/fan_in, everything else of order one."""
    rng = torch.Generator().manual_seed(seed)
    d, f, h, k, u = sizes

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return mean + scale * torch.randn(shape, generator=rng, dtype=torch.float64)

    def matrix(out: int, fan_in: int) -> Tensor:
        return normal(out, fan_in, scale=(0.5 / fan_in) ** 0.5)

    def norm(width: int) -> Tensor:
        return normal(width, scale=0.3, mean=1.0)

    def layer() -> PredictParams:
        read = ReadParams(
            norm(d), matrix(h * k, d), normal(h * k, scale=0.3), matrix(h * u, d),
            norm(h * u), matrix(d, h * u),
        )  # fmt: skip
        return PredictParams(
            norm(d), matrix(d, d), normal(d, scale=0.3), norm(d), matrix(2 * f, d), matrix(d, f),
            read if memory else None,
        )  # fmt: skip

    write = WriteParams(
        norm(d), matrix(h * k, d), normal(h * k, scale=0.3), matrix(h * u, d), matrix(h, d),
        matrix(h, d), normal(h), normal(h, mean=-1.0),
    )  # fmt: skip
    params = GroundedParams(
        GroundParams(norm(d), matrix(d, d), normal(d, scale=0.3)),
        write if memory else None,
        tuple(layer() for _ in range(layers)),
    )
    hold = torch.rand(batch, length, generator=rng) < 0.25
    reset = torch.rand(batch, length, generator=rng) < 0.12
    reset[:, 32::32] |= torch.rand(batch, len(range(32, length, 32)), generator=rng) < 0.5
    return Inputs(
        normal(batch, length, d, scale=0.7),
        params,
        normal(batch, d),
        normal(batch, d),
        normal(batch, h, k, u, scale=0.5) if memory else None,
        hold if masks else None,
        reset if masks else None,
    )


def random_loss(outputs: tuple[Tensor | None, ...], *, last_state_only: bool = False) -> Tensor:
    """A loss over every entry of the outputs."""
    rng = torch.Generator().manual_seed(99)
    total = torch.zeros((), dtype=torch.float64)
    for i, output in enumerate(outputs):
        if output is None:
            continue
        weights = torch.randn(output.shape, generator=rng, dtype=torch.float64)
        if i > 0 or not last_state_only:
            total = total + (output.double() * weights).sum()
    return total


def values_and_gradients(
    inputs: Inputs, backend: str | None, *names: str, last_state_only: bool = False
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs by name, and the gradients of the named leaves (of all without names)."""
    given = inputs.require_grad(*names)
    outputs = given.run(backend)
    loss = random_loss(outputs, last_state_only=last_state_only)
    leaves = {n: t for n, t in given.leaves().items() if t.requires_grad}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    grads = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }
    labels = ("predicted_BTD", "predicted_BD", "grounded_BD", "memory_BHKU")
    values = {n: t.detach() for n, t in zip(labels, outputs, strict=True) if t is not None}
    return values, grads


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif hasattr(value, "_fields"):
        for field in value._fields:
            yield from _named(f"{name}.{field}", getattr(value, field))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _named(f"{name}.{i}", item)


def _map(name: str, value: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(name, value)
    if hasattr(value, "_fields"):
        return type(value)(*(_map(f"{name}.{f}", getattr(value, f), change) for f in value._fields))
    if isinstance(value, tuple):
        return tuple(_map(f"{name}.{i}", item, change) for i, item in enumerate(value))
    return value
