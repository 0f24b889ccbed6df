"""What an intervention does to a model, measured on the same blocks of text with and without it.

Each block is read twice, as it is and under the intervention. The difference is taken block by
block, so that easy and hard texts do not blur it; intervals are percentiles of a bootstrap over
blocks (the blocks are drawn, their tokens are not independent).

Legend: N blocks, B blocks of one forward, T tokens of a block, L = T - 1 predictions of a block.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.analysis.passes import Measured, check_windows
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from palimpsest.tasks import IGNORED, Task

__all__ = ["Change", "Intervention", "Probe", "measure_changes", "task_probe", "text_probes"]

Context = Callable[[torch.Generator], AbstractContextManager[None]]
Edit = Callable[[State, torch.Generator], State]
RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Something done to a model while it reads.

    Attributes:
        name: what tables call it.
        group: what it belongs to, such as "mean state".
        about: how it is done, in one line.
        context: a block in which the model runs under the intervention, from a seeded generator.
        edit: from the state in the middle of a block to the one that reading goes on from.
        midway: whether it acts in the second half of a block only; always so with ``edit``.
        control_of: the intervention that this is a random control of, or "".
    """

    name: str
    group: str
    about: str
    context: Context = field(default=lambda _: nullcontext())
    edit: Edit | None = None
    midway: bool = False
    control_of: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """What is read, and what is counted in it.

    Attributes:
        name: what results call it.
        unit: of the figure, such as "bits per byte".
        inputs, targets: (N,L) ids; targets are -100 where nothing is counted.
        weights: (N,L) what a nat at each position counts; None counts right answers instead.
        sizes: (N) what a block's sum is divided by.
        middle: the position from which an intervention midway acts, 0 < middle < L.
    """

    name: str
    unit: str
    inputs: Tensor
    targets: Tensor
    weights: Tensor | None
    sizes: NDArray[np.float64]
    middle: int


@dataclass(frozen=True, kw_only=True)
class Change(Measured):
    """A figure under an intervention less the same figure without it.

    Attributes:
        probe, unit: of what.
        base: the figure without the intervention.
        value: the difference.
        low, high: the 95 % interval, from a bootstrap over blocks.
        blocks: N.
    """

    probe: str
    unit: str
    base: float
    value: float
    low: float
    high: float
    blocks: int


def text_probes(
    ids_NT: Tensor, lengths_NT: Tensor | None = None, *, repeat: bool = True
) -> list[Probe]:
    """Bits per byte of blocks of text, and what is recalled of a text that comes twice.

    The second reads the first half of each block twice; its figure is how many bits per byte the
    second reading costs less than the first. Under an intervention midway only the second reading
    is, so that the figure falls by what the intervention does to any text, and by more where
    it does away with what was recalled.

    Args:
        ids_NT: blocks, each read from an empty state (``passes.cut_windows``).
        lengths_NT: bytes that each token stands for; None: one, as with byte tokens.
        repeat: whether to make the second.

    Raises:
        InputError: blocks of fewer than 8 tokens, fewer than 2 blocks, or lengths of another shape.
    """
    if ids_NT.ndim != 2 or ids_NT.shape[1] < 8 or ids_NT.shape[0] < 2:
        raise InputError(
            f"blocks of shape {tuple(ids_NT.shape)}: interventions need at least 2 blocks of at "
            "least 8 tokens; use a longer text or shorter blocks"
        )
    bytes_NT = torch.ones_like(ids_NT) if lengths_NT is None else lengths_NT.long()
    if bytes_NT.shape != ids_NT.shape:
        raise InputError(
            f"lengths of shape {tuple(bytes_NT.shape)}: must be that of the blocks, "
            f"{tuple(ids_NT.shape)}"
        )
    length = ids_NT.shape[1] - 1
    found = [
        Probe(
            name="text",
            unit="bits per byte",
            inputs=ids_NT[:, :-1],
            targets=ids_NT[:, 1:],
            weights=torch.full((len(ids_NT), length), 1.0 / math.log(2.0)),
            sizes=_sizes(bytes_NT[:, 1:]),
            middle=length // 2,
        )
    ]
    if repeat:
        half = ids_NT.shape[1] // 2
        twice_NT = ids_NT[:, :half].repeat(1, 2)
        # the same tokens are predicted in both: all of the passage but the first
        weights = torch.zeros(len(ids_NT), 2 * half - 1)
        weights[:, : half - 1], weights[:, half:] = 1.0 / math.log(2.0), -1.0 / math.log(2.0)
        found.append(
            Probe(
                name="repeat",
                unit="bits per byte saved",
                inputs=twice_NT[:, :-1],
                targets=twice_NT[:, 1:],
                weights=weights,
                sizes=_sizes(bytes_NT[:, 1:half]),
                middle=half,
            )
        )
    return found


def _sizes(bytes_NT: Tensor) -> NDArray[np.float64]:
    sizes: NDArray[np.float64] = bytes_NT.sum(1).double().numpy()
    return np.maximum(sizes, 1.0)


def task_probe(
    task: Task, examples: int = 256, seed: int = 1_000_003, *, middle: int | None = None
) -> Probe:
    """Accuracy on a recall task, for a model that was trained on it.

    Args:
        task: such as ``RecallTask()``.
        examples: how many are drawn.
        seed: of their generator.
        middle: the position from which an intervention midway acts; None takes half the length.

    Raises:
        InputError: fewer than 2 examples, or a middle outside them.
    """
    if examples < 2:
        raise InputError(f"examples={examples}: must be at least 2")
    batch = task.batch(examples, torch.Generator().manual_seed(seed))
    length = batch.inputs.shape[1]
    if middle is not None and not 0 < middle < length:
        raise InputError(f"middle={middle}: must be above 0 and below the task's {length} tokens")
    asked = (batch.labels != IGNORED).sum(1).double().numpy()
    return Probe(
        name=task.name,
        unit="accuracy",
        inputs=batch.inputs,
        targets=batch.labels,
        weights=None,
        sizes=asked,
        middle=length // 2 if middle is None else middle,
    )


def measure_changes(
    model: LanguageModel,
    probes: Sequence[Probe],
    interventions: Sequence[Intervention],
    *,
    batch_size: int = 32,
    seed: int = 0,
) -> dict[str, tuple[Change, ...]]:
    """Measure interventions.

    Args:
        model: any model; it comes back as it was.
        probes: what is read and counted.
        interventions: of different names.
        batch_size: blocks of a forward; those that exchange memories do it within a forward.
        seed: of the interventions' random numbers, and of the bootstrap.

    Returns:
        For each intervention's name a :class:`Change` for each probe.

    Raises:
        InputError: names that are not distinct, or probes that do not fit the model.
    """
    names = [iv.name for iv in interventions]
    if len(set(names)) < len(names):
        raise InputError("interventions: their names must differ")
    found: dict[str, list[Change]] = {name: [] for name in names}
    for probe in probes:
        check_windows(model, probe.inputs, batch_size, 2)
        base_N, sums = _read(model, probe, interventions, batch_size, seed)
        draws_RN = np.random.default_rng(seed).multinomial(
            len(base_N), np.full(len(base_N), 1.0 / len(base_N)), RESAMPLES
        )
        sizes_R = draws_RN @ probe.sizes
        base = float(base_N.sum() / probe.sizes.sum())
        for name in names:
            delta_N = sums[name] - base_N
            low, high = np.quantile(draws_RN @ delta_N / sizes_R, (0.025, 0.975))
            found[name].append(
                Change(
                    probe=probe.name,
                    unit=probe.unit,
                    base=base,
                    value=float(delta_N.sum() / probe.sizes.sum()),
                    low=float(low),
                    high=float(high),
                    blocks=len(base_N),
                )
            )
    return {name: tuple(changes) for name, changes in found.items()}


def _read(
    model: LanguageModel,
    probe: Probe,
    interventions: Sequence[Intervention],
    batch_size: int,
    seed: int,
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Each block's sum without and with each intervention."""
    half = probe.middle
    base: list[Tensor] = []
    sums: dict[str, list[Tensor]] = {iv.name: [] for iv in interventions}
    # parts of nearly equal size: a last batch of one block has nothing to exchange with
    pieces_of = max(1, round(len(probe.inputs) / batch_size))
    parts = torch.arange(len(probe.inputs)).tensor_split(pieces_of)
    for rows in parts:
        pieces = _Rows(model, probe, rows)
        first_B, middle = pieces.score(0, half, None)
        second_B, _ = pieces.score(half, None, middle)
        base.append(first_B + second_B)
        for iv in interventions:
            # a generator of the name and the place: what else is measured changes nothing
            own = zlib.crc32(f"{seed} {iv.name} {int(rows[0])}".encode())
            generator = torch.Generator().manual_seed(own)
            if iv.edit is not None or iv.midway:
                state = middle if iv.edit is None else iv.edit(middle, generator)
                with iv.context(generator):
                    after_B, _ = pieces.score(half, None, state)
                sums[iv.name].append(first_B + after_B)
            else:
                with iv.context(generator):
                    sums[iv.name].append(pieces.score(0, None, None)[0])
    return (
        torch.cat(base).numpy(),
        {name: torch.cat(found).numpy() for name, found in sums.items()},
    )


class _Rows:
    """Some blocks of a probe, read in pieces."""

    def __init__(self, model: LanguageModel, probe: Probe, rows: Tensor) -> None:
        self.model, self.probe, self.rows = model, probe, rows

    def score(self, low: int, high: int | None, state: State | None) -> tuple[Tensor, State]:
        """(B) sums over positions low … high in fp64, and the state after them."""
        model, probe, cut = self.model, self.probe, slice(low, high)
        targets = probe.targets[self.rows, cut].to(model.device)
        inputs = probe.inputs[self.rows, cut].to(model.device)
        with inference(model):
            out = model(inputs, state, targets=targets)
        if probe.weights is None:
            right_BL = (out.logits.argmax(-1) == targets) & (targets != IGNORED)
            return right_BL.sum(1).double().cpu(), out.state
        assert out.token_losses is not None
        weights = probe.weights[self.rows, cut].double()
        return (out.token_losses.cpu().double() * weights).sum(1), out.state
