"""Standard errors and 95 % intervals of means, shares and ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "column_means", "exponential", "mean", "ratio", "share", "share_in_groups"]

Z95 = 1.959963984540054  # the normal quantile of 97.5 %


@dataclass(frozen=True)
class Estimate:
    """A figure with what chance may have done to it.

    Attributes:
        value: the figure.
        stderr: its standard error over the examples; None where one example cannot tell.
        low: lower end of the 95 % interval.
        high: upper end.
    """

    value: float
    stderr: float | None
    low: float
    high: float

    @classmethod
    def read(cls, found: Any) -> Estimate:
        """From an estimate or from what JSON keeps of one."""
        return found if isinstance(found, cls) else cls(**found)

    def __str__(self) -> str:
        return f"{self.value:.4f} (95 %: {self.low:.4f} … {self.high:.4f})"


def mean(values: NDArray[np.float64]) -> Estimate:
    """The mean, with a normal interval."""
    return _normal(float(values.mean()), _stderr(values))


def column_means(values_WK: Any) -> tuple[Estimate, ...]:
    """:func:`mean` of each column, over W windows, of an array or a tensor on the CPU."""
    return tuple(mean(np.asarray(column)) for column in values_WK.T)


def ratio(numerators: NDArray[Any], denominators: NDArray[Any]) -> Estimate:
    """sum(numerators) / sum(denominators) of pairs drawn together, by linearisation.

    For a mean over tokens that come in words: the words are drawn, their tokens are not
    independent.
    """
    tops, bottoms = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    value = float(tops.sum() / bottoms.sum())
    return _normal(value, _stderr((tops - value * bottoms) / bottoms.mean()))


def share(right: int, asked: int) -> Estimate:
    """right / asked, with the Wilson interval, which holds near 0 and 1 too."""
    p = right / asked
    stderr = math.sqrt(p * (1 - p) / (asked - 1)) if asked > 1 else None
    return Estimate(p, stderr, *_wilson(p, asked))


def share_in_groups(right: NDArray[Any], asked: NDArray[Any]) -> Estimate:
    """sum(right) / sum(asked) of examples that ask several questions each, with Wilson's interval.

    The answers of an example depend on one another, so that they count as fewer: as many as would
    give the linearised standard error. Where that is 0 (all right, or all wrong) nothing is known
    of the dependence, and each example counts once.
    """
    found = ratio(right, asked)
    p, answers = found.value, float(np.asarray(asked).sum())
    if found.stderr is None:
        return share(int(np.asarray(right).sum()), int(answers))
    count = min(p * (1 - p) / found.stderr**2, answers) if found.stderr > 0 else len(asked)
    low, high = _wilson(p, count)
    return Estimate(p, found.stderr, low, high)


def exponential(nats: Estimate) -> Estimate:
    """exp of an estimate: the interval's ends are mapped, the standard error to first order."""
    value = _exp(nats.value)
    stderr = None if nats.stderr is None else value * nats.stderr
    return Estimate(value, stderr, _exp(nats.low), _exp(nats.high))


def _stderr(values: NDArray[np.float64]) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _normal(value: float, stderr: float | None) -> Estimate:
    reach = Z95 * (stderr or 0.0)
    return Estimate(value, stderr, value - reach, value + reach)


def _wilson(p: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share p of ``count`` independent answers."""
    spread = Z95 * math.sqrt(p * (1 - p) / count + Z95**2 / (4 * count**2)) / (1 + Z95**2 / count)
    centre = (p + Z95**2 / (2 * count)) / (1 + Z95**2 / count)
    low = 0.0 if p == 0 else max(centre - spread, 0.0)
    return low, 1.0 if p == 1 else min(centre + spread, 1.0)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 709 else math.inf
