"""Loss by position as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palimpsest.errors import InputError
from palimpsest.evaluation.by_position import PositionsResult
from palimpsest.picture import COLOURS, MARKERS, new_figure, save_figure

__all__ = ["plot_positions"]


def plot_positions(results: Sequence[PositionsResult], path: str | Path) -> Path:
    """Plot the loss over the position in the window, one curve for each result.

    Each bucket is drawn at the middle of its positions (the geometric one where buckets double),
    with its 95 % interval.

    Args:
        results: with one tokenizer and one text, or their losses mean different things.
        path: the PNG to write.

    Returns:
        The file written.

    Raises:
        InputError: no results, or results of different tokenizers or texts.
        PalimpsestError: matplotlib is not installed.
    """
    if not results:
        raise InputError("results=[]: name at least one")
    for name in ("tokenizer_fingerprint", "data_sha256"):
        if len({getattr(r, name) for r in results}) > 1:
            raise InputError(f"results of different {name}: their losses do not compare")
    figure = new_figure(8.0, 4.8)
    panel = figure.subplots()
    logarithmic = results[0].settings.get("spacing") == "log"
    for index, result in enumerate(results):
        buckets = result.buckets
        middles = [
            (b.first * b.last) ** 0.5 if logarithmic else (b.first + b.last) / 2 for b in buckets
        ]
        losses = [b.loss.value for b in buckets]
        panel.errorbar(
            middles,
            losses,
            yerr=[
                [b.loss.value - b.loss.low for b in buckets],
                [b.loss.high - b.loss.value for b in buckets],
            ],
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            capsize=3,
            label=f"{result.source or result.model}, {result.parameters:,} parameters",
        )
    if logarithmic:
        from matplotlib.ticker import StrMethodFormatter

        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    panel.set_xlabel("position in the window (tokens)")
    panel.set_ylabel("loss (nats per token)")
    panel.set_title(
        f"{results[0].windows:,} windows of {results[0].settings['seq_len']} tokens of "
        f"{Path(results[0].data).name}; bars: 95 % over windows",
        fontsize=10,
    )
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    return save_figure(figure, path)
