"""A comparison as Markdown and CSV: the table, gaps, crossings, and what it cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["csv_text", "markdown", "short"]

NONE = "–"


def short(count: float) -> str:
    """A number of parameters or tokens in few characters: 300k, 1M, 2.5M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return f"{count:.0f}"


def markdown(facts: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The report to read or paste.

    Args:
        facts: what ``results.json`` holds.
        pictures: file names beside it.
    """
    settings = facts["settings"]
    sizes = settings["sizes"]
    labels = [model["label"] for model in settings["models"]]
    entries = {(e["model"], e["size"]): e for e in facts["entries"]}
    base = facts["baseline"]
    parts = [
        f"# Comparison at equal parameters and {short(facts['tokens'])} tokens",
        "Validation bits per byte, mean ± standard deviation over the seeds; lower is better.",
        _table(
            ["model", *map(short, sizes)],
            [[m, *(_figure(entries[m, size]) for size in sizes)] for m in labels],
        ),
    ]
    others = [label for label in labels if label != base]
    if others:
        parts += [
            f"Gap to {base} (above 0: worse than it), ± standard error of the difference:",
            _table(
                ["model", *map(short, sizes)],
                [[m, *(_gap(entries[m, size]) for size in sizes)] for m in others],
            ),
            f"Where the curve of a model crosses that of {base}, in tokens read:",
            _table(
                ["model", *map(short, sizes)],
                [[m, *(_crossing(entries[m, size]) for size in sizes)] for m in others],
            ),
        ]
    rows = [
        [
            entry["model"] + _label(entry),
            short(entry["size"]),
            f"{entry['parameters']:,}",
            NONE if entry["state_bytes"] is None else f"{entry['state_bytes']:,}",
            _rate(entry),
            "; ".join(
                f"{lr}: {'diverged' if v is None else format(v, '.3f')}"
                for lr, v in entry["grid"].items()
            ),
            NONE if entry["tokens_per_s"] is None else f"{entry['tokens_per_s']:,.0f}",
            NONE if entry["training_seconds"] is None else f"{entry['training_seconds']:,.0f}",
        ]
        for entry in facts["entries"]
    ]
    parts += [
        "Sizes, learning rates and cost:",
        _table(
            ["model", "size", "parameters", "state bytes", "rate", "grid (first seed)",
             "training tok/s", "s per run"],
            rows,
        ),
        "\n".join(_footer(facts)),
        *(f"![{name}]({name})" for name in pictures),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def csv_text(facts: Mapping[str, Any]) -> str:
    """One line per model, size and seed of the chosen rate."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["model", "size", "parameters", "lr", "seed", "bits_per_byte", "tokens", "tokens_per_s"]
    )
    for entry in facts["entries"]:
        for seed, value in zip(entry["seeds"], entry["values"], strict=True):
            writer.writerow(
                [
                    entry["model"] + _label(entry).replace("*", ""),
                    entry["size"],
                    entry["parameters"],
                    entry["lr"],
                    seed,
                    value,
                    facts["tokens"],
                    entry["tokens_per_s"],
                ]
            )
    return stream.getvalue()


def _figure(entry: Mapping[str, Any]) -> str:
    if entry["mean"] is None:
        return "diverged"
    spread = "" if entry["std"] is None else f" ± {entry['std']:.3f}"
    lost = f" ({entry['diverged']} diverged)" if entry["diverged"] else ""
    return f"{entry['mean']:.3f}{spread}{lost}{_label(entry)}"


def _label(entry: Mapping[str, Any]) -> str:
    """What every figure of a model that sees the tokens it predicts must carry."""
    return "" if entry["causal"] else " **not causal**"


def _gap(entry: Mapping[str, Any]) -> str:
    if "gap" not in entry:
        return NONE
    error = entry["gap"]["stderr"]
    spread = "" if error is None else f" ± {error:.3f}"
    return f"{entry['gap']['difference']:+.3f}{spread}{_label(entry)}"


def _crossing(entry: Mapping[str, Any]) -> str:
    if "crossings" not in entry:
        return NONE
    shown = []
    for crossing in entry["crossings"]:
        text = f"{short(crossing['tokens'])} ("
        text += "better after" if crossing["first_is_lower_after"] else "worse after"
        if len(entry["seeds"]) > 1:  # a crossing of means may be that of no seed
            text += f"; {crossing['seeds']} of {len(entry['seeds'])} seeds"
        if crossing["range"] is not None and crossing["seeds"] > 1:
            low, high = crossing["range"]
            text += f": {short(low)} … {short(high)}"
        shown.append(text + ")")
    return ", ".join(shown) or "none"


def _rate(entry: Mapping[str, Any]) -> str:
    if entry["lr"] is None:
        return NONE
    return f"{entry['lr']:g}" + (" (edge of the grid)" if entry["lr_at_edge"] else "")


def _footer(facts: Mapping[str, Any]) -> list[str]:
    s = facts["settings"]
    recipe_warmup = s["warmup_steps"]
    warmup = f"{s['steps'] // 20 if recipe_warmup is None else recipe_warmup}"
    seeds = ", ".join(map(str, s["seeds"]))
    lines = [
        f"- Every run: {s['steps']:,} steps of {s['batch_size']} × {s['seq_len']} tokens, the same "
        f"windows in the same order for a seed; AdamW, betas {s['betas'][0]:g} and "
        f"{s['betas'][1]:g}, weight decay {s['weight_decay']:g}, clipping at {s['clip_norm']:g}, "
        f"{warmup} warm-up steps, cosine to {100 * s['min_lr_ratio']:g} %, dropout "
        f"{s['dropout']:g}.",
        f"- Learning rates: each of {', '.join(f'{lr:g}' for lr in s['lrs'])} with seed "
        f"{s['seeds'][0]}, the best on the validation text with seeds {seeds}. The rate is chosen "
        "on the text that is measured, the same way for every model.",
        f"- Figures of the tables: the whole validation text; {facts['protocol']}. Curves: its "
        f"first {s['eval_batches']} batches.",
        f"- Numbers: {', '.join(facts['dtype'])}; {facts['seconds']:,.0f} s of computation in all.",
    ]
    for name, about in facts["data"].items():
        lines.append(
            f"- {name}: `{about['file']}`, {about['bytes']:,} bytes, sha256 `{about['sha256']}`"
        )
    for where in facts["where"]:
        software = ", ".join(f"{k} {v}" for k, v in where.items() if k != "commit")
        lines.append(f"- {software}, commit {where['commit'] or 'unknown'}")
    return lines


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, [":--", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
