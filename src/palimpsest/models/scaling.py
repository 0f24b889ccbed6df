"""How an architecture grows: the rule by which ``palimpsest match`` finds sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["WIDTHS", "Scaling", "head_width", "rounded"]

# multiples of the width of a head at that size
WIDTHS = (*range(16, 128, 16), *range(128, 512, 32), *range(512, 8193, 64))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Sizes of one architecture, in order.

    Attributes:
        widths: the main width, rising.
        fields: the fields (all but ``vocab_size``) of a width and a number of layers, in
            proportions that make sense; more parameters for a larger width.
        layers: how many layers a width usually has.
        fine: the field that is then moved to land near the number of parameters wanted; more
            parameters for a larger value. "" for none.
        fine_step: the field takes multiples of this.
        fine_range: bounds of the field, as multiples of what ``fields`` gives.
    """

    widths: Sequence[int]
    fields: Callable[[int, int], dict[str, Any]]
    layers: Callable[[int], int]
    fine: str = ""
    fine_step: int = 8
    fine_range: tuple[float, float] = (0.75, 1.4)


def rounded(value: float, step: int) -> int:
    """The nearest multiple of ``step``, at least one ``step``."""
    return max(step, round(value / step) * step)


def head_width(width: int) -> int:
    """Entries of a head at a width of WIDTHS: 16 below 128, 32 below 512, then 64."""
    return 16 if width < 128 else 32 if width < 512 else 64
