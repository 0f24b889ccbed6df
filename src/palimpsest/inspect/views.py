"""Which taps of a model feed which panel. No architecture is named: what there is decides.

Legend: B batch, T time, H heads, K retrieved places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from palimpsest.analysis.passes import NO_STATE_TAP
from palimpsest.errors import InputError
from palimpsest.taps import Tap

__all__ = ["HEADS", "HeadView", "Views", "find_views"]


@dataclass(frozen=True)
class HeadView:
    """A quantity of each head, and the end of the tap's name that gives it.

    Attributes:
        ending: of the tap.
        title: what the page calls it.
        kind: "write", how strongly is written; "retention", what a memory keeps of itself.
        logarithm: whether the tap gives the logarithm already.
    """

    ending: str
    title: str
    kind: str
    logarithm: bool = False


HEADS = (
    HeadView("memory.beta", "write β", "write"),
    HeadView("step", "step Δ", "write"),
    HeadView("memory.log_decay", "retention", "retention", logarithm=True),
    HeadView("decay.state", "state λ", "retention"),
    HeadView("decay.pair", "pairs γ", "retention"),
)
_LAYER = re.compile(r"^layers\.(\d+)\.")
_GATE = re.compile(r"(^|\.)(gate\.\w+|(\w+\.)?\w*read_gate)$")
_RETRIEVAL = "retrieval.lags"
_MATRIX = "memory.matrix"


@dataclass(frozen=True)
class Views:
    """The taps that a page needs.

    Attributes:
        trajectory: the tap whose way is drawn.
        gates: taps of which the mean is shown.
        heads: tap and what it is.
        retrieval: layers ("layers.2.") that look up earlier positions.
        matrices: taps of memory matrices, recorded at a few positions.
        missing: one sentence for each panel that this model cannot fill.
    """

    trajectory: str
    gates: tuple[str, ...]
    heads: tuple[tuple[str, HeadView], ...]
    retrieval: tuple[str, ...]
    matrices: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def taps(self) -> list[str]:
        """The taps that are recorded at every position."""
        names = [self.trajectory, *self.gates, *(name for name, _ in self.heads)]
        for place in self.retrieval:
            names += [f"{place}retrieval.weights", f"{place}{_RETRIEVAL}"]
        return names


def layer_of(name: str) -> str:
    """ "2" for ``layers.2.decay.pair``; "" for a tap of the whole model."""
    found = _LAYER.match(name)
    return found.group(1) if found else ""


def find_views(taps: Mapping[str, Tap], name: str = "model") -> Views:
    """Choose from ``palimpsest.analysis.taps(model)``.

    Args:
        taps: the model's.
        name: the architecture's, for the message.

    Raises:
        InputError: no tap that can serve as the trajectory; what to declare is named.
    """
    residuals = [name for name in taps if name.endswith("residual")]
    if "state.predicted" not in taps and not residuals:
        raise InputError(f"{name}: {NO_STATE_TAP}")
    trajectory = "state.predicted" if "state.predicted" in taps else residuals[-1]
    gates = tuple(name for name in taps if _GATE.search(name))
    heads = tuple(
        (name, view)
        for view in HEADS
        for name, tap in taps.items()
        if _without_layer(name) == view.ending and tap.shape == "(B,T,H)"
    )
    retrieval = tuple(name.removesuffix(_RETRIEVAL) for name in taps if name.endswith(_RETRIEVAL))
    matrices = tuple(name for name in taps if name.endswith(_MATRIX))
    kinds = {view.kind for _, view in heads}
    missing = []
    if trajectory != "state.predicted":
        missing.append(
            f"This model has no predicted state; the trajectory is that of {trajectory}, the "
            "stream after its last layer."
        )
    if not gates:
        missing.append("This model has no gates to show.")
    if "write" not in kinds:
        missing.append("This model has no write strength of its own per head.")
    if "retention" not in kinds:
        missing.append("This model has no memory that decays, so there are no half-lives.")
    if not retrieval:
        missing.append("This model retrieves no earlier positions.")
    if not matrices:
        missing.append("This model has no memory matrix to show.")
    return Views(trajectory, gates, heads, retrieval, matrices, tuple(missing))


def _without_layer(name: str) -> str:
    return _LAYER.sub("", name)
