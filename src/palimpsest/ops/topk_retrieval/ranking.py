"""The order of pairs, made exact: equal keys have equal scores, and the most recent one wins.

In floating point two identical keys can score differently: the order in which a matrix product
adds up depends on its shape and on the place in it. Ties, which are the rule on real text, would
then be settled by noise, and differently in training and in decoding. So the order is computed on
integers. Unit vectors are rounded to multiples of 2⁻²¹ and multiplied in float64, where every
product and every partial sum (below 2⁵³ units) is exact in any order, on any device. Keys whose
cosines differ by less than about 10⁻⁶ may therefore rank either way, but the same way everywhere;
the weights of the pairs that are chosen come from the unrounded vectors.

The ``numba`` backend takes the same cosines, and adds log strengths in float64 without rounding to
a unit: equal ids are one key with one score there.

B batch, T positions, N pairs, A width of queries and keys.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["COSINE_UNIT", "cosine_units", "rank_with_strength", "strength_units", "unit"]

BITS = 21
COSINE_UNIT = 2.0 ** (-2 * BITS)
# Scores with a log strength are rounded to this unit, and kept inside ±2¹² (42 bits and a sign).
_SCORE_UNIT = 2.0**-30
_LARGEST = 2.0**42
LOWEST_LOG_STRENGTH = -1000.0


def unit(x: Tensor) -> Tensor:
    """Vectors along the last dimension at length 1; zero stays zero."""
    return F.normalize(x, dim=-1, eps=1e-12)


def cosine_units(x: Tensor) -> Tensor:
    """Unit vectors as whole numbers of 2⁻²¹, in float64, without gradient.

    The product of two of them is their cosine in whole numbers of ``COSINE_UNIT``, exactly.
    """
    wide = x.detach().to(torch.float64).contiguous()
    return unit(wide).mul_(2.0**BITS).round_()


def strength_units(log_strength: Tensor) -> Tensor:
    """Log strengths in units of a score, in float64, without gradient."""
    wide = log_strength.detach().to(torch.float64)
    return wide.clamp(min=LOWEST_LOG_STRENGTH).mul_(1 / _SCORE_UNIT)


def rank_with_strength(cosines: Tensor, scale: float, strengths: Tensor) -> Tensor:
    """scale · cosine + log strength as whole numbers; changes and returns ``cosines``.

    Each operation rounds once and alone (no fused multiply-add), so that equal pairs stay equal.
    """
    cosines.mul_(scale * (COSINE_UNIT / _SCORE_UNIT))
    return cosines.add_(strengths).round_().clamp_(-_LARGEST, _LARGEST)


def scale_value(scale: float | Tensor) -> float:
    """The scale as a number; refuses one that is not finite."""
    value = float(scale.detach()) if isinstance(scale, Tensor) else float(scale)
    if not math.isfinite(value):
        raise ValueError(f"scale={value}; it must be finite")
    return value
