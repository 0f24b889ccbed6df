"""What benchmarks/triple_latent.py measured, as tables and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from palimpsest.files import atomic_path

COLOURS = {
    "transformer": ("#000000", "o"),
    "triple-latent": ("#0072B2", "s"),
    "triple-slot": ("#56B4E9", "v"),
    "triple-hybrid": ("#009E73", "^"),
    "gated-hybrid": ("#D55E00", "D"),
    "floor": ("#999999", "x"),
}


def show_ratios(result: dict[str, Any]) -> None:
    for what in _in_order(result["rows"], "what"):
        table = Table(
            title=f"{what}: time / the Transformer's, medians (minima); {caption(result)}"
        )
        table.add_column("model")
        lengths = sorted({r["length"] for r in result["rows"]})
        for length in lengths:
            table.add_column(f"T {length:,}", justify="right")
        for name in _in_order(result["rows"], "model"):
            cells = []
            for length in lengths:
                row = next(
                    r
                    for r in result["rows"]
                    if (r["model"], r["what"], r["length"]) == (name, what, length)
                )
                if name == "transformer":
                    cells.append(f"{row['seconds']['median'] * 1e3:.1f} ms")
                    continue
                cell = f"{row['ratio']['median']:.2f} ({row['ratio']['min']:.2f})"
                cells.append(cell + (f" ≤ {row['target']}" if row["target"] else ""))
            table.add_row(name, *cells)
        Console(width=140).print(table)


def show_flat(result: dict[str, Any]) -> None:
    table = Table(title=f"triple-latent, no positions, time per token; {caption(result)}")
    for column in ("what", "T", "µs/token, median", "min", "× the first"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        times = _beside_first(row, result, "what", digits=2)
        table.add_row(row["what"], f"{row['length']:,}", *times)
    Console(width=140).print(table)


def show_memory(result: dict[str, Any]) -> None:
    title = f"peak memory of a training step, a process each; {caption(result)}"
    table = Table(title=title)
    for column in ("model", "T", "peak MiB", "above the start, MiB", "KiB/token"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        grown = row["peak_mib"] - row["before_mib"]
        table.add_row(
            row["model"],
            f"{row['length']:,}",
            f"{row['peak_mib']:,.0f}",
            f"{grown:,.0f}",
            f"{1024 * grown / (result['batch'] * row['length']):.2f}",
        )
    Console(width=140).print(table)


def show_decode(result: dict[str, Any]) -> None:
    table = Table(title=f"decoding, one token at a time, no positions; {caption(result)}")
    for column in ("model", "position", "µs/token, median", "min", "× the first", "state bytes"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        times = _beside_first(row, result, "model", digits=0)
        table.add_row(row["model"], f"{row['position']:,}", *times, f"{row['state_bytes']:,}")
    Console(width=140).print(table)


def plot(result: dict[str, Any], path: Path) -> None:
    """Time of a step over the length, both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure = Figure(figsize=(9.5, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    both = _in_order(result["rows"], "what")
    for axes, what in zip(figure.subplots(1, 2, sharex=True), both, strict=True):
        for name in _in_order(result["rows"], "model"):
            rows = [r for r in result["rows"] if (r["model"], r["what"]) == (name, what)]
            colour, marker = COLOURS[name]
            axes.loglog(
                [r["length"] for r in rows],
                [1e3 * r["seconds"]["median"] for r in rows],
                "--" if name == "floor" else "-",
                color=colour,
                marker=marker,
                label="feed-forward and head alone" if name == "floor" else name,
            )
        lengths = sorted({r["length"] for r in result["rows"]})
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="length in tokens", ylabel=f"{what}, ms")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.suptitle(f"{caption(result)}, CPU, {result['threads']} threads", fontsize=10)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    print(f"written: {path}")


def caption(result: dict[str, Any]) -> str:
    s = result["sizes"]
    return (
        f"d {s['d_model']}, {s['n_layers']} layers, {s['n_heads']} heads, S {s['state_dim']}, "
        f"batch {result['batch']}, dropout {result['dropout']}, commit {result['commit']}"
    )


def _in_order(rows: list[dict[str, Any]], key: str) -> list[str]:
    """The values of a key, each once, as they come."""
    return list(dict.fromkeys(row[key] for row in rows))


def _beside_first(row: dict[str, Any], result: dict[str, Any], key: str, digits: int) -> list[str]:
    """Median and minimum of a row, and both over those of the first row with its key."""
    first = next(r for r in result["rows"] if r[key] == row[key])["us_per_token"]
    own = row["us_per_token"]
    ratios = f"{own['median'] / first['median']:.3f} ({own['min'] / first['min']:.3f})"
    return [f"{own['median']:.{digits}f}", f"{own['min']:.{digits}f}", ratios]
