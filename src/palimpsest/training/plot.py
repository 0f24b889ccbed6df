"""The loss of one or several runs over the tokens read, as a PNG.

Colours are those of Okabe and Ito, which readers with any colour vision can tell apart; runs also
differ in their markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest.errors import InputError
from palimpsest.files import read_json
from palimpsest.picture import COLOURS, MARKERS, new_figure, save_figure
from palimpsest.training.log import read_metrics

__all__ = ["plot_runs"]

SMOOTH_SHARE = 0.02  # of the rows, averaged into the bold training curve


def plot_runs(runs: Sequence[str | Path], path: str | Path) -> Path:
    """Plot training and validation of runs.

    The upper panel has the loss in nats per target: training (a running mean over 2 % of the rows,
    the rows themselves faint) and validation points. Runs with different tokenizers have no common
    loss per token, so then it has their validation in bits per byte. Runs of a task get a second
    panel with the accuracy for each number of pairs.

    Args:
        runs: folders of runs.
        path: the PNG to write.

    Returns:
        The file written.

    Raises:
        InputError: no runs, a folder that is none, nothing in common to plot.
        PalimpsestError: matplotlib is not installed.
    """
    if not runs:
        raise InputError("runs=[]: name at least one run's folder")
    folders = [Path(run) for run in runs]
    loaded = [(_meta(folder), read_metrics(folder)) for folder in folders]
    quantity = _common_quantity([meta for meta, _ in loaded])
    with_accuracy = any("accuracy" in row for _, rows in loaded for row in rows)

    figure = new_figure(8.0, 7.5 if with_accuracy else 4.8)
    from matplotlib.ticker import EngFormatter

    panels = figure.subplots(2 if with_accuracy else 1, 1, sharex=True, squeeze=False)[:, 0]
    for index, (meta, rows) in enumerate(loaded):
        look = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
        }
        name = (
            ""
            if len(loaded) == 1
            else f"{folders[index].name}: {_model(meta)}, seed {meta['seed']}, "
        )
        _draw_loss(panels[0], rows, quantity, name, look)
        if with_accuracy:
            _draw_accuracy(panels[1], meta, rows, name, look)
    labels = {"loss": "loss (nats per target)", "bits_per_byte": "validation (bits per byte)"}
    panels[0].set_ylabel(labels[quantity])
    panels[0].set_title(_title([meta for meta, _ in loaded]), fontsize=10)
    panels[-1].set_xlabel("tokens read")
    panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.margins(x=0.02)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8)
    return save_figure(figure, path)


def _draw_loss(
    panel: Any, rows: list[dict[str, Any]], quantity: str, name: str, look: dict[str, str]
) -> None:
    training = [row for row in rows if row["kind"] == "train"]
    if quantity == "loss" and training:
        tokens = np.array([row["tokens"] for row in training], dtype=np.float64)
        loss = np.array([row["loss"] for row in training], dtype=np.float64)
        width = max(1, round(len(loss) * SMOOTH_SHARE))
        if width > 1:
            panel.plot(tokens, loss, color=look["color"], alpha=0.2, linewidth=0.8)
        label = f"{name}training" + (f" (mean of {width} rows)" if width > 1 else "")
        panel.plot(tokens, _running_mean(loss, width), color=look["color"], label=label)
    points = [row for row in rows if row["kind"] == "validation" and quantity in row]
    if points:
        panel.plot(
            [row["tokens"] for row in points],
            [row[quantity] for row in points],
            linestyle="--",
            markersize=5,
            markeredgecolor="black",
            label=f"{name}validation",
            **look,
        )


def _draw_accuracy(
    panel: Any, meta: dict[str, Any], rows: list[dict[str, Any]], name: str, look: dict[str, str]
) -> None:
    points = [row for row in rows if "accuracy_by_pairs" in row]
    counts = list(dict.fromkeys(p for row in points for p in row["accuracy_by_pairs"]))
    styles = ("-", "--", ":", "-.")
    for index, pairs in enumerate(counts):
        panel.plot(
            [row["tokens"] for row in points],
            [row["accuracy_by_pairs"][pairs] for row in points],
            linestyle=styles[index % len(styles)],
            markersize=4,
            label=f"{name}{pairs} pairs",
            **look,
        )
    if points and "chance" in meta["data"]:
        panel.axhline(meta["data"]["chance"], color="grey", linewidth=0.8)
    panel.set_ylim(0.0, 1.02)
    panel.set_ylabel("accuracy (grey line: chance)")


def _running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Centred mean over ``width`` values, over fewer at both ends."""
    kernel = np.ones(width)
    counts = np.convolve(np.ones(len(values)), kernel, mode="same")
    mean: NDArray[np.float64] = np.convolve(values, kernel, mode="same") / counts
    return mean


_KINDS: dict[str, type | tuple[type, ...]] = {
    "model": str, "preset": (str, type(None)), "parameters": int, "data": dict, "data_label": str,
    "seed": int, "precision": str,
}  # fmt: skip


def _meta(run: Path) -> dict[str, Any]:
    path = run / "run.json"
    meta = read_json(path, InputError)
    if not isinstance(meta, dict) or not _KINDS.keys() <= meta.keys():
        raise InputError(f"{path}: was not written by palimpsest train")
    wrong = [name for name, kind in _KINDS.items() if not isinstance(meta[name], kind)]
    tokenizer = meta["data"].get("tokenizer", {}) if not wrong else {}
    if wrong or not isinstance(tokenizer, dict):
        raise InputError(f"{path}: {wrong[0] if wrong else 'data.tokenizer'!r} is damaged")
    if not isinstance(tokenizer.get("fingerprint", ""), str):
        raise InputError(f"{path}: 'data.tokenizer' is damaged")
    return meta


def _common_quantity(metas: list[dict[str, Any]]) -> str:
    kinds = {meta["data"].get("tokenizer", {}).get("fingerprint") for meta in metas}
    if len(kinds) == 1:
        return "loss"
    if None in kinds:
        raise InputError("runs on text and runs on a task have no common measure; plot them apart")
    return "bits_per_byte"


def _model(meta: dict[str, Any]) -> str:
    return f"{meta['preset'] or meta['model']} ({meta['parameters'] / 1e6:.2f} M)"


def _title(metas: list[dict[str, Any]]) -> str:
    data = ", ".join(dict.fromkeys(meta["data_label"] for meta in metas))
    if len(metas) == 1:
        meta = metas[0]
        return f"{_model(meta)}, {data}, seed {meta['seed']}, {meta['precision']}"
    return data
