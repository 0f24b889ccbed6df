"""A table as a picture: for each quantity a panel, for each row what was published and measured.

Colours are those of Okabe and Ito, which readers with any colour vision can tell apart; published
and measured figures also differ in their markers, and rows without causality in their labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.picture import new_figure, save_figure
from palimpsest.reproduce.table import Column

__all__ = ["plot_table"]

MEASURED, NOT_CAUSAL, PUBLISHED = "#0072B2", "#D55E00", "#444444"
PANEL_WIDTH, ROW_HEIGHT, LABEL_WIDTH = 3.1, 0.42, 3.4  # inches
PANELS_A_LINE = 4


def plot_table(facts: Mapping[str, Any], path: Path) -> Path:
    """Draw a table.

    Args:
        facts: what ``results.json`` holds.
        path: the PNG to write.

    Raises:
        PalimpsestError: matplotlib is not installed.
    """
    rows = list(reversed(facts["rows"]))  # the first one at the top
    columns = [c for c in (Column(**column) for column in facts["columns"]) if _has(rows, c)]
    across = min(PANELS_A_LINE, max(1, len(columns)))
    down = max(1, math.ceil(len(columns) / across))
    figure = new_figure(
        LABEL_WIDTH + PANEL_WIDTH * across, 1.3 + down * (1.0 + ROW_HEIGHT * len(rows))
    )
    from matplotlib.ticker import MaxNLocator

    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    for index, panel in enumerate(panels.flat):
        if index < len(columns):
            if not _panel(panel, columns[index], rows):
                panel.xaxis.set_major_locator(MaxNLocator(5))
        else:
            panel.set_visible(False)
    names = [row["label"] + ("" if row["causal"] else "\n(not causal)") for row in rows]
    for line in panels:
        line[0].set_yticks(range(len(rows)), names, fontsize=8)
        line[0].set_ylim(-0.6, len(rows) - 0.4)
    seeds = ", ".join(map(str, facts["seeds"])) or "none"
    several = len(facts["seeds"]) > 1
    bars = "; bars are ± one standard deviation over the seeds" if several else ""
    figure.suptitle(
        f"{facts['title']}\n{facts['source']}; measured with seed{'s' * several} {seeds}{bars}",
        fontsize=9,
        color=NOT_CAUSAL if facts["quick"] else "black",
    )
    handles = [
        _handle("D", PUBLISHED, "published (see the heading of the panel)", hollow=True),
        _handle("o", MEASURED, "measured"),
    ]
    if not all(row["causal"] for row in rows):
        handles.append(_handle("s", NOT_CAUSAL, "measured, not causal"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return save_figure(figure, path, dpi=130)


def _panel(panel: Any, column: Column, rows: list[dict[str, Any]]) -> bool:
    """Draw one quantity; whether its axis is logarithmic."""
    scale = 100.0 if column.style == "percent" else 1.0
    values: list[float] = []
    for place, row in enumerate(rows):
        cell = row["cells"][column.metric]
        if cell["published"] is not None:
            values.append(scale * cell["published"])
            panel.plot(
                values[-1],
                place + 0.13,
                "D",
                color=PUBLISHED,
                markerfacecolor="white",
                markersize=6,
            )
        if cell["mean"] is not None:
            values.append(scale * cell["mean"])
            panel.errorbar(
                values[-1],
                place - 0.13,
                xerr=None if cell["std"] is None else scale * cell["std"],
                fmt="o" if row["causal"] else "s",
                color=MEASURED if row["causal"] else NOT_CAUSAL,
                markersize=5,
                capsize=3,
            )
    unit = " (%)" if column.style == "percent" else ""
    known = any(row["cells"][column.metric]["published"] is not None for row in rows)
    heading = f"◇ {column.published_title}" if known else ""
    panel.set_title(f"{column.title}{unit}\n{heading}", fontsize=8)
    wide = min(values) > 0 and max(values) > 20 * min(values)
    if wide:
        panel.set_xscale("log")
    panel.margins(x=0.12)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    return wide


def _handle(marker: str, colour: str, label: str, hollow: bool = False) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        linestyle="",
        marker=marker,
        color=colour,
        markerfacecolor="white" if hollow else colour,
        label=label,
    )


def _has(rows: list[dict[str, Any]], column: Column) -> bool:
    cells = [row["cells"][column.metric] for row in rows]
    return any(cell["published"] is not None or cell["mean"] is not None for cell in cells)
