"""Fast and slow heads, told apart by a rule.

The rule: order the heads by log half-life and cut at the largest gap. The cut counts as a split
where so large a gap, as a share of the whole range, has at most the probability ``level`` if the
heads between the fastest and the slowest were scattered uniformly in log half-life. With n heads
there are m = n - 1 gaps, and

    P(largest gap > g) = Σ_{j ≥ 1, j·g < 1} (-1)^{j+1} C(m, j) (1 - j·g)^{m-1}.

Few heads cannot show a split: at the level 0.05 three need a gap of 97.5 % of the range, 4 of 87 %,
8 of 56 %, 15 of 35 %. Heads of several seeds may be judged together.

Half-lives below one token count as one token, for such heads forget the token before either way. A
head that stays above 1/e up to the longest lag counts as that lag, which is too short.

Otsu's threshold, with the share of the variance that lies between its two groups, stands beside it
as a second opinion. It always cuts, so it serves an intervention that needs two groups whether or
not there is a split, and it is no test: heads at equal distances have at least 0.75 of it.

Legend: n heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from palimpsest.analysis.passes import Measured
from palimpsest.errors import InputError

__all__ = ["Pools", "largest_gap_probability", "split_pools"]


@dataclass(frozen=True, kw_only=True)
class Pools(Measured):
    """Heads by half-life (the rule is at the head of the file).

    Attributes:
        heads: n.
        split: whether the gap counts.
        fast: numbers of the heads below the largest gap; empty without a split.
        slow: those above it; empty without a split.
        boundary: the half-life in the middle of the gap, on the logarithmic scale.
        gap: the half-life above the gap over the one below it.
        gap_share: the gap's share of the whole range, in log half-life.
        probability: of so large a gap among heads scattered uniformly.
        level: what ``probability`` may be at most.
        otsu_boundary: Otsu's threshold, as a half-life; None where all heads are equal.
        otsu_fast, otsu_slow: the heads below and above it.
        separability: share of the variance of log half-life between Otsu's groups.
        otsu_agrees: whether Otsu's groups are those of the largest gap.
        censored: heads that stay above 1/e up to the longest lag.
    """

    heads: int
    split: bool
    fast: tuple[int, ...]
    slow: tuple[int, ...]
    boundary: float | None
    gap: float
    gap_share: float
    probability: float
    level: float
    otsu_boundary: float | None
    otsu_fast: tuple[int, ...]
    otsu_slow: tuple[int, ...]
    separability: float
    otsu_agrees: bool
    censored: int

    def __str__(self) -> str:
        chance = f"p = {self.probability:.3g}, {self.heads} heads"
        if not self.split:
            return f"no split: the largest gap is a factor of {self.gap:.3g} ({chance})"
        return (
            f"{len(self.fast)} fast and {len(self.slow)} slow heads, apart by a factor of "
            f"{self.gap:.3g} at {self.boundary:.3g} tokens ({chance})"
        )


def largest_gap_probability(gap_share: float, heads: int) -> float:
    """P(largest gap > g) among n points, n - 2 of them uniform between the two outermost.

    Args:
        gap_share: g in [0, 1].
        heads: n; below 3 the answer is 1, as there is one gap at most.
    """
    gaps = heads - 1
    if gaps < 2 or gap_share * gaps < 1.0:
        return 1.0
    # the terms alternate and can be huge: exact fractions
    share, total, j = Fraction(gap_share).limit_denominator(10**6), Fraction(0), 1
    while j <= gaps and j * share < 1:
        total += (-1) ** (j + 1) * math.comb(gaps, j) * (1 - j * share) ** (gaps - 1)
        j += 1
    return min(max(float(total), 0.0), 1.0)


def split_pools(half_lives: Sequence[float | None], *, longest: int, level: float = 0.05) -> Pools:
    """Split heads into a fast and a slow pool, or say that there is no split.

    Args:
        half_lives: of each head in tokens, None for those beyond ``longest``
            (``Retention.half_lives()``).
        longest: the longest lag that was measured.
        level: see :class:`Pools`.

    Raises:
        InputError: no heads, half-lives that are not positive, or a level outside (0, 1).
    """
    if not half_lives:
        raise InputError("half_lives=[]: there are no heads to split")
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level}: must be between 0 and 1")
    wrong = [v for v in half_lives if v is not None and not 0.0 < v < math.inf]
    if wrong or longest < 1:
        raise InputError(
            f"half_lives hold {wrong[0] if wrong else f'longest={longest}'}: must be positive"
        )
    logs = [math.log(max(longest if v is None else v, 1.0)) for v in half_lives]
    order = sorted(range(len(logs)), key=lambda i: logs[i])
    ordered = [logs[i] for i in order]
    span = ordered[-1] - ordered[0]
    at, gap = 0, 0.0  # the gap lies above the first `at` heads
    for i in range(1, len(ordered)):
        if ordered[i] - ordered[i - 1] > gap:
            at, gap = i, ordered[i] - ordered[i - 1]
    gap_share = gap / span if span > 0 else 0.0
    probability = largest_gap_probability(gap_share, len(ordered))
    split = probability <= level
    otsu_at, separability = _otsu(ordered)
    return Pools(
        heads=len(logs),
        split=split,
        fast=tuple(sorted(order[:at])) if split else (),
        slow=tuple(sorted(order[at:])) if split else (),
        boundary=_middle(ordered, at),
        gap=math.exp(gap),
        gap_share=gap_share,
        probability=probability,
        level=level,
        otsu_boundary=_middle(ordered, otsu_at),
        otsu_fast=tuple(sorted(order[:otsu_at])) if otsu_at else (),
        otsu_slow=tuple(sorted(order[otsu_at:])) if otsu_at else (),
        separability=separability,
        otsu_agrees=bool(at) and at == otsu_at,
        censored=sum(v is None for v in half_lives),
    )


def _middle(ordered: Sequence[float], at: int) -> float | None:
    return math.exp((ordered[at - 1] + ordered[at]) / 2) if at else None


def _otsu(ordered: Sequence[float]) -> tuple[int, float]:
    """How many values are below the threshold, and the share of the variance between groups."""
    count, middle = len(ordered), sum(ordered) / len(ordered)
    total = sum((x - middle) ** 2 for x in ordered)
    best, best_at = 0.0, 0
    for at in range(1, count):
        if ordered[at] == ordered[at - 1]:
            continue
        low = sum(ordered[:at]) / at
        high = sum(ordered[at:]) / (count - at)
        between = at * (count - at) / count * (high - low) ** 2
        if between > best:
            best, best_at = between, at
    return best_at, best / total if total > 0 else 0.0
