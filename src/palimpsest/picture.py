"""Pictures as every part of the package makes them: without a display, in colours that readers with
any colour vision can tell apart, and as files that are whole or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palimpsest.errors import PalimpsestError
from palimpsest.files import atomic_path

__all__ = ["COLOURS", "MARKERS", "new_figure", "save_figure"]

# Okabe and Ito; curves that differ in colour differ in their markers or dashes too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches.

    Raises:
        PalimpsestError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PalimpsestError(
            "a plot needs matplotlib: pip install 'palimpsest-lm[plot]'"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path, dpi: int = 150) -> Path:
    """Write a PNG, and give its path back."""
    target = Path(path)
    with atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
    return target
