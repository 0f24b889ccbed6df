"""One picture for each result of this package.

Colours are those of Okabe and Ito, which readers with any colour vision can tell apart; curves also
differ in their dashes or markers. Axes of lags are logarithmic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.analysis.context import ContextLoss, Influence
from palimpsest.analysis.default_token import DefaultToken
from palimpsest.analysis.geometry import Geometry
from palimpsest.analysis.horizons import Retention, StateCosines
from palimpsest.analysis.pools import Pools
from palimpsest.evaluation.statistics import Z95, Estimate
from palimpsest.picture import COLOURS, new_figure, save_figure

__all__ = [
    "plot_context",
    "plot_default_token",
    "plot_geometry",
    "plot_influence",
    "plot_retention",
    "plot_state_cosines",
]

BLUE, RED, GREEN, PURPLE, ORANGE, SKY, _ = COLOURS
GREY = "#767676"
LEAST_SHOWN = 1e-4  # of what a head keeps, and of an influence over the largest


def plot_geometry(found: Geometry, path: str | Path) -> Path:
    """The PCA curve, and the standard deviation of each dimension in order.

    Args:
        found: what to draw.
        path: the PNG to write.

    Returns:
        The file written; as for all functions here.

    Raises:
        PalimpsestError: matplotlib is not installed; as for all functions here.
    """
    figure, (left, right) = _panels(2)
    curve = found.pca_curve()
    left.plot(range(1, len(curve) + 1), curve, color=BLUE, linewidth=2)
    for share, needed in ((0.90, found.components_90), (0.99, found.components_99)):
        left.plot([needed], [share], "o", color=RED, markersize=6)
        left.annotate(
            f"{share:.0%}: {needed}",
            (needed, share),
            xytext=(6, -14),
            textcoords="offset points",
            fontsize=9,
            ha="left" if needed < 0.7 * len(curve) else "right",
        )
    left.set_ylim(0.0, 1.03)
    left.set_xlabel("principal components")
    left.set_ylabel("share of the variance")
    left.set_title(
        f"stable rank {found.stable_rank:.1f}, participation ratio "
        f"{found.participation_ratio:.1f}, of {found.width}",
        fontsize=10,
    )
    ordered = sorted(found.std, reverse=True)
    right.plot(range(1, len(ordered) + 1), ordered, color=BLUE, linewidth=2)
    right.set_ylim(bottom=0.0)
    right.set_xlabel("dimension, in order of its standard deviation")
    right.set_ylabel("standard deviation")
    correlation = ""
    if found.correlation_mean is not None:
        correlation = (
            f"; |correlation| {found.correlation_mean:.3f} on average, at most "
            f"{found.correlation_max:.2f}"
        )
    right.set_title(f"{len(found.dead)} dead{correlation}", fontsize=10)
    figure.suptitle(
        f"{found.vectors:,} vectors of norm {found.norm_mean:.3g} ± {found.norm_std:.2g}",
        fontsize=11,
    )
    return _finish(figure, path)


def plot_default_token(found: DefaultToken, path: str | Path) -> Path:
    """How fast running means reach the mean state, and the tokens it decodes to."""
    figure, (left, right) = _panels(2)
    left.plot(found.positions, found.convergence, color=BLUE, marker="o", linewidth=2)
    left.set_xscale("log")
    left.set_ylim(top=1.0 + 0.03 * (1.0 - min(*found.convergence, 0.9)))
    left.set_xlabel("tokens in the running mean")
    left.set_ylabel("cosine with the mean state")
    left.set_title(
        f"mean state: norm {found.norm:.3g}, {found.norm_share:.0%} of a state's mean norm",
        fontsize=10,
    )
    labels = [str(t.id) if t.text is None else _visible(t.text) for t in found.top]
    places = range(len(labels))
    right.barh(places, [t.probability for t in found.top], color=BLUE)
    right.set_yticks(places, labels, fontfamily="monospace")
    right.invert_yaxis()
    right.set_xlabel("probability when the mean state is decoded")
    rank = "" if found.spearman is None else f"Spearman with the unigram {found.spearman:+.2f}"
    right.set_title(
        f"{rank}\nmean embedding: {found.embedding_overlap} of these {len(labels)}, "
        f"cosine {found.embedding_cosine:+.2f}",
        fontsize=10,
    )
    return _finish(figure, path)


def plot_state_cosines(found: StateCosines, path: str | Path) -> Path:
    """Raw and centred cosine by lag, with 95 % bars."""
    figure, (axes,) = _panels(1)
    axes.axhline(0.0, color=GREY, linewidth=1)
    for label, values, colour, marker in (
        ("raw", found.raw, BLUE, "o"),
        ("each window's mean removed", found.centred, RED, "s"),
    ):
        _bars(axes, found.lags, values, label=label, color=colour, marker=marker)
    axes.set_xscale("log")
    axes.set_xlabel("lag (tokens)")
    axes.set_ylabel("mean cosine of two states")
    axes.set_title(
        f"{found.windows:,} windows of {found.length:,} tokens; bars: 95 % over windows",
        fontsize=10,
    )
    axes.legend(fontsize=9)
    return _finish(figure, path)


def plot_retention(found: Retention, path: str | Path, pools: Pools | None = None) -> Path:
    """What each head keeps by lag; colours are pools, or taps without a split.

    Args:
        found: what to draw.
        path: the PNG to write.
        pools: of the same heads, in the same order.
    """
    figure, (axes,) = _panels(1)
    split = pools is not None and pools.split
    names = list(dict.fromkeys(h.tap for h in found.heads))
    colours = dict(zip(names, itertools.cycle((BLUE, RED, GREEN, PURPLE, ORANGE, SKY))))
    dashes = dict(zip(names, itertools.cycle(("-", "--", ":", "-."))))
    shown: set[str] = set()
    for index, head in enumerate(found.heads):
        colour, line, label = colours[head.tap], dashes[head.tap], head.tap
        if split:
            assert pools is not None
            fast = index in pools.fast
            colour, line, label = (RED, "--", "fast") if fast else (BLUE, "-", "slow")
        axes.plot(
            found.lags[1:],
            head.curve[1:],
            color=colour,
            linestyle=line,
            linewidth=1.4,
            label=None if label in shown else label,
        )
        shown.add(label)
        if head.half_life is not None and head.half_life >= 1.0:
            axes.plot([head.half_life], [1 / math.e], "o", color=colour, markersize=4)
    axes.axhline(1 / math.e, color=GREY, linewidth=1, dashes=(4, 3))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(LEAST_SHOWN, 1.3)
    kept = [max(values) for values in zip(*(h.curve for h in found.heads), strict=True)]
    _end(axes, found.lags, kept, LEAST_SHOWN)
    axes.annotate(
        "1/e",
        (0.99, 1 / math.e),
        xycoords=axes.get_yaxis_transform(),
        fontsize=8,
        color=GREY,
        ha="right",
        va="bottom",
    )
    axes.set_xlabel("lag (tokens)")
    axes.set_ylabel("share of the memory that is kept")
    axes.set_title(
        str(pools) if pools is not None else f"{len(found.heads)} heads; dots: half-lives",
        fontsize=9,
    )
    axes.legend(fontsize=8, loc="lower left")
    return _finish(figure, path)


def plot_context(found: ContextLoss, path: str | Path) -> Path:
    """Loss by the tokens that are kept before a target, with 95 % bars.

    The bars of the excess, which are paired by target, are the ones to compare lengths by.
    """
    figure, (left, right) = _panels(2)
    _bars(left, found.lengths, found.loss, color=BLUE, marker="o")
    left.set_ylabel("loss (nats per token)")
    _bars(right, found.lengths[:-1], found.excess[:-1], color=BLUE, marker="o")
    right.axhline(found.tolerance, color=GREY, linewidth=1, dashes=(4, 3))
    right.axhline(0.0, color=GREY, linewidth=1)
    right.set_ylabel(f"loss above that of {found.lengths[-1]:,} tokens (nats)")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("preceding tokens that are kept")
    right.set_title(
        f"within {found.tolerance:g} nats from {found.effective:,} tokens on", fontsize=10
    )
    left.set_title(f"{found.targets:,} targets; bars: 95 % over targets", fontsize=10)
    return _finish(figure, path)


def plot_influence(found: Influence, path: str | Path) -> Path:
    """Mean gradient norm by lag, both axes logarithmic, with a band of 95 %."""
    figure, (axes,) = _panels(1)
    values = [e.value for e in found.norm]
    floor = LEAST_SHOWN * max(values)
    axes.plot(found.lags, values, color=BLUE, linewidth=1.8)
    if found.norm[0].stderr is not None:
        axes.fill_between(
            found.lags,
            [max(e.low, floor) for e in found.norm],
            [max(e.high, floor) for e in found.norm],
            color=BLUE,
            alpha=0.2,
            linewidth=0,
        )
    for lag, share, colour in ((found.half, "half", RED), (found.most, "90 %", GREEN)):
        axes.axvline(lag, color=colour, linewidth=1.2, dashes=(4, 3), label=f"{share}: lag {lag}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(0.5 * min(values), floor))
    _end(axes, found.lags, values, floor)
    axes.set_xlabel("lag (tokens before the target)")
    axes.set_ylabel(f"norm of the loss's gradient at {found.tap}")
    axes.set_title(f"{found.targets:,} targets; band: 95 % over targets", fontsize=10)
    axes.legend(fontsize=9)
    return _finish(figure, path)


def _visible(text: str) -> str:
    """A token with its spaces and breaks to be seen, and no dollar that starts a formula."""
    shown = text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥").replace("$", r"\$")
    return "".join(c if c.isprintable() else "·" for c in shown) or "(none)"


def _bars(axes: Any, x: Sequence[int], values: Sequence[Estimate], **look: Any) -> None:
    axes.errorbar(
        x,
        [e.value for e in values],
        yerr=[Z95 * (e.stderr or 0.0) for e in values],
        capsize=3,
        markersize=5,
        **look,
    )


def _end(axes: Any, lags: Sequence[int], values: Sequence[float], floor: float) -> None:
    """End the axis of lags where nothing is left to be seen."""
    last = max((k for k, value in zip(lags, values, strict=True) if value >= floor), default=1)
    axes.set_xlim(0.9, 1.1 * max(last, 10))


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
    figure = new_figure(6.4 if count == 1 else 10.4, 4.4)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _finish(figure: Any, path: str | Path) -> Path:
    from matplotlib.ticker import StrMethodFormatter

    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_xscale() == "log":
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return save_figure(figure, path)
