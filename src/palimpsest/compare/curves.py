"""Curves over the tokens read: their mean over seeds, and where two of them cross."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["crossings", "gap", "mean_curve"]


def crossings(
    tokens: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> list[dict[str, Any]]:
    """Where one curve goes through another, by linear interpolation between the points.

    Args:
        tokens: rising; the points of both curves.
        first: one value per point.
        second: the same of the other curve.

    Returns:
        One entry per crossing in order: "tokens", and "first_is_lower_after".
    """
    found: list[dict[str, Any]] = []
    before: tuple[float, float] | None = None  # the last point at which the curves differ
    for place, a, b in zip(tokens, first, second, strict=True):
        difference = a - b
        if difference == 0.0:
            continue
        if before is not None and (difference < 0.0) != (before[1] < 0.0):
            share = before[1] / (before[1] - difference)
            found.append(
                {
                    "tokens": before[0] + share * (place - before[0]),
                    "first_is_lower_after": difference < 0.0,
                }
            )
        before = (place, difference)
    return found


def mean_curve(curves: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The mean and the standard deviation over seeds at each point that all curves have.

    Args:
        curves: each a list of rows with "tokens" and "bits_per_byte".
    """
    if not curves:
        return []
    by_tokens = [{row["tokens"]: row["bits_per_byte"] for row in curve} for curve in curves]
    shared = sorted(set(by_tokens[0]).intersection(*by_tokens[1:]))
    points = []
    for place in shared:
        values = [curve[place] for curve in by_tokens]
        points.append(
            {
                "tokens": place,
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else None,
            }
        )
    return points


def gap(own: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """How far the mean of one lies above that of another, with its standard error.

    The error is that of a difference of two means of independent seeds; None with one seed.

    Args:
        own: a figure per seed.
        base: the same of the baseline.
    """
    difference = statistics.fmean(own) - statistics.fmean(base)
    if len(own) < 2 or len(base) < 2:
        return {"difference": difference, "stderr": None}
    variance = statistics.variance(own) / len(own) + statistics.variance(base) / len(base)
    return {"difference": difference, "stderr": math.sqrt(variance)}
