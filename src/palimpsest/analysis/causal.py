"""The whole set of interventions on a model, each effect beside its random controls.

An effect counts where it lies outside the range of its controls by more than chance: its 95 %
interval does not meet the range from the smallest to the largest effect of the controls.

Legend: N blocks, T tokens of a block.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from palimpsest.analysis.directions import mean_states
from palimpsest.analysis.effects import (
    Change,
    Intervention,
    Probe,
    measure_changes,
    text_probes,
)
from palimpsest.analysis.interventions import (
    cut_interventions,
    mean_state_interventions,
    noise_interventions,
)
from palimpsest.analysis.memories import memory_interventions, pool_interventions
from palimpsest.analysis.parts import Head, model_parts
from palimpsest.analysis.passes import Measured, check_windows
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CausalResult", "Controls", "Effect", "measure_interventions", "standard_interventions"]


@dataclass(frozen=True, kw_only=True)
class Controls(Measured):
    """What random interventions of the same size do to the same figure.

    Attributes:
        values: the effect of each draw.
        mean, std: of them; std (divisor n - 1) is None for one draw.
    """

    values: tuple[float, ...]
    mean: float
    std: float | None


@dataclass(frozen=True, kw_only=True)
class Effect(Measured):
    """One intervention.

    Attributes:
        name, group, about: see :class:`~palimpsest.analysis.effects.Intervention`.
        changes: the change of each probe's figure.
        controls: for each probe, or empty where an intervention has no control.
    """

    name: str
    group: str
    about: str
    changes: tuple[Change, ...]
    controls: tuple[Controls, ...]

    def beyond_controls(self, probe: int = 0) -> bool | None:
        """Whether the interval misses the controls' range; None without controls."""
        if not self.controls:
            return None
        change, values = self.changes[probe], self.controls[probe].values
        return change.low > max(values) or change.high < min(values)


@dataclass(frozen=True, kw_only=True)
class CausalResult(Measured):
    """Effects of interventions on a model.

    Attributes:
        model: its architecture.
        parameters: how many it has.
        blocks: N.
        length: T.
        probes: names of what was measured, the first one on text.
        bases: their figures without interventions.
        mean_states: tap → norm of the mean, √E‖x‖², and their ratio.
        pools: the heads of each pool.
        draws: random controls of each intervention, at most.
        seconds: how long it took.
        effects: in the order of the groups.
    """

    model: str
    parameters: int
    blocks: int
    length: int
    probes: tuple[str, ...]
    bases: tuple[float, ...]
    mean_states: tuple[tuple[str, float, float, float], ...]
    pools: tuple[tuple[str, tuple[Head, ...]], ...]
    draws: int
    seconds: float
    effects: tuple[Effect, ...]

    def effect(self, name: str) -> Effect:
        """One effect by name.

        Raises:
            InputError: there is none of this name.
        """
        for effect in self.effects:
            if effect.name == name:
                return effect
        raise InputError(f"effect {name!r}: was not measured; there is {self._names()}")

    def _names(self) -> str:
        return ", ".join(effect.name for effect in self.effects)

    def table(self, probe: int = 0) -> Table:
        """The change of one probe's figure, one line for each intervention.

        Raises:
            InputError: there is no such probe.
        """
        from rich import box
        from rich.table import Table

        if not 0 <= probe < len(self.probes):
            raise InputError(f"probe={probe}: must be from 0 to {len(self.probes) - 1}")
        unit = self.effects[0].changes[probe].unit
        table = Table(
            title=f"{self.probes[probe]}: {self.bases[probe]:.4f} {unit}, {self.blocks} blocks",
            box=box.SIMPLE_HEAD,
            caption="change of the figure; * outside the range of the random controls",
        )
        table.add_column("intervention", overflow="fold")
        for column in ("change", "95 %", "controls"):
            table.add_column(column, justify="right", no_wrap=True)
        for effect in self.effects:
            change, mark = effect.changes[probe], " *" if effect.beyond_controls(probe) else "  "
            values = effect.controls[probe].values if effect.controls else ()
            table.add_row(
                effect.name,
                f"{change.value:+.3f}{mark}",
                f"{change.low:+.3f} … {change.high:+.3f}",
                f"{min(values):+.3f} … {max(values):+.3f}" if values else "",
            )
        return table


def standard_interventions(
    model: LanguageModel,
    ids_NT: Tensor,
    *,
    pools: Mapping[str, Iterable[Head]] | None = None,
    heads: Sequence[Head] | None = None,
    draws: int = 4,
    batch_size: int = 32,
    seed: int = 0,
) -> tuple[list[Intervention], tuple[tuple[str, float, float, float], ...]]:
    """Every intervention that the model has the parts for, and the mean states.

    Args: as :func:`measure_interventions`.
    """
    means = mean_states(model, ids_NT, batch_size=batch_size)
    found = mean_state_interventions(model, means, draws=draws, seed=seed)
    found += cut_interventions(model, heads=heads, draws=draws, seed=seed)
    if pools:
        found += pool_interventions(model, pools, draws=draws, seed=seed)
    found += memory_interventions(model, draws=draws)
    found += noise_interventions(model, means)
    about = tuple((name, m.norm, m.rms_norm, m.share) for name, m in means.items())
    return found, about


def measure_interventions(
    model: LanguageModel,
    ids_NT: Tensor,
    *,
    lengths_NT: Tensor | None = None,
    pools: Mapping[str, Iterable[Head]] | None = None,
    heads: Sequence[Head] | None = None,
    probes: Sequence[Probe] | None = None,
    draws: int = 4,
    batch_size: int = 32,
    seed: int = 0,
) -> CausalResult:
    """Carry out all interventions on blocks of a text.

    Args:
        model: any model; it comes back as it was.
        ids_NT: blocks, each read from an empty state (``passes.cut_windows``); mean states are
            taken over the same blocks.
        lengths_NT: bytes that each token stands for; None: one.
        pools: heads (memory, head) by the pool's name, such as {"fast": …, "slow": …}.
        heads: which heads are cut one by one; None takes all.
        probes: what is measured; None: ``text_probes``, bits per byte and what a second reading
            of the same passage saves. For a model trained on a task add ``task_probe(task)``.
        draws: random controls of each intervention.
        batch_size: blocks of a forward.
        seed: of everything random.

    Raises:
        InputError: heads out of range, blocks that are too short or too few, ``draws`` below 1.
    """
    if draws < 1:
        raise InputError(f"draws={draws}: an effect without a control says nothing; at least 1")
    check_windows(model, ids_NT, batch_size)
    began = time.perf_counter()
    chosen = text_probes(ids_NT, lengths_NT) if probes is None else list(probes)
    if not chosen:
        raise InputError("probes=[]: name at least one")
    pools = {name: tuple(members) for name, members in (pools or {}).items()}
    interventions, about = standard_interventions(
        model, ids_NT, pools=pools, heads=heads, draws=draws, batch_size=batch_size, seed=seed
    )
    changes = measure_changes(model, chosen, interventions, batch_size=batch_size, seed=seed)
    parts = model_parts(model)
    effects = []
    for iv in interventions:
        if iv.control_of:
            continue
        drawn = [changes[c.name] for c in interventions if c.control_of == iv.name]
        effects.append(
            Effect(
                name=iv.name,
                group=iv.group,
                about=iv.about,
                changes=changes[iv.name],
                controls=tuple(_controls(column) for column in zip(*drawn, strict=True)),
            )
        )
    return CausalResult(
        model=model.registry_name,
        parameters=model.num_parameters(),
        blocks=len(ids_NT),
        length=ids_NT.shape[1],
        probes=tuple(probe.name for probe in chosen),
        bases=tuple(change.base for change in effects[0].changes),
        mean_states=about,
        pools=tuple((name, tuple(parts.check(p))) for name, p in pools.items() if p),
        draws=draws,
        seconds=time.perf_counter() - began,
        effects=tuple(effects),
    )


def _controls(changes: Sequence[Change]) -> Controls:
    values = tuple(change.value for change in changes)
    return Controls(
        values=values,
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
    )
