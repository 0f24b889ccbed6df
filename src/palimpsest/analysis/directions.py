"""The mean state, and pushing states along directions.

Three things are done to a state x with the mean s̄ of norm n and direction u = s̄/n:

- subtract: x − n·u;
- project: x − (x·u)·u, what is left has no component along u;
- clamp: x + (n − x·u)·u, the component is the mean's at every position.

Each moves x by a·u with a number a of its own at each position. The control moves it by a·r along
a random direction r: as far at every position, elsewhere.

Legend: B batch, T time, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from palimpsest.analysis.catalogue import taps
from palimpsest.analysis.passes import check_windows, state_tap
from palimpsest.analysis.record import record
from palimpsest.analysis.reducers import Covariance
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.models.language_model import LanguageModel

__all__ = [
    "How",
    "MeanState",
    "add_noise",
    "mean_states",
    "push",
    "random_direction",
    "random_turn",
]

How = Literal["subtract", "project", "clamp"]
GROUNDED = "state.grounded"


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanState:
    """The mean of a tap.

    Attributes:
        tap: its name.
        vector: (D) fp64.
        rms_norm: √E‖x‖².
        states: positions that it was taken over.
    """

    tap: str
    vector: Tensor
    rms_norm: float
    states: int

    @property
    def norm(self) -> float:
        """‖s̄‖."""
        return float(self.vector.norm())

    @property
    def share(self) -> float:
        """‖s̄‖ / √E‖x‖², 1 where all states are one."""
        return self.norm / self.rms_norm


def mean_states(
    model: LanguageModel,
    ids_NT: Tensor,
    *,
    names: Sequence[str] | None = None,
    batch_size: int = 32,
) -> dict[str, MeanState]:
    """Mean states over blocks of text, each read from an empty state.

    Args:
        model: any model.
        ids_NT: the blocks.
        names: taps with one vector at each position; None: the state that the head reads, and
            the grounded state where there is one.
        batch_size: blocks of a forward.

    Raises:
        InputError: an unknown tap, or blocks that do not fit the model.
    """
    check_windows(model, ids_NT, batch_size)
    if names is None:
        names = [state_tap(model), *([GROUNDED] if GROUNDED in taps(model) else [])]
    with record(model, reduce={name: Covariance() for name in names}) as tape:
        for ids_BT in ids_NT.split(batch_size):
            with inference(model):
                model(ids_BT.to(model.device))
    found = {}
    for name in names:
        mean_D, covariance_DD = tape.result(name)
        rms = math.sqrt(float(covariance_DD.diagonal().sum() + mean_D.square().sum()))
        found[name] = MeanState(tap=name, vector=mean_D, rms_norm=rms, states=ids_NT.numel())
    return found


def push(mean_D: Tensor, how: How, along_D: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """What is done to states (see the head of the file).

    Args:
        mean_D: s̄.
        how: "subtract", "project" or "clamp".
        along_D: a direction of norm 1 to move along instead, for a control.

    Raises:
        InputError: an unknown ``how``, or a mean of norm 0.
    """
    if how not in get_args(How):
        raise InputError(f"how={how!r}: must be one of {', '.join(get_args(How))}")
    norm = float(mean_D.norm())
    if not norm > 0.0:
        raise InputError("mean state of norm 0: it has no direction to remove")
    unit_D = mean_D / norm

    def change(x_BTD: Tensor) -> Tensor:
        u_D = unit_D.to(x_BTD)
        r_D = u_D if along_D is None else along_D.to(x_BTD)
        if how == "subtract":
            return torch.sub(x_BTD, r_D, alpha=norm)
        along_BT1 = (x_BTD @ u_D).unsqueeze(-1)
        return torch.addcmul(x_BTD, (norm if how == "clamp" else 0.0) - along_BT1, r_D)

    return change


def random_direction(width: int, generator: torch.Generator) -> Tensor:
    """(D) of norm 1, uniform over directions."""
    draw_D = torch.randn(width, generator=generator, dtype=torch.float64)
    unit_D: Tensor = draw_D / draw_D.norm()
    return unit_D


def random_turn(width: int, generator: torch.Generator) -> Tensor:
    """(D,D) a random orthogonal matrix."""
    draw_DD = torch.randn(width, width, generator=generator, dtype=torch.float64)
    turn_DD, upper_DD = torch.linalg.qr(draw_DD)
    # with R's diagonal positive Q is uniform over all turns
    uniform_DD: Tensor = turn_DD * upper_DD.diagonal().sign()
    return uniform_DD


def add_noise(norm: float, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Add to each position a vector of a given norm in a fresh random direction."""

    def change(x_BTD: Tensor) -> Tensor:
        noise = torch.randn(x_BTD.shape, generator=generator).to(x_BTD)
        return torch.add(x_BTD, noise / noise.norm(dim=-1, keepdim=True), alpha=norm)

    return change
