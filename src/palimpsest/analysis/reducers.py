"""Statistics of a tap that are kept instead of its values.

A reducer takes what is recorded position by position, in any order and in any pieces, and two
reducers of two parts of a text merge into that of the whole. Sums are in fp64.

Legend: N positions of one piece, F entries of a position, D = F of a tap with one axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from palimpsest.errors import InputError

__all__ = ["Covariance", "Histogram", "Mean", "Norms", "Reducer", "TopK"]

R = TypeVar("R", bound="Reducer")
BLOCK = 4096  # positions whose fp32 products are summed before they meet the fp64 total


class Reducer(ABC):
    """Base class: ``update(x)`` with pieces, ``result()`` at the end."""

    def __init__(self) -> None:
        self.count = 0

    def update(self, x: Tensor, places: Tensor | None = None) -> None:
        """Take positions.

        Args:
            x: (N,…) one entry or more for each position.
            places: (N,2) row and position of each; by default row 0 and a running number.

        Raises:
            InputError: other axes than those of the pieces before.
        """
        if places is None:
            number = torch.arange(self.count, self.count + len(x))
            places = torch.stack([torch.zeros_like(number), number], 1)
        if len(x):
            self._update(x.detach(), places)
            self.count += len(x)

    def merge(self: R, other: R) -> None:
        """Take what another reducer of the same kind has seen.

        Raises:
            InputError: a reducer of another kind or with other settings.
        """
        if type(other) is not type(self) or other._settings() != self._settings():
            raise InputError(
                f"merge: {type(self).__name__}{self._settings()} with "
                f"{type(other).__name__}{other._settings()}; both must be of one kind and setting"
            )
        if other.count:
            self._merge(other)
            self.count += other.count

    @abstractmethod
    def result(self) -> Any:
        """The statistic of everything so far.

        Raises:
            InputError: nothing was seen.
        """

    @abstractmethod
    def _update(self, x: Tensor, places: Tensor) -> None: ...

    @abstractmethod
    def _merge(self, other: Any) -> None: ...

    def _settings(self) -> tuple[Any, ...]:
        return ()

    def _some(self) -> None:
        if not self.count:
            raise InputError(f"{type(self).__name__}: no position has been recorded yet")

    def _same_axes(self, known: Tensor, x: Tensor) -> None:
        if known.shape != x.shape[1:]:
            raise InputError(
                f"{type(self).__name__}: a piece with axes {tuple(x.shape[1:])} after pieces with "
                f"{tuple(known.shape)}; one reducer serves one tap"
            )


class Mean(Reducer):
    """The mean over positions, entry by entry; ``result()`` is of the tap's own axes, in fp64."""

    _sum: Tensor

    def _update(self, x: Tensor, places: Tensor) -> None:
        if self.count:
            self._same_axes(self._sum, x)
            self._sum += x.sum(0, dtype=torch.float64)
        else:
            self._sum = x.sum(0, dtype=torch.float64)

    def _merge(self, other: Mean) -> None:
        self._sum = self._sum + other._sum if self.count else other._sum.clone()

    def result(self) -> Tensor:
        self._some()
        return self._sum / self.count


class Covariance(Reducer):
    """Mean and covariance of the entries of a position, all axes of a position as one.

    The products of a block are made in the tap's dtype, at least fp32, of entries less a fixed
    vector near the mean, and summed in fp64: no variance is lost to the size of the mean.

    ``result()`` gives (mean (F), covariance (F,F)), both fp64; the divisor is the count.
    """

    _shift: Tensor
    _sum: Tensor
    _products: Tensor

    def _update(self, x: Tensor, places: Tensor) -> None:
        wide = torch.promote_types(x.dtype, torch.float32)
        x_NF = x.flatten(1).to(wide) if x.ndim > 1 else x[:, None].to(wide)
        if not self.count:
            self._shift = x_NF.mean(0, dtype=torch.float64).to(wide)
            self._sum = torch.zeros_like(self._shift, dtype=torch.float64)
            self._products = self._sum.new_zeros(len(self._sum), len(self._sum))
        self._same_axes(self._shift, x_NF)
        for part_NF in x_NF.split(BLOCK):
            y_NF = part_NF - self._shift
            self._sum += y_NF.sum(0, dtype=torch.float64)
            self._products += y_NF.mT @ y_NF

    def _merge(self, other: Covariance) -> None:
        if not self.count:
            self._shift, self._sum = other._shift.clone(), other._sum.clone()
            self._products = other._products.clone()
            return
        # the other's sums about our vector: Σ (y + d)(y + d)ᵀ with y about its own
        d_F = other._shift.double() - self._shift.double()
        cross_FF = torch.outer(other._sum, d_F)
        self._products += other._products + cross_FF + cross_FF.mT
        self._products += other.count * torch.outer(d_F, d_F)
        self._sum += other._sum + other.count * d_F

    def result(self) -> tuple[Tensor, Tensor]:
        self._some()
        off_F = self._sum / self.count
        covariance_FF = self._products / self.count - torch.outer(off_F, off_F)
        return self._shift.double() + off_F, covariance_FF


class Histogram(Reducer):
    """How often entries fall between edges.

    Args:
        bins: the edges, ascending; or how many equal bins between ``low`` and ``high``.
        low, high: where ``bins`` is a number.
        per_entry: one histogram for each entry of a position, not one for all together.

    ``result()`` gives (edges (bins+1), counts (…,bins+2)): what lies below the first edge comes
    first, what does not lie below the last one comes last. A bin holds its lower edge.
    """

    def __init__(
        self,
        bins: int | Sequence[float],
        low: float | None = None,
        high: float | None = None,
        *,
        per_entry: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(bins, int):
            if bins < 1 or low is None or high is None or not low < high:
                raise InputError(
                    f"Histogram({bins}, low={low}, high={high}): needs at least one bin and "
                    "low < high, or a list of edges"
                )
            self.edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
        else:
            self.edges = torch.as_tensor(list(bins), dtype=torch.float64)
            if len(self.edges) < 2 or not bool((self.edges.diff() > 0).all()):
                raise InputError("Histogram: the edges must be at least two and ascending")
        self.per_entry = per_entry
        self._counts = torch.zeros(0)

    def _update(self, x: Tensor, places: Tensor) -> None:
        shape, size = (x.shape[1:] if self.per_entry else ()), len(self.edges) + 1
        if not self.count:
            self._counts = torch.zeros(*shape, size, dtype=torch.long)
        elif self.per_entry:
            self._same_axes(self._counts[..., 0], x)
        bucket = torch.bucketize(x.double(), self.edges.to(x.device), right=True)
        if self.per_entry:
            bucket = bucket + size * torch.arange(x[0].numel(), device=x.device).view(shape)
        counts = torch.bincount(bucket.flatten(), minlength=self._counts.numel())
        self._counts += counts.view(self._counts.shape).to("cpu")

    def _merge(self, other: Histogram) -> None:
        self._counts = self._counts + other._counts if self.count else other._counts.clone()

    def _settings(self) -> tuple[Any, ...]:
        return tuple(self.edges.tolist()), self.per_entry

    def result(self) -> tuple[Tensor, Tensor]:
        self._some()
        return self.edges, self._counts


class Norms(Reducer):
    """Euclidean norms of positions, all axes of a position as one.

    ``result()`` gives {"mean", "std", "min", "max", "count"}; std divides by the count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sum = self._square = 0.0
        self._low, self._high = float("inf"), float("-inf")

    def _update(self, x: Tensor, places: Tensor) -> None:
        norms_N = x.reshape(len(x), -1).double().square().sum(1).sqrt()
        self._sum += float(norms_N.sum())
        self._square += float(norms_N.square().sum())
        self._low = min(self._low, float(norms_N.min()))
        self._high = max(self._high, float(norms_N.max()))

    def _merge(self, other: Norms) -> None:
        self._sum, self._square = self._sum + other._sum, self._square + other._square
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)

    def result(self) -> dict[str, float]:
        self._some()
        mean = self._sum / self.count
        spread = max(self._square / self.count - mean * mean, 0.0) ** 0.5
        return {
            "mean": mean,
            "std": spread,
            "min": self._low,
            "max": self._high,
            "count": float(self.count),
        }


class TopK(Reducer):
    """For each entry of a position the largest values, and where they were.

    Args:
        k: how many.

    ``result()`` gives (values (k,…), places (k,…,2)): row and position; fewer than k where fewer
    positions were seen. Of equal values the one seen first comes first.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        if k < 1:
            raise InputError(f"TopK({k}): k must be at least 1")
        self.k = k

    _values: Tensor
    _places: Tensor

    def _update(self, x: Tensor, places: Tensor) -> None:
        index = torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1)).expand_as(x)
        if self.count:
            self._same_axes(self._values[0], x)
        self._add(x, places.to(x.device)[index])

    def _add(self, values: Tensor, places: Tensor) -> None:
        if self.count:
            values = torch.cat([self._values, values])
            places = torch.cat([self._places, places])
        ordered, order = torch.sort(values, dim=0, descending=True, stable=True)
        order = order[: self.k]
        self._values = ordered[: self.k].clone()
        self._places = places.gather(0, order[..., None].expand(*order.shape, 2))

    def _merge(self, other: TopK) -> None:
        self._add(other._values, other._places)

    def _settings(self) -> tuple[Any, ...]:
        return (self.k,)

    def result(self) -> tuple[Tensor, Tensor]:
        self._some()
        return self._values, self._places
