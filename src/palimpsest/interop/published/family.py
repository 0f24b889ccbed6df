"""How a family of architectures maps its published arrays to our parameters, and the copying."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.errors import CheckpointError, InputError
from palimpsest.models import LanguageModel

__all__ = ["AS_IS", "TRANSPOSED", "Family", "Layout", "Row", "export_arrays", "load_arrays"]

NAMES_SHOWN = 6  # of each kind of mistake, so that a foreign checkpoint still gives one line


@dataclass(frozen=True)
class Layout:
    """How one array is stored in the published program.

    Attributes:
        to_ours: from the published array to our parameter's layout.
        to_published: the inverse; it is linear, so that it also maps gradients.
    """

    to_ours: Callable[[np.ndarray], np.ndarray]
    to_published: Callable[[np.ndarray], np.ndarray]


AS_IS = Layout(lambda array: array, lambda array: array)
TRANSPOSED = Layout(np.transpose, np.transpose)
"""Published (in, out), ours (out, in), as ``nn.Linear`` stores it."""


@dataclass(frozen=True)
class Row:
    """One published array: its name, our parameter, and the published layout.

    ``part`` says which rows of our parameter it is (from, to), where ours joins several published
    ones.
    """

    published: str
    ours: str
    layout: Layout = AS_IS
    part: tuple[int, int] | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The part of our parameter (or of its gradient) that this row stands for, as a view."""
        return tensor if self.part is None else tensor[slice(*self.part)]


@dataclass(frozen=True)
class Family:
    """Architectures published together, under one scheme of names.

    Attributes:
        name: for messages.
        recognised_by: for messages: what in a configuration marks the family.
        reads: whether a published configuration belongs to the family.
        build: a model from a published configuration and the names of the arrays at hand, with
            fresh parameters.
        owns: whether a model belongs to the family.
        rows: the table of all of a model's parameters.
        tied: arrays that a checkpoint may hold although they are another one: name, that other.
    """

    name: str
    recognised_by: str
    reads: Callable[[Mapping[str, Any]], bool]
    build: Callable[[Mapping[str, Any], frozenset[str]], LanguageModel]
    owns: Callable[[LanguageModel], bool]
    rows: Callable[[LanguageModel], list[Row]]
    tied: Mapping[str, str] = field(default_factory=dict)


def load_arrays(
    model: LanguageModel, family: Family, params: Mapping[str, np.ndarray]
) -> LanguageModel:
    """Copy published arrays into a model's parameters, all of them or none.

    Raises:
        CheckpointError: names every array that is missing, unknown, mis-shaped or mistyped.
    """
    params = _without_tied(params, family)
    parameters = dict(model.named_parameters())
    rows = {row.published: row for row in family.rows(model)}
    mistakes = {
        "missing": sorted(rows.keys() - params.keys()),
        "unknown": sorted(map(str, params.keys() - rows.keys())),
        "not a floating-point array": [],
        "mis-shaped": [],
    }
    for name in sorted(rows.keys() & params.keys()):
        array = params[name]
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            mistakes["not a floating-point array"].append(f"{name} ({kind})")
            continue
        wanted = _published_shape(rows[name], rows[name].of(parameters[rows[name].ours]))
        if array.shape != wanted:
            mistakes["mis-shaped"].append(f"{name} {array.shape}, must be {wanted}")
    if any(mistakes.values()):
        raise CheckpointError(
            f"params do not fit the published {model.registry_name!r} with this configuration: "
            + "; ".join(f"{what}: {_some(names)}" for what, names in mistakes.items() if names)
        )
    arrays = {name: _native(params[name]) for name in rows}
    model.to(torch.from_numpy(np.empty(0, np.result_type(*arrays.values()))).dtype)
    with torch.no_grad():
        for name, row in rows.items():
            ours = np.array(row.layout.to_ours(arrays[name]), order="C")
            row.of(parameters[row.ours]).copy_(torch.from_numpy(ours))
    return model


def export_arrays(model: LanguageModel, family: Family, gradients: bool) -> dict[str, np.ndarray]:
    """See :func:`palimpsest.interop.published.export_published`."""
    parameters = dict(model.named_parameters())
    if gradients and all(p.grad is None for p in parameters.values()):
        raise InputError("gradients=True: the model has none; call loss.backward() first")
    arrays = {}
    for row in family.rows(model):
        tensor: Tensor = row.of(parameters[row.ours]).detach()
        if gradients:
            grad = parameters[row.ours].grad
            tensor = torch.zeros_like(tensor) if grad is None else row.of(grad).detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        arrays[row.published] = np.array(row.layout.to_published(tensor.cpu().numpy()), order="C")
    return arrays


def _without_tied(params: Mapping[str, np.ndarray], family: Family) -> Mapping[str, np.ndarray]:
    """The arrays without those that repeat another one.

    Raises:
        CheckpointError: one differs from the array that it must equal.
    """
    for name, other in family.tied.items():
        if name in params and other in params and not np.array_equal(params[name], params[other]):
            raise CheckpointError(
                f"params: {name} differs from {other}; the head of a published {family.name} model "
                "is its embedding"
            )
    return {name: array for name, array in params.items() if name not in family.tied}


def _published_shape(row: Row, parameter: Tensor) -> tuple[int, ...]:
    # a broadcast scalar has the shape without the memory
    stand_in = np.broadcast_to(np.float32(0), tuple(parameter.shape))
    return row.layout.to_published(stand_in).shape


def _native(array: np.ndarray) -> np.ndarray:
    """torch takes the machine's own byte order only, and no extended precision."""
    if array.dtype.itemsize > 8:
        raise CheckpointError(f"params of dtype {array.dtype}: must be float64 or narrower")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")
