"""The pictures of a comparison: curves over the tokens read, and gaps by size.

Colours are those of Okabe and Ito, which readers with any colour vision can tell apart; models also
differ in their markers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.compare.report import short
from palimpsest.picture import COLOURS, MARKERS, new_figure, save_figure

__all__ = ["plot_curves", "plot_gaps"]

SHOWN_SHARE = 0.1  # of the tokens are left out at the start of a curve, where all fall steeply


def plot_curves(facts: Mapping[str, Any], size: int, path: Path) -> Path:
    """Bits per byte of the first validation batches over the tokens read, at one size; the legend
    has the figures of the whole validation text.

    Args:
        facts: what ``results.json`` holds.
        size: which one.
        path: the PNG to write.

    Raises:
        PalimpsestError: matplotlib is not installed.
    """
    figure, axes = _figure((8.0, 5.0))
    from matplotlib.ticker import EngFormatter

    highest = 0.0
    for index, entry in enumerate(e for e in facts["entries"] if e["size"] == size):
        curve = entry["curve"]
        if not curve:
            continue
        tokens = [point["tokens"] for point in curve]
        mean = [point["mean"] for point in curve]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        # that of the tables, on the whole validation text; points of the curve read a part of it
        label = f"{entry['model']}  {entry['mean']:.3f}  ({entry['parameters']:,} parameters)"
        axes.plot(tokens, mean, color=colour, marker=marker, markersize=4, label=label)
        if curve[0]["std"] is not None:
            low = [point["mean"] - point["std"] for point in curve]
            high = [point["mean"] + point["std"] for point in curve]
            axes.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
        later = [v for t, v in zip(tokens, mean, strict=True) if t >= SHOWN_SHARE * tokens[-1]]
        highest = max(highest, *later)
    if highest:
        low, _ = axes.get_ylim()
        axes.set_ylim(top=highest + 0.05 * (highest - low))
    seeds = ", ".join(map(str, facts["settings"]["seeds"]))
    several = len(facts["settings"]["seeds"]) > 1
    axes.set_title(
        f"{short(size)} parameters, {facts['settings']['train']}; seed{'s' * several} {seeds}"
        + ("; bands are ± one standard deviation" if several else ""),
        fontsize=10,
    )
    axes.set_xlabel("tokens read")
    axes.set_ylabel(f"bits per byte, first {facts['settings']['eval_batches']} validation batches")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(figure, axes, path)
    return path


def plot_gaps(facts: Mapping[str, Any], path: Path) -> Path:
    """The gap of each model to the baseline by size, with standard errors.

    Args:
        facts: what ``results.json`` holds.
        path: the PNG to write.

    Raises:
        PalimpsestError: matplotlib is not installed.
    """
    figure, axes = _figure((7.0, 4.5))
    sizes = facts["settings"]["sizes"]
    labels = [model["label"] for model in facts["settings"]["models"]]
    shown = [label for label in labels if label != facts["baseline"]]
    for index, label in enumerate(shown):
        own = [e for e in facts["entries"] if e["model"] == label and "gap" in e]
        if not own:
            continue
        place = labels.index(label)
        shift = 1.0 + 0.02 * (index - (len(shown) - 1) / 2)  # so that error bars do not hide
        errors = [e["gap"]["stderr"] or 0.0 for e in own]
        axes.errorbar(
            [e["size"] * shift for e in own],
            [e["gap"]["difference"] for e in own],
            yerr=errors if any(errors) else None,
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            capsize=3,
            label=label,
        )
    axes.axhline(0.0, color="#444444", linewidth=1.0, label=f"{facts['baseline']} (baseline)")
    if len(sizes) > 1:
        axes.set_xscale("log")
    axes.set_xticks(sizes, [short(size) for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.15)
    axes.set_xlabel("parameters")
    axes.set_ylabel(f"bits per byte above {facts['baseline']}")
    axes.set_title(
        f"after {short(facts['tokens'])} tokens of {facts['settings']['train']}; bars are standard "
        "errors",
        fontsize=10,
    )
    _finish(figure, axes, path)
    return path


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    figure = new_figure(*size)
    return figure, figure.subplots()


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    save_figure(figure, path)
