"""How state vectors lie in their space: spread, correlations, principal components, norms.

Everything comes from one pass in bounded memory: the mean, the covariance and the norms. With
C = E[(s − s̄)(s − s̄)ᵀ] over N vectors (divisor N) and its eigenvalues λ₁ ≥ λ₂ ≥ …:

- standard deviation of a dimension: √C_ii;
- dead dimension: √C_ii at most ``dead_below`` times the root mean square of all √C_ii;
- correlation: C_ij / √(C_ii C_jj), i ≠ j, over dimensions that are not dead;
- components for a share p of the variance: the least n with λ₁ + … + λ_n ≥ p · trace C;
- stable rank: ‖X‖_F² / ‖X‖₂² of the centred vectors, which is trace C / λ₁;
- participation ratio: (Σ λ)² / Σ λ².

Rank and correlations of few vectors say little: N vectors have at most N − 1 components.

Source: arXiv 2605.10643 for the quantities; the rule for dead dimensions is ours.

Legend: N vectors, D their width, W windows, T tokens of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palimpsest.analysis.passes import Measured, check_windows, state_tap
from palimpsest.analysis.record import record
from palimpsest.analysis.reducers import Covariance, Norms, Reducer
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.models.language_model import LanguageModel

__all__ = ["DEAD_BELOW", "Geometry", "GeometryReducer", "measure_geometry", "vector_geometry"]

DEAD_BELOW = 1e-3
PIECE = 4096  # vectors that are converted to fp64 at a time


@dataclass(frozen=True, kw_only=True)
class Geometry(Measured):
    """Geometry of N vectors (definitions at the head of the file).

    Attributes:
        vectors: N.
        width: D.
        norm_mean, norm_std, norm_min, norm_max: of the vectors' Euclidean norms.
        mean_norm: norm of the mean vector.
        std: (D) standard deviation of each dimension.
        dead_below: the bound under which a dimension is dead, as a share of the root mean square
            of ``std``.
        dead: dead dimensions.
        correlation_mean: mean |off-diagonal correlation|; None with fewer than two live dimensions.
        correlation_max: the largest |off-diagonal correlation|.
        correlation_pair: the two dimensions that have it.
        eigenvalues: (D) of the covariance, descending.
        components_90, components_99: principal components for these shares of the variance.
        stable_rank: trace C / λ₁.
        participation_ratio: (Σ λ)² / Σ λ².
    """

    vectors: int
    width: int
    norm_mean: float
    norm_std: float
    norm_min: float
    norm_max: float
    mean_norm: float
    std: tuple[float, ...]
    dead_below: float
    dead: tuple[int, ...]
    correlation_mean: float | None
    correlation_max: float | None
    correlation_pair: tuple[int, int] | None
    eigenvalues: tuple[float, ...]
    components_90: int
    components_99: int
    stable_rank: float
    participation_ratio: float

    def pca_curve(self) -> list[float]:
        """(D) the share of the variance that the first 1, 2, … components have."""
        values_D = torch.tensor(self.eigenvalues, dtype=torch.float64)
        shares: list[float] = (values_D.cumsum(0) / values_D.sum()).tolist()
        return shares


class GeometryReducer(Reducer):
    """A reducer for ``record(…, reduce={tap: GeometryReducer()})``; ``result()`` is a Geometry.

    It holds 8·D² bytes and, while it takes a piece, as much again and some blocks of 4,096
    vectors; products of a block are made in the vectors' dtype, at least fp32, about a vector near
    the mean, and summed in fp64.

    Args:
        dead_below: see :class:`Geometry`.

    Raises:
        InputError: a bound outside [0, 1).
    """

    def __init__(self, dead_below: float = DEAD_BELOW) -> None:
        super().__init__()
        if not 0.0 <= dead_below < 1.0:
            raise InputError(f"dead_below={dead_below}: must be at least 0 and below 1")
        self.dead_below = dead_below
        self._covariance, self._norms = Covariance(), Norms()

    def _update(self, x: Tensor, places: Tensor) -> None:
        if x.ndim != 2:
            raise InputError(
                f"GeometryReducer: a tap with axes {tuple(x.shape[1:])} at each position; it needs "
                "one vector"
            )
        for part_ND, part_places in zip(x.split(PIECE), places.split(PIECE), strict=True):
            self._covariance.update(part_ND, part_places)
            self._norms.update(part_ND, part_places)

    def _merge(self, other: GeometryReducer) -> None:
        self._covariance.merge(other._covariance)
        self._norms.merge(other._norms)

    def _settings(self) -> tuple[Any, ...]:
        return (self.dead_below,)

    def result(self) -> Geometry:
        """The geometry of everything so far.

        Raises:
            InputError: fewer than two vectors, or vectors that are not finite or all equal.
        """
        if self.count < 2:
            raise InputError(f"geometry of {self.count} vectors: needs at least 2")
        mean_D, covariance_DD = self._covariance.result()
        norms = self._norms.result()
        variance_D = covariance_DD.diagonal().clamp(min=0.0)
        total = float(variance_D.sum())
        if not total > 0.0 or total == float("inf"):
            raise InputError(
                f"geometry of {self.count} vectors whose variance is {total}: they must be finite "
                "and differ"
            )
        std_D = variance_D.sqrt()
        dead_D = std_D <= self.dead_below * float(variance_D.mean().sqrt())
        mean, largest, pair = _correlations(covariance_DD, std_D, ~dead_D)
        eigenvalues_D = torch.linalg.eigvalsh(covariance_DD).flip(0).clamp(min=0.0)
        return Geometry(
            vectors=self.count,
            width=len(mean_D),
            norm_mean=norms["mean"],
            norm_std=norms["std"],
            norm_min=norms["min"],
            norm_max=norms["max"],
            mean_norm=float(mean_D.norm()),
            std=tuple(std_D.tolist()),
            dead_below=self.dead_below,
            dead=tuple(dead_D.nonzero().flatten().tolist()),
            correlation_mean=mean,
            correlation_max=largest,
            correlation_pair=pair,
            eigenvalues=tuple(eigenvalues_D.tolist()),
            components_90=_components(eigenvalues_D, 0.90),
            components_99=_components(eigenvalues_D, 0.99),
            stable_rank=float(eigenvalues_D.sum() / eigenvalues_D[0]),
            participation_ratio=float(eigenvalues_D.sum() ** 2 / eigenvalues_D.square().sum()),
        )


def _correlations(
    covariance_DD: Tensor, std_D: Tensor, live_D: Tensor
) -> tuple[float | None, float | None, tuple[int, int] | None]:
    index_L = live_D.nonzero().flatten()
    live = len(index_L)
    if live < 2:
        return None, None, None
    sizes_LL = covariance_DD[index_L][:, index_L].abs_()
    sizes_LL.div_(std_D[index_L]).div_(std_D[index_L, None]).fill_diagonal_(0.0)
    place = int(sizes_LL.argmax())
    pair = (int(index_L[place // live]), int(index_L[place % live]))
    mean = float(sizes_LL.sum()) / (live * (live - 1))
    return mean, float(sizes_LL.flatten()[place]), (min(pair), max(pair))


def _components(eigenvalues_D: Tensor, share: float) -> int:
    sums_D = eigenvalues_D.cumsum(0)
    # a rounding error at the very end must not ask for one component more than there are
    bound = share * float(sums_D[-1]) * (1.0 - 1e-12)
    return min(int((sums_D < bound).sum()) + 1, len(sums_D))


def vector_geometry(vectors: Tensor, *, dead_below: float = DEAD_BELOW) -> Geometry:
    """Geometry of vectors that are at hand.

    Args:
        vectors: (…,D), such as ``tape["state.predicted"]`` (B,T,D).
        dead_below: see :class:`Geometry`.

    Raises:
        InputError: fewer than two vectors, or vectors that are not finite or all equal.
    """
    if vectors.ndim < 2:
        raise InputError(f"vectors of shape {tuple(vectors.shape)}: must be (…, width)")
    reducer = GeometryReducer(dead_below)
    reducer.update(vectors.flatten(0, -2))
    return reducer.result()


def measure_geometry(
    model: LanguageModel,
    ids_WT: Tensor,
    *,
    tap: str | None = None,
    batch_size: int = 8,
    dead_below: float = DEAD_BELOW,
) -> Geometry:
    """Read windows of a text and measure the geometry of the vectors at a tap, streaming.

    Args:
        model: any model; it comes back in the mode it was in.
        ids_WT: windows, each read from an empty state (``cut_windows``).
        tap: one vector at each position; None for the one that the head reads
            (``passes.state_tap``).
        batch_size: windows of a forward.
        dead_below: see :class:`Geometry`.

    Raises:
        InputError: an unknown tap, or windows that do not fit the model.
    """
    check_windows(model, ids_WT, batch_size)
    name = state_tap(model, tap)
    with record(model, reduce={name: GeometryReducer(dead_below)}) as tape:
        for ids_BT in ids_WT.split(batch_size):
            with inference(model):
                model(ids_BT.to(model.device))
    found = tape.result(name)
    assert isinstance(found, Geometry)
    return found
