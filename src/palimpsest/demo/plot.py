"""The demo's figure: the models learning, and the compressors as lines to compare with.

Colours are those of Okabe and Ito, which readers with any colour vision can tell apart; the models
also differ in their markers, and every line is labelled where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.picture import new_figure, save_figure
from palimpsest.training import read_metrics

__all__ = ["plot_demo", "spread"]

LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"))
INK, GREY = "#222222", "#767676"
TOP = 4.2  # bits per byte; what lies above are the first steps only
LABEL_GAP = 0.036  # of the axis, between the middles of two labels


def plot_demo(results: dict[str, Any], runs: Sequence[Path], path: Path) -> Path:
    """Draw the figure.

    Args:
        results: as in ``results.json``.
        runs: the folder of each model's run, in the order of ``results["models"]``.
        path: the PNG to write.

    Raises:
        PalimpsestError: matplotlib is not installed.
    """
    figure = new_figure(9.0, 5.4)
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots()
    labels: list[tuple[float, str, str]] = []  # height, text, colour
    lowest = math.inf
    for model, run, (colour, marker) in zip(results["models"], runs, LOOKS, strict=False):
        rows = read_metrics(run)
        training = [row for row in rows if row["kind"] == "train"]
        held_out = [row for row in rows if row["kind"] == "validation"]
        # a token is a byte here, so nats per token over ln 2 are bits per byte
        axes.plot(
            [row["tokens"] for row in training],
            [row["loss"] / math.log(2) for row in training],
            color=colour,
            alpha=0.3,
            linewidth=0.9,
        )
        axes.plot(
            [row["tokens"] for row in held_out],
            [row["bits_per_byte"] for row in held_out],
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=2.0,
            clip_on=False,
        )
        labels.append((held_out[-1]["bits_per_byte"], f"{model['name']} windowed", colour))
        if "carried" in model["held_out"]:
            carried = model["held_out"]["carried"]["bits_per_byte"]
            axes.plot(
                [model["train_tokens"]],
                [carried],
                color=colour,
                marker=marker,
                markersize=8,
                markerfacecolor="white",
                markeredgewidth=1.8,
                clip_on=False,
            )
            labels.append((carried, f"{model['name']} carried", colour))
        lowest = min(lowest, *(row["loss"] / math.log(2) for row in training))
    for yardstick in results["yardsticks"]:
        for key, text, dashes in (
            ("bits_alone", "alone", (1, 2)),
            ("bits_after_training", "after the training text", (6, 3)),
        ):
            axes.axhline(yardstick[key], color=GREY, linewidth=1.0, dashes=dashes, zorder=0)
            labels.append((yardstick[key], f"{yardstick['name']} {text}", GREY))
    lowest = min(lowest, *(height for height, _, _ in labels))

    axes.set_xlim(0, max(model["train_tokens"] for model in results["models"]))
    highest = max(height for height, _, colour in labels if colour != GREY)
    axes.set_ylim(math.floor(lowest * 5 - 0.5) / 5, max(TOP, highest + 0.5))
    _write_labels(axes, labels)
    axes.set_ylabel("bits per byte (lower is better)")
    axes.set_xlabel("training text read")
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    sizes = sorted({f"{m['parameters'] / 1e6:.2f} M" for m in results["models"]})
    text = results["text"]
    axes.set_title(
        f"Held-out text: {text['held_out']['bytes'] / 1000:.0f} kB of {text['source']}\n",
        loc="left",
        fontsize=11,
        color=INK,
    )
    axes.text(
        0.0,
        1.015,
        f"filled markers: state reset every {results['training']['seq_len']} bytes; hollow: state "
        f"carried; faint: training. {' or '.join(sizes)} parameters, seed {results['seed']}, "
        f"{results['precision']}",
        transform=axes.transAxes,
        fontsize=8,
        color=GREY,
    )
    return save_figure(figure, path)


def _write_labels(axes: Any, labels: list[tuple[float, str, str]]) -> None:
    """Name each line at the right end, moved apart where lines are close."""
    low, high = axes.get_ylim()
    heights = [(value - low) / (high - low) for value, _, _ in labels]
    for (value, text, colour), own, place in zip(
        labels, heights, spread(heights, LABEL_GAP), strict=True
    ):
        bold = colour != GREY
        axes.annotate(
            f"{text}  {value:.2f}",
            xy=(1.0, own),
            xytext=(1.035, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9 if bold else 8,
            fontweight="bold" if bold else "normal",
            color=colour,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "relpos": (0.0, 0.5),  # from the left end of the label
                "shrinkA": 2,
                "shrinkB": 6 if bold else 0,  # clear of the marker
            },
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places as near to ``heights`` as can be with at least ``gap`` between any two, in order."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[list[int]] = []  # neighbours that touch share one middle

    def lowest(group: list[int]) -> float:
        return sum(heights[i] for i in group) / len(group) - gap * (len(group) - 1) / 2

    for index in order:
        groups.append([index])
        while len(groups) > 1:
            before, last = groups[-2], groups[-1]
            if lowest(before) + gap * len(before) <= lowest(last) + 1e-12:
                break
            groups[-2:] = [before + last]
    places = [0.0] * len(heights)
    for group in groups:
        for rank, index in enumerate(group):
            places[index] = lowest(group) + gap * rank
    return places
