"""The picture of interventions: a bar for each effect, its interval, and the range of its controls.

Effects range over orders of magnitude, so that the axis is linear near zero and logarithmic beyond.
Colours are those of Okabe and Ito, one for each group of interventions.
"""

from __future__ import annotations

from pathlib import Path

from palimpsest.analysis.causal import CausalResult
from palimpsest.errors import InputError
from palimpsest.picture import new_figure, save_figure

__all__ = ["plot_interventions"]

GROUPS = {
    "mean state": "#0072B2",
    "FFN": "#D55E00",
    "read": "#E69F00",
    "head": "#56B4E9",
    "pool": "#009E73",
    "memory": "#CC79A7",
    "noise": "#555555",
}
ROW_HEIGHT = 0.24  # inches
LEAST_LINEAR = 1e-3


def plot_interventions(found: CausalResult, path: str | Path, *, probe: int = 0) -> Path:
    """Draw the effects on one figure.

    Args:
        found: from ``measure_interventions``.
        path: the PNG to write.
        probe: which of ``found.probes``.

    Raises:
        InputError: there is no such probe.
        PalimpsestError: matplotlib is not installed.
    """
    if not 0 <= probe < len(found.probes):
        raise InputError(f"probe={probe}: must be from 0 to {len(found.probes) - 1}")
    effects = found.effects
    figure = new_figure(8.2, 1.8 + ROW_HEIGHT * len(effects))
    from matplotlib.patches import Patch

    axes = figure.subplots()
    for y, effect in enumerate(effects):
        change, colour = effect.changes[probe], GROUPS.get(effect.group, "#000000")
        axes.barh(y, change.value, height=0.62, color=colour, alpha=0.85, zorder=2)
        axes.plot((change.low, change.high), (y, y), color="black", linewidth=1.1, zorder=4)
        if effect.controls:
            values = effect.controls[probe].values
            low, high = min(values), max(values)
            # a hatched box stays readable over a bar, and one draw has a width of its own
            axes.barh(
                y,
                high - low,
                left=low,
                height=0.9,
                facecolor="#000000",
                edgecolor="#000000",
                alpha=0.28,
                linewidth=1.4,
                zorder=3,
            )
            axes.plot(values, [y] * len(values), "|", color="black", markersize=8, zorder=4)
    axes.set_yticks(range(len(effects)), [effect.name for effect in effects], fontsize=8)
    axes.set_ylim(len(effects) - 0.4, -0.6)
    largest = max(abs(effect.changes[probe].value) for effect in effects)
    axes.set_xscale("symlog", linthresh=max(LEAST_LINEAR, largest / 300.0))
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    unit = effects[0].changes[probe].unit
    base = found.bases[probe]
    axes.set_xlabel(f"change of {unit} ({found.probes[probe]}: {base:.3f} without intervention)")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(
        f"{found.model}, {found.parameters:,} parameters, {found.blocks} blocks of {found.length}",
        fontsize=10,
    )
    groups = list(dict.fromkeys(effect.group for effect in effects))
    handles = [Patch(color=GROUPS.get(group, "#000000"), label=group) for group in groups]
    handles.append(Patch(color="#000000", alpha=0.28, label="range of the controls"))
    axes.legend(handles=handles, fontsize=7, loc="best")
    return save_figure(figure, path)
