"""The tables of the state study: states and heads over training, interventions at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from palimpsest.analysis.pools import split_pools


def show(result: dict[str, Any], markdown: bool = False) -> None:
    """Two tables: states and heads over training, and interventions at the end."""
    style = box.MARKDOWN if markdown else box.HEAVY_HEAD
    console = Console(width=200)
    table = Table(box=style)
    columns = "model,step,seeds,bits per byte,‖s̄‖/E‖s‖,cos to final,Spearman,stable rank,split in"
    for column in (*columns.split(","), "all seeds together"):
        table.add_column(column, justify="left" if column in ("model",) else "right")
    for name in names(result):
        runs = [r for r in result["runs"] if r["model"] == name]
        for i, first in enumerate(runs[0]["points"]):
            points = [r["points"][i] for r in runs]
            split = [p["pools"]["split"] for p in points if "pools" in p]
            together = pooled(result, name, first["step"])
            table.add_row(
                name,
                str(first["step"]),
                str(len(points)),
                *(
                    _spread([p[key] for p in points])
                    for key in (
                        "bits_per_byte", "norm_share", "cosine_to_final", "spearman", "stable_rank",
                    )
                ),
                f"{sum(split)} of {len(split)}" if split else "–",
                "–" if together is None else str(together),
            )  # fmt: skip
    console.print(table)
    table = Table(box=style)
    for column in ("model", "intervention", "Δ bits per byte", "controls", "beyond in", "repeat"):
        table.add_column(column, justify="left" if column in ("model", "intervention") else "right")
    for name in names(result):
        runs = [r["interventions"]["effects"] for r in result["runs"] if r["model"] == name]
        for title in dict.fromkeys(e["name"] for run in runs for e in run):
            same = [e for run in runs for e in run if e["name"] == title]
            values = [e["changes"][0]["value"] for e in same]
            controls = [v for e in same if e["controls"] for v in e["controls"][0]["values"]]
            table.add_row(
                name,
                title,
                _spread(values),
                f"{min(controls):+.3f} … {max(controls):+.3f}" if controls else "–",
                f"{sum(_beyond(e) for e in same)} of {len(same)}" if controls else "–",
                _spread([e["changes"][1]["value"] for e in same]),
            )
    console.print(table)


def pooled(result: dict[str, Any], name: str, step: int) -> Any:
    """The rule for fast and slow heads on the heads of all seeds together; None without decays."""
    lives, longest = [], 1
    for r in result["runs"]:
        for point in r["points"]:
            if r["model"] == name and point["step"] == step and "half_lives" in point:
                lives += point["half_lives"]
                longest = point["longest"]
    return split_pools(lives, longest=longest) if lives else None


def names(result: dict[str, Any]) -> list[str]:
    """The models in the order of the first seed."""
    return list(dict.fromkeys(r["model"] for r in result["runs"]))


def _beyond(effect: dict[str, Any]) -> bool:
    change, values = effect["changes"][0], effect["controls"][0]["values"]
    return bool(change["low"] > max(values) or change["high"] < min(values))


def _spread(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    spread = f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.3f}{spread}"
