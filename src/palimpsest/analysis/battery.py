"""Everything that is measured about a model's state, on one text, into one folder.

Geometry and mean state are taken over the whole text, cut into windows. What reads the text many
times over takes windows spread evenly over it: horizons, effective context, interventions.

Legend: W windows, T tokens of a window, N blocks for interventions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from palimpsest._version import __version__
from palimpsest.analysis.causal import CausalResult, measure_interventions
from palimpsest.analysis.context import ContextLoss, Influence, measure_context, measure_influence
from palimpsest.analysis.default_token import DefaultToken, measure_default_token
from palimpsest.analysis.effects import task_probe, text_probes
from palimpsest.analysis.geometry import Geometry, measure_geometry
from palimpsest.analysis.horizons import (
    Retention,
    StateCosines,
    decay_taps,
    measure_retention,
    measure_state_cosines,
)
from palimpsest.analysis.parts import Head, model_parts
from palimpsest.analysis.passes import Measured, cut_windows
from palimpsest.analysis.pools import Pools, split_pools
from palimpsest.errors import InputError
from palimpsest.files import write_json
from palimpsest.models.language_model import LanguageModel
from palimpsest.tasks import Task
from palimpsest.text import Tokenizer
from palimpsest.text.batches import SEED_LIMIT

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Battery", "BatterySettings", "head_half_lives", "name_pools", "run_battery"]

RESULT = "battery.json"


@dataclass(frozen=True, kw_only=True)
class BatterySettings:
    """How much is read.

    Attributes:
        length: T, tokens of a window.
        windows: windows for horizons, at most.
        blocks: N, windows that interventions read, at most.
        targets: predictions for effective context, at most.
        draws: random controls of each intervention.
        batch_size: windows of a forward.
        seed: of everything random.

    Raises:
        InputError: a value below what makes sense.
    """

    length: int = 256
    windows: int = 256
    blocks: int = 32
    targets: int = 256
    draws: int = 4
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "length": 16, "windows": 1, "blocks": 2, "targets": 2, "draws": 1, "batch_size": 2,
        }  # fmt: skip
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(f"{name}={getattr(self, name)}: must be at least {bound}")
        if not 0 <= self.seed < SEED_LIMIT:
            raise InputError(f"seed={self.seed}: must be from 0 to 2^63 - 1")


@dataclass(frozen=True, kw_only=True)
class Battery(Measured):
    """What the battery found; what a model does not have is None.

    Attributes:
        palimpsest: the version that measured it.
        model, parameters: what was measured.
        source, data: what the caller calls model and text.
        tokens: tokens of the text in windows.
        length: T.
        geometry, default_token, cosines: of the state that the head reads.
        retention, pools: of the memories' heads.
        context, influence: effective context.
        interventions: effects, with controls.
        seconds: how long each part took, by name.
    """

    palimpsest: str
    model: str
    parameters: int
    source: str
    data: str
    tokens: int
    length: int
    geometry: Geometry
    default_token: DefaultToken
    cosines: StateCosines
    retention: Retention | None
    pools: Pools | None
    context: ContextLoss
    influence: Influence
    interventions: CausalResult
    seconds: tuple[tuple[str, float], ...]

    def table(self) -> Table:
        """The main figures, one a line."""
        from rich.table import Table

        table = Table(title=f"{self.source}: {self.model}, {self.parameters:,} parameters")
        table.add_column("figure")
        table.add_column("value", overflow="fold")
        g, d = self.geometry, self.default_token
        agreement = "–" if d.group_cosine_mean is None else f"{d.group_cosine_mean:.3f}"
        rows = {
            "text": f"{self.data}, {self.tokens:,} tokens in windows of {self.length}",
            "bits per byte": f"{self.interventions.bases[0]:.4f}",
            "state": f"{d.tap}, width {g.width}, {len(g.dead)} dead",
            "norm": f"{g.norm_mean:.2f} ± {g.norm_std:.2f}",
            "mean state": f"norm {d.norm:.2f}, {d.norm_share:.3f} of a state's; parts of the text "
            f"agree with cosine {agreement}",
            "components for 90 % / 99 %": f"{g.components_90} / {g.components_99}",
            "stable rank, participation": f"{g.stable_rank:.1f}, {g.participation_ratio:.1f}",
            "half-lives": "no heads with a decay" if self.retention is None else self._half_lives(),
            "pools": "–" if self.pools is None else str(self.pools),
            "context worth keeping": f"{self.context.effective} tokens (to "
            f"{self.context.tolerance:g} nats)",
            "half of the influence": f"{self.influence.half} tokens, 90 %: {self.influence.most}",
            "time": f"{sum(s for _, s in self.seconds):.0f} s",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table

    def _half_lives(self) -> str:
        assert self.retention is not None
        shown = [
            f">{self.retention.longest}" if value is None else f"{value:.1f}"
            for value in self.retention.half_lives()
        ]
        return ", ".join(shown) + " tokens"


def head_half_lives(model: LanguageModel, retention: Retention) -> list[tuple[Head, float | None]]:
    """Half-lives by head: of the memory, which of the triple family is the pair memory (γ)."""
    names = {memory.name: i for i, memory in enumerate(model_parts(model).memories)}
    found = []
    for head in retention.heads:
        for ending in ("memory.log_decay", "decay.pair"):
            if head.tap.endswith(ending):
                place = head.tap.removesuffix(ending).rstrip(".")
                found.append(((names[place], head.head), head.half_life))
    return found


def name_pools(half_lives: list[tuple[Head, float | None]], pools: Pools) -> dict[str, list[Head]]:
    """The heads that interventions take together.

    "fast" and "slow" where the rule finds a split; else the halves by half-life, named "faster"
    and "slower", so that there is something to compare; nothing with fewer than two heads.
    """
    if pools.split:
        return {
            "fast": [half_lives[i][0] for i in pools.fast],
            "slow": [half_lives[i][0] for i in pools.slow],
        }
    ordered = sorted(half_lives, key=lambda item: float("inf") if item[1] is None else item[1])
    half = len(ordered) // 2
    if not half:
        return {}
    return {
        "faster": [head for head, _ in ordered[:half]],
        "slower": [head for head, _ in ordered[half:]],
    }


def run_battery(
    model: LanguageModel,
    ids: Tensor,
    *,
    tokenizer: Tokenizer | None = None,
    unigram: Tensor | None = None,
    task: Task | None = None,
    settings: BatterySettings | None = None,
    source: str = "",
    data: str = "",
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda part: None,
) -> Battery:
    """Measure everything.

    Args:
        model: any model; it comes back as it was.
        ids: (n) the tokens of a text that the model was not trained on.
        tokenizer: to write tokens out and to count bytes; None: a token is a byte.
        unigram: (V) counts of the training data, for the default token.
        task: a recall task that the model was trained on, to measure interventions on as well.
        settings: how much is read.
        source, data: what the result calls model and text.
        out: a folder for ``battery.json`` and figures; None writes nothing.
        say: told each part's name as it starts.

    Raises:
        InputError: a text too short for two windows, tokens that do not fit the model, or a folder
            that holds something else or cannot be written.
    """
    chosen = settings or BatterySettings()
    if len(ids) < 2 * chosen.length:
        raise InputError(
            f"a text of {len(ids)} tokens: the battery needs two windows of {chosen.length}; use a "
            "longer text or a smaller length"
        )
    folder = None if out is None else Path(out)
    if folder is not None:
        _check_folder(folder)
    seconds: list[tuple[str, float]] = []

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        say(part)
        began = time.perf_counter()
        yield
        seconds.append((part, time.perf_counter() - began))

    batch = chosen.batch_size
    ids_WT = cut_windows(ids, chosen.length)
    with timed("geometry"):
        geometry = measure_geometry(model, ids_WT, batch_size=batch)
    with timed("default token"):
        default = measure_default_token(
            model, ids_WT, unigram=unigram, tokenizer=tokenizer, batch_size=batch
        )
    retention = pools = None
    named: dict[str, list[Head]] = {}
    with timed("horizons"):
        some_WT = cut_windows(ids, chosen.length, most=chosen.windows)
        cosines = measure_state_cosines(model, some_WT, batch_size=batch)
        if decay_taps(model):
            retention = measure_retention(model, some_WT, batch_size=batch)
            half_lives = head_half_lives(model, retention)
            pools = split_pools([value for _, value in half_lives], longest=retention.longest)
            named = name_pools(half_lives, pools)
    stride = max(1, (len(ids) - chosen.length) // chosen.targets)
    targets = cut_windows(ids, chosen.length, stride=stride, most=chosen.targets)
    with timed("context"):
        context = measure_context(model, targets)
    with timed("influence"):
        influence = measure_influence(model, targets[:: max(1, len(targets) // 96)])
    with timed("interventions"):
        blocks = cut_windows(ids, chosen.length, most=chosen.blocks)
        lengths = None
        if tokenizer is not None:
            flat = tokenizer.byte_lengths(blocks.flatten().tolist(), starts=())
            lengths = torch.as_tensor(flat).view_as(blocks)
        probes = [] if task is None else [task_probe(task, seed=chosen.seed + 1_000_003)]
        causal = measure_interventions(
            model,
            blocks,
            pools=named,
            probes=[*text_probes(blocks, lengths), *probes],
            draws=chosen.draws,
            batch_size=batch,
            seed=chosen.seed,
        )
    found = Battery(
        palimpsest=__version__,
        model=model.registry_name,
        parameters=model.num_parameters(),
        source=source,
        data=data,
        tokens=ids_WT.numel(),
        length=chosen.length,
        geometry=geometry,
        default_token=default,
        cosines=cosines,
        retention=retention,
        pools=pools,
        context=context,
        influence=influence,
        interventions=causal,
        seconds=tuple(seconds),
    )
    if folder is not None:
        say("figures")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULT, found.to_dict())
        _draw(found, folder)
    return found


def _check_folder(path: Path) -> None:
    """Refuse a place where the results cannot go, before anything is measured."""
    if path.is_dir() and any(path.iterdir()) and not (path / RESULT).is_file():
        raise InputError(f"out={path}: holds something else than a battery; name a new folder")
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"out={path}: {there} is a file; name a new folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"out={path}: no permission to write in {there}; name another folder")


def _draw(found: Battery, folder: Path) -> None:
    from palimpsest.analysis.intervention_plots import plot_interventions
    from palimpsest.analysis.plots import (
        plot_context,
        plot_default_token,
        plot_geometry,
        plot_influence,
        plot_retention,
        plot_state_cosines,
    )

    plot_geometry(found.geometry, folder / "geometry.png")
    plot_default_token(found.default_token, folder / "default-token.png")
    plot_state_cosines(found.cosines, folder / "state-cosines.png")
    if found.retention is not None:
        same = found.pools is not None and found.pools.heads == len(found.retention.heads)
        plot_retention(found.retention, folder / "retention.png", found.pools if same else None)
    plot_context(found.context, folder / "context.png")
    plot_influence(found.influence, folder / "influence.png")
    for i, probe in enumerate(found.interventions.probes):
        plot_interventions(found.interventions, folder / f"interventions-{probe}.png", probe=i)
