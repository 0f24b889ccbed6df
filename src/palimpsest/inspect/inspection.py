"""What was found in one model on one text; plain data.

Legend: N tokens of the text, C cells, P predictions kept, H heads, K retrieved positions kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palimpsest.inspect.memory import Memory
from palimpsest.inspect.tokens import Cells

__all__ = ["Heads", "Inspection", "Retrieved", "Series"]


@dataclass(frozen=True)
class Series:
    """One number at each token: the mean of a gate over its entries."""

    name: str
    doc: str
    values_N: NDArray[np.float16]


@dataclass(frozen=True)
class Heads:
    """One number of each head at each token.

    Attributes:
        title: such as "write β".
        layer: its number, or "" where the model has one memory.
        kind: "write" or "retention"; retention is kept as its logarithm.
        values_NH: the numbers.
        half_lives: of each head, for retention only: k_{1/e} of ``palimpsest.analysis.horizons`` in
            tokens, None where more than 1/e is left after ``longest_lag``.
        longest_lag: how far they were followed.
    """

    title: str
    layer: str
    kind: str
    values_NH: NDArray[np.float16]
    half_lives: tuple[float | None, ...] = ()
    longest_lag: int = 0


@dataclass(frozen=True)
class Retrieved:
    """Positions looked up: the token's number (-1 where there is none to show) and its weight."""

    layer: str
    positions_NK: NDArray[np.int32]
    weights_NK: NDArray[np.float16]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found in one model on one text.

    Attributes:
        label: what the page calls the model.
        facts: name and value, to be listed.
        ids_N: the tokens.
        cells: the text as it is shown.
        document_starts: tokens at which a document starts.
        surprise_N: bits, NaN for a token that nothing predicted.
        entropy_N: of the prediction, in bits.
        rank_N: 1 where the token was the likeliest one; 0 where nothing predicted it.
        top_ids_NP, top_probabilities_NP: the likeliest tokens at its place, before it was seen.
        labels: a short name of each id that occurs.
        trajectory: the tap that ``points_N2`` projects.
        points_N2: the state after the token, in its two directions of greatest variance.
        shares: the share of the variance that each of them has.
        missing: a sentence for each panel that this model cannot fill.
    """

    label: str
    facts: dict[str, str]
    ids_N: NDArray[np.int32]
    cells: Cells
    document_starts: tuple[int, ...]
    surprise_N: NDArray[np.float32]
    entropy_N: NDArray[np.float32]
    rank_N: NDArray[np.int32]
    top_ids_NP: NDArray[np.int32]
    top_probabilities_NP: NDArray[np.float32]
    labels: dict[int, str]
    trajectory: str
    points_N2: NDArray[np.float32]
    shares: tuple[float, float]
    gates: tuple[Series, ...] = ()
    heads: tuple[Heads, ...] = ()
    retrieved: tuple[Retrieved, ...] = ()
    memories: tuple[Memory, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.ids_N)

    @property
    def mean_surprise(self) -> float:
        """Bits per predicted token; NaN where none was predicted."""
        counted = self.surprise_N[np.isfinite(self.surprise_N)]
        return float(counted.mean(dtype=np.float64)) if len(counted) else math.nan
