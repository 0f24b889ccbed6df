"""Looking inside a model: recording its taps, changing what flows through them, and what is made
of both: geometry, default token, horizons, context, interventions, and the battery of them all.

The analyses are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from palimpsest.analysis.catalogue import taps
from palimpsest.analysis.edits import edit_heads
from palimpsest.analysis.intervene import edit_state, intervene, patched
from palimpsest.analysis.record import record
from palimpsest.analysis.reducers import Covariance, Histogram, Mean, Norms, Reducer, TopK
from palimpsest.analysis.select import At, Call
from palimpsest.analysis.tape import Tape, open_tape

if TYPE_CHECKING:
    from palimpsest.analysis.battery import run_battery
    from palimpsest.analysis.causal import measure_interventions
    from palimpsest.analysis.context import measure_context, measure_influence
    from palimpsest.analysis.default_token import bias_effect, measure_default_token
    from palimpsest.analysis.geometry import measure_geometry
    from palimpsest.analysis.horizons import measure_retention, measure_state_cosines
    from palimpsest.analysis.pools import split_pools

# name: the module that has it; TYPE_CHECKING above says the same to type checkers
_LENT = {
    "bias_effect": "default_token",
    "measure_context": "context",
    "measure_default_token": "default_token",
    "measure_geometry": "geometry",
    "measure_influence": "context",
    "measure_interventions": "causal",
    "measure_retention": "horizons",
    "measure_state_cosines": "horizons",
    "run_battery": "battery",
    "split_pools": "pools",
}

__all__ = [
    "At",
    "Call",
    "Covariance",
    "Histogram",
    "Mean",
    "Norms",
    "Reducer",
    "Tape",
    "TopK",
    "bias_effect",
    "edit_heads",
    "edit_state",
    "intervene",
    "measure_context",
    "measure_default_token",
    "measure_geometry",
    "measure_influence",
    "measure_interventions",
    "measure_retention",
    "measure_state_cosines",
    "open_tape",
    "patched",
    "record",
    "run_battery",
    "split_pools",
    "taps",
]


def __getattr__(name: str) -> Any:
    if name in _LENT:
        module = importlib.import_module(f"palimpsest.analysis.{_LENT[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'palimpsest.analysis' has no attribute {name!r}")
