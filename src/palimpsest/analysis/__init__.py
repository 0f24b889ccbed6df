"""Looking inside a model: recording its taps, and changing what flows through them."""

from palimpsest.analysis.catalogue import taps
from palimpsest.analysis.edits import edit_heads
from palimpsest.analysis.intervene import edit_state, intervene, patched
from palimpsest.analysis.record import record
from palimpsest.analysis.reducers import Covariance, Histogram, Mean, Norms, Reducer, TopK
from palimpsest.analysis.select import At, Call
from palimpsest.analysis.tape import Tape, open_tape

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
    "edit_heads",
    "edit_state",
    "intervene",
    "open_tape",
    "patched",
    "record",
    "taps",
]
