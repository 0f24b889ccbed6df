"""The figures of an inspection: the numbers as JSON and, where matplotlib is installed, as PNG.

Colours are those of Okabe and Ito, or one ramp from light to dark; models also differ in markers.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.files import write_json
from palimpsest.inspect.inspection import Inspection
from palimpsest.picture import COLOURS, MARKERS, new_figure, save_figure

__all__ = ["FIGURES", "figure_numbers", "write_figures"]

BIN = 0.5  # bits of a bar in the histogram
BLOCKS = 200  # points of a curve along the text
POINTS = 4000  # of a trajectory in a PNG
Numbers = dict[str, Any]


def _surprise(x: Inspection) -> Numbers:
    counted = x.surprise_N[np.isfinite(x.surprise_N)].astype(np.float64)
    top = max(1.0, math.ceil(float(counted.max(initial=0.0)) / BIN) * BIN)
    edges = np.linspace(0.0, top, round(top / BIN) + 1)
    counts, _ = np.histogram(counted, edges)
    return {
        "unit": "bits",
        "mean": float(counted.mean()) if len(counted) else None,
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


def _half_lives(x: Inspection) -> Numbers:
    retaining = [part for part in x.heads if part.kind == "retention"]
    return {
        "unit": "tokens until 1/e is left; null: longer than longest_lag",
        "heads": [
            {"quantity": h.title, "layer": h.layer, "head": i, "half_life": value}
            for h in retaining
            for i, value in enumerate(h.half_lives)
        ],
        "longest_lag": max((h.longest_lag for h in retaining), default=0),
    }


def _trajectory(x: Inspection) -> Numbers:
    return {
        "tap": x.trajectory,
        "variance_shares": list(x.shares),
        "points": np.round(x.points_N2.astype(np.float64), 5).tolist(),
    }


def _gates(x: Inspection) -> Numbers:
    edges = np.linspace(0, x.tokens, min(BLOCKS, x.tokens) + 1).astype(int)
    return {
        "unit": "mean over the entries of a gate and over a block of tokens",
        "block_starts": edges[:-1].tolist(),
        "gates": {
            g.name: (
                np.add.reduceat(g.values_N.astype(np.float64), edges[:-1]) / np.diff(edges)
            ).tolist()
            for g in x.gates
        },
    }


FIGURES: dict[str, Callable[[Inspection], Numbers]] = {
    "surprise": _surprise,
    "half-lives": _half_lives,
    "trajectory": _trajectory,
    "gates": _gates,
}


def figure_numbers(name: str, inspections: Sequence[Inspection]) -> Numbers:
    """The numbers of a figure, by model; models for which it would be empty are left out."""
    found = [(x.label, FIGURES[name](x)) for x in inspections]
    return {
        "figure": name,
        "models": [
            {"model": label, **numbers}
            for label, numbers in found
            if numbers.get("heads", True) and numbers.get("gates", True)
        ],
    }


def write_figures(inspections: Sequence[Inspection], folder: Path) -> list[Path]:
    """Write all figures that are not empty.

    Returns:
        The files: a JSON file for each, and a PNG file where matplotlib is installed.
    """
    written = []
    for name in FIGURES:
        numbers = figure_numbers(name, inspections)
        if not numbers["models"]:
            continue
        path = folder / f"{name}.json"
        write_json(path, numbers)
        written.append(path)
        if importlib.util.find_spec("matplotlib") is not None:
            path = folder / f"{name}.png"
            _save(name, numbers["models"], inspections, path)
            written.append(path)
    return written


def _save(name: str, models: list[Numbers], inspections: Sequence[Inspection], path: Path) -> None:
    from matplotlib import rc_context

    side_by_side = len(models) if name in ("trajectory", "gates") else 1
    with rc_context({"text.parse_math": False}):  # a "$" in a folder's name is no formula
        figure = new_figure(6.4 * side_by_side, 4.2)
        _DRAW[name](figure, models, inspections)
        save_figure(figure, path, dpi=130)


def _draw_surprise(figure: Any, models: list[Numbers], _: Sequence[Inspection]) -> None:
    panel = figure.subplots()
    for i, numbers in enumerate(models):
        counts = np.asarray(numbers["counts"], dtype=float)
        share = 100 * counts / max(1.0, counts.sum())
        label = f"{numbers['model']}, mean {numbers['mean'] or math.nan:.2f} bits"
        style = "-" if i == 0 else "--"
        panel.stairs(
            share, numbers["edges"], color=COLOURS[i], label=label, linestyle=style, linewidth=1.6
        )
    panel.set_xlabel("surprise of a token (bits)")
    panel.set_ylabel(f"share of tokens (% in {BIN} bits)")
    panel.legend(fontsize=8)


def _draw_half_lives(figure: Any, models: list[Numbers], _: Sequence[Inspection]) -> None:
    panel = figure.subplots()
    for i, numbers in enumerate(models):
        values = [h["half_life"] for h in numbers["heads"]]
        at = np.arange(len(values)) + 0.15 * i
        known = np.array([math.nan if v is None else v for v in values])
        panel.plot(at, known, MARKERS[i], color=COLOURS[i], markersize=5, label=numbers["model"])
        beyond = [place for place, value in zip(at, values, strict=True) if value is None]
        panel.plot(beyond, [numbers["longest_lag"]] * len(beyond), "^", color=COLOURS[i])
    panel.set_yscale("log")
    panel.set_xlabel("head, layer by layer (▲: longer than followed)")
    panel.set_ylabel("tokens until 1/e is left")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def _draw_trajectory(figure: Any, models: list[Numbers], inspections: Sequence[Inspection]) -> None:
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, numbers, x in zip(panels, models, inspections, strict=True):
        step = -(-x.tokens // POINTS)
        shades = np.nan_to_num(x.surprise_N[::step])
        drawn = panel.scatter(
            *x.points_N2[::step].T, c=shades, s=5, cmap="cividis_r", vmin=0, vmax=12, linewidths=0
        )
        across, up = (f"{100 * share:.0f} % of the variance" for share in x.shares)
        panel.set_xlabel(f"first direction, {across}")
        panel.set_ylabel(f"second direction, {up}")
        panel.set_title(f"{numbers['model']}: {x.trajectory}", fontsize=9)
        panel.set_aspect("equal", adjustable="datalim")
        figure.colorbar(drawn, ax=panel, label="surprise (bits)")


def _draw_gates(figure: Any, models: list[Numbers], _: Sequence[Inspection]) -> None:
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, numbers in zip(panels, models, strict=True):
        for k, (name, values) in enumerate(numbers["gates"].items()):
            panel.plot(
                numbers["block_starts"], values, label=name, linewidth=1,
                color=_SERIES[k % len(_SERIES)], linestyle=_STYLES[k // len(_SERIES) % 4],
            )  # fmt: skip
        panel.set_xlabel("token")
        panel.set_ylabel("mean gate")
        panel.set_title(numbers["model"], fontsize=9)
        if len(numbers["gates"]) <= 12:
            panel.legend(fontsize=7)


_SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_DRAW: dict[str, Callable[[Any, list[Numbers], Sequence[Inspection]], None]] = {
    "surprise": _draw_surprise,
    "half-lives": _draw_half_lives,
    "trajectory": _draw_trajectory,
    "gates": _draw_gates,
}
