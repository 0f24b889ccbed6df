"""What was measured beside what was published: gathered, then as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.reproduce.table import Column, Row, Table

__all__ = ["assemble", "csv_text", "markdown"]

SCHEMA = "palimpsest-table"
SCHEMA_VERSION = 1
NONE = "–"


def assemble(
    table: Table,
    measured: Sequence[tuple[Row, Mapping[str, Any]]],
    unavailable: Mapping[str, str],
    data: Mapping[str, Mapping[str, Any]],
    scale: str,
) -> dict[str, Any]:
    """Everything that a table shows, as it is written to JSON.

    Args:
        table: its rows and columns.
        measured: results of the jobs with their rows.
        unavailable: by label, why a row was not measured ("" where it was).
        data: what was read, by flag.
        scale: which form of the table this is.
    """
    rows = []
    for row in table.rows:
        own = [result for other, result in measured if other is row]
        rows.append(
            {
                "label": row.label,
                "model": row.model,
                "causal": row.causal,
                "remark": "; ".join(
                    filter(None, (row.remark, unavailable[row.label], *_shortfalls(table, own)))
                ),
                "available": not unavailable[row.label],
                "parameters": _parameters(row, own),
                "cells": {c.metric: _cell(c.metric, row, own) for c in table.columns},
                "seconds": round(sum(result["seconds"] for result in own), 1),
            }
        )
    results = [result for _, result in measured]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "table": table.name,
        "title": table.title,
        "source": table.source,
        "scale": scale,
        "quick": table.quick,
        "columns": [vars(column) for column in table.columns],
        "rows": rows,
        "notes": list(table.notes),
        "data": {name: dict(about) for name, about in data.items()},
        "seeds": sorted({result["seed"] for result in results}),
        "dtype": sorted({result["dtype"] for result in results if result["dtype"]}),
        "where": _distinct([result["where"] for result in results]),
        "experiments": [
            {"kind": e.kind, **e.to_dict()}
            for e in dict.fromkeys(
                _Hashed(e) for row in table.rows for e in table.experiments_of(row)
            )
        ],
        "seconds": round(sum(result["seconds"] for result in results), 1),
    }


def markdown(facts: Mapping[str, Any], picture: str | None) -> str:
    """The table to read or paste: published and measured side by side, with a footer.

    Args:
        facts: of :func:`assemble`.
        picture: the file name of the plot beside it, or None.
    """
    columns = [Column(**column) for column in facts["columns"]]
    heads, rights = ["row", "parameters"], [False, True]
    shown: list[tuple[Column, bool]] = []  # with whether it is the published figure
    for column in columns:
        for published in (True, False):
            if _any(facts, column.metric, "published" if published else "mean"):
                which = column.published_title if published else "measured"
                heads.append(f"{column.title}: {which}")
                rights.append(True)
                shown.append((column, published))
    heads.append("note")
    rights.append(False)
    lines = [
        f"# {facts['table']}: {facts['title']}",
        "",
        *(
            ["**Quick run: a few steps only. These figures reproduce nothing.**", ""]
            * facts["quick"]
        ),
        _line(heads),
        _line(["--:" if right else ":--" for right in rights]),
    ]
    for row in facts["rows"]:
        cells = [row["label"], NONE if row["parameters"] is None else f"{row['parameters']:,}"]
        for column, published in shown:
            cells.append(_shown(column, row["cells"][column.metric], published))
        lines.append(_line([*cells, row["remark"]]))
    lines += ["", *_footer(facts)]
    if picture is not None:
        lines += ["", f"![{facts['title']}]({picture})"]
    return "\n".join(lines) + "\n"


def csv_text(facts: Mapping[str, Any]) -> str:
    """One line per row and quantity."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["table", "quick", "row", "model", "parameters", "causal", "metric", "published", "mean",
         "std", "seeds", "values", "note"]
    )  # fmt: skip
    for row in facts["rows"]:
        for metric, cell in row["cells"].items():
            writer.writerow(
                [
                    facts["table"],
                    "quick" if facts["quick"] else "",
                    row["label"],
                    row["model"],
                    _blank(row["parameters"]),
                    "causal" if row["causal"] else "not causal",
                    metric,
                    _blank(cell["published"]),
                    _blank(cell["mean"]),
                    _blank(cell["std"]),
                    " ".join(map(str, cell["seeds"])),
                    " ".join(f"{value:.6g}" for value in cell["values"]),
                    row["remark"],
                ]
            )
    return stream.getvalue()


class _Hashed:
    """An experiment that equal ones are dropped by; it may hold mappings."""

    def __init__(self, experiment: Any) -> None:
        self.kind = experiment.kind
        self.to_dict = experiment.to_dict
        self._text = repr(experiment)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other._text == self._text


def _parameters(row: Row, results: Sequence[Mapping[str, Any]]) -> int | None:
    """As measured, with the larger vocabulary where there are two; else the published."""
    return max((result["parameters"] for result in results), default=0) or row.parameters


def _shortfalls(table: Table, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is missing of a row's figures: runs that diverged, and too short a validation text."""
    said = []
    diverged = [result["seed"] for result in results if "diverged" in result["facts"]]
    if diverged:
        which = ", ".join(map(str, diverged))
        said.append(f"{len(diverged)} of {len(results)} runs diverged (seed {which}), left out")
    for result in results:
        wanted = result["config"]["experiment"].get("windows", 0)
        measured = result["facts"].get("windows_measured", wanted)
        if measured < wanted and not table.quick:
            said.append(f"the validation text has {measured:,} windows, not {wanted:,}")
            break
    return said


def _cell(metric: str, row: Row, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    having = [result for result in results if metric in result["metrics"]]
    values = [float(result["metrics"][metric]) for result in having]
    return {
        "published": row.published.get(metric),
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
        "seeds": [result["seed"] for result in having],
    }


def _shown(column: Column, cell: Mapping[str, Any], published: bool) -> str:
    if published:
        return NONE if cell["published"] is None else column.format(cell["published"])
    if cell["mean"] is None:
        return NONE
    spread = "" if cell["std"] is None else f" ± {column.format(cell['std'])}"
    return f"{column.format(cell['mean'])}{spread}"


def _any(facts: Mapping[str, Any], metric: str, which: str) -> bool:
    return any(row["cells"][metric][which] is not None for row in facts["rows"])


def _footer(facts: Mapping[str, Any]) -> list[str]:
    several = len(facts["seeds"]) > 1
    seeds = ", ".join(map(str, facts["seeds"])) or "none"
    lines = [f"- Source of the published figures: {facts['source']}."]
    lines += [f"- {note}" for note in facts["notes"]]
    spread = "; mean ± standard deviation over them" if several else ""
    lines.append(f"- Seeds: {seeds}{spread}. Numbers: {', '.join(facts['dtype']) or NONE}.")
    for name, about in facts["data"].items():
        known = {True: "", False: f"; not the paper's file ({about['what']})", None: ""}
        lines.append(
            f"- {name}: `{about['file']}`, {about['bytes']:,} bytes, sha256 `{about['sha256']}`"
            f"{known[about['expected']]}"
        )
    for where in facts["where"]:
        software = ", ".join(f"{k} {v}" for k, v in where.items() if k != "commit")
        lines.append(f"- {software}, commit {where['commit'] or 'unknown'}")
    form = f", scale {facts['scale']}" if facts["table"] == "grounded" else ""
    quick = ", quick" if facts["quick"] else ""
    lines.append(
        f"- `palimpsest reproduce {facts['table']}`{form}{quick}; {facts['seconds']:,.0f} s of "
        "computation in all."
    )
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _blank(value: Any) -> str:
    return "" if value is None else str(value)


def _distinct(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        if dict(item) not in found:
            found.append(dict(item))
    return found
