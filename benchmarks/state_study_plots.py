"""The figures of the state study: heads and mean states over training, interventions at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.files import atomic_path

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
CHOSEN = (
    "mean state subtracted at every grounding",
    "mean state subtracted before decoding",
    "mean state projected out before decoding",
    "mean state clamped before decoding",
    "FFN cut",
    "read cut",
    "fast pool cut",
    "slow pool cut",
    "faster pool cut",
    "slower pool cut",
    "fast pool shuffled",
    "slow pool shuffled",
    "faster pool shuffled",
    "slower pool shuffled",
    "memories of two texts swapped",
    "memory emptied",
    "noise of 1 at every grounding",
    "noise of 1 before decoding",
)


def _figure(width: float, height: float, columns: int, rows: int = 1) -> tuple[Any, Sequence[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).flatten()


def _save(figure: Any, path: Path) -> Path:
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return path


def _by_model(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for run in result["runs"]:
        found.setdefault(run["model"], []).append(run)
    return found


def plot_half_lives(result: dict[str, Any], path: Path) -> Path | None:
    """A panel for each model with decays, a line for each head, a colour for each seed."""
    models = {
        name: runs
        for name, runs in _by_model(result).items()
        if "half_lives" in runs[0]["points"][0]
    }
    if not models:
        return None
    figure, panels = _figure(4.2 * len(models) + 0.6, 4.2, len(models))
    for axes, (name, runs) in zip(panels, models.items(), strict=True):
        for i, run in enumerate(runs):
            steps = [point["step"] for point in run["points"]]
            longest = run["points"][0]["longest"]
            for head in range(len(run["points"][0]["half_lives"])):
                lives = [point["half_lives"][head] or longest for point in run["points"]]
                axes.plot(
                    steps,
                    lives,
                    color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[i % len(MARKERS)],
                    markersize=3,
                    linewidth=1.1,
                    label=f"seed {run['seed']}" if head == 0 else None,
                )
        axes.axhline(longest, color="#555555", linewidth=0.8, dashes=(4, 3))
        axes.set_yscale("log")
        axes.set_title(f"{name}, {runs[0]['parameters']:,} parameters", fontsize=10)
        axes.set_xlabel("step")
        axes.legend(fontsize=8)
    panels[0].set_ylabel("half-life of each head (tokens)\ndashed: the longest that is seen")
    return _save(figure, path)


def plot_mean_states(result: dict[str, Any], path: Path) -> Path:
    """Share of the norm, cosine to the final mean, and rank correlation with counts, by step."""
    panels = (
        ("norm_share", "norm of the mean state / mean norm"),
        ("cosine_to_final", "cosine with the mean state at the end"),
        ("spearman", "Spearman of the decoded mean with token counts"),
    )
    figure, columns = _figure(12.6, 4.2, len(panels))
    for axes, (key, label) in zip(columns, panels, strict=True):
        for i, (name, runs) in enumerate(_by_model(result).items()):
            for run in runs:
                axes.plot(
                    [point["step"] for point in run["points"]],
                    [point[key] for point in run["points"]],
                    color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[i % len(MARKERS)],
                    markersize=4,
                    linewidth=1.2,
                    label=f"{name} ({len(runs)})" if run is runs[0] else None,
                )
        axes.set_xlabel("step")
        axes.set_ylabel(label)
    columns[0].legend(fontsize=8, title="model (seeds)", title_fontsize=8)
    return _save(figure, path)


def plot_effects(result: dict[str, Any], path: Path) -> Path:
    """The main interventions of each model: bars with every seed, the range of all controls."""
    models = _by_model(result)
    there = {
        effect["name"]
        for runs in models.values()
        for run in runs
        for effect in run["interventions"]["effects"]
    }
    shown = [name for name in CHOSEN if name in there]
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure, grid = _figure(3.0 * columns + 3.0, rows * (0.9 + 0.24 * len(shown)), columns, rows)
    for i, (model, runs) in enumerate(models.items()):
        axes = grid[i]
        for y, name in enumerate(shown):
            same = [e for run in runs for e in run["interventions"]["effects"] if e["name"] == name]
            if not same:
                continue
            values = [e["changes"][0]["value"] for e in same]
            axes.barh(y, statistics.mean(values), height=0.6, color=COLOURS[i], zorder=2)
            axes.plot(values, [y] * len(values), "k.", markersize=4, zorder=4)
            controls = [v for e in same if e["controls"] for v in e["controls"][0]["values"]]
            if controls:
                low, high = min(controls), max(controls)
                axes.barh(
                    y, high - low, left=low, height=0.9, color="#000000", alpha=0.28, zorder=3,
                    linewidth=1.4, edgecolor="#000000",
                )  # fmt: skip
        axes.set_ylim(len(shown) - 0.4, -0.6)
        labels = shown if i % columns == 0 else [""] * len(shown)
        axes.set_yticks(range(len(shown)), labels, fontsize=8)
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_xticks((-0.1, 0.0, 0.1, 1.0), ("-0.1", "0", "0.1", "1"), fontsize=8)
        axes.set_title(f"{model} ({len(runs)} seeds)", fontsize=9)
        axes.set_xlabel("change of bits per byte", fontsize=8)
    for axes in grid[len(models) :]:
        axes.set_axis_off()
    return _save(figure, path)


def plot_all(result: dict[str, Any], folder: Path) -> list[Path]:
    """All figures of a study."""
    found = [
        plot_half_lives(result, folder / "state-half-lives.png"),
        plot_mean_states(result, folder / "state-mean.png"),
        plot_effects(result, folder / "state-interventions.png"),
    ]
    return [path for path in found if path is not None]
