"""The way of the state through its two directions of greatest variance.

The states of a long text do not fit into memory: they are kept in a temporary file while their
covariance is summed, and are projected when it is known.

Legend: N positions, F entries of a state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.analysis import Covariance

__all__ = ["Trajectory", "align"]

BLOCK = 1024  # positions projected at once
PLACES = torch.zeros(0, 2, dtype=torch.long)


class Trajectory:
    """Collects states, then gives their projection. Use it as a context manager."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        self._covariance = Covariance()
        self._width = 0

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, state_NF: Tensor) -> None:
        """Take the states of the next positions."""
        state_NF = state_NF.flatten(1).float().cpu()
        self._width = state_NF.shape[1]
        self._covariance.update(state_NF, PLACES)
        self._file.write(state_NF.contiguous().numpy().tobytes())

    def project(self) -> tuple[NDArray[np.float32], tuple[float, float]]:
        """Points and shares.

        Returns:
            (N,2) coordinates about the mean, in the units of the state, and the share of the
            variance that each of the two directions has. The entry of a direction that is
            largest in size is positive, so that a run gives the same picture twice.
        """
        mean_F, covariance_FF = self._covariance.result()
        values_F, vectors_FF = torch.linalg.eigh(covariance_FF)
        axes_F2 = vectors_FF[:, -2:].flip(1)
        if axes_F2.shape[1] < 2:  # a state of one number
            axes_F2 = torch.cat([axes_F2, torch.zeros_like(axes_F2)], 1)
        largest = axes_F2.abs().argmax(0, keepdim=True)
        sign = axes_F2.gather(0, largest).sign()
        axes_F2 = axes_F2 * torch.where(sign == 0, 1.0, sign)
        points = [
            ((block_NF.double() - mean_F) @ axes_F2).float().numpy() for block_NF in self._blocks()
        ]
        total = max(float(values_F.clamp(min=0).sum()), 1e-30)
        shares = [float(v) / total for v in values_F.flip(0)[:2].clamp(min=0)]
        shares += [0.0] * (2 - len(shares))
        return np.concatenate(points), (shares[0], shares[1])

    def _blocks(self) -> Iterator[Tensor]:
        self._file.seek(0)
        size = BLOCK * self._width * 4
        while data := self._file.read(size):
            block = np.frombuffer(data, dtype=np.float32).reshape(-1, self._width)
            yield torch.from_numpy(block.copy())


def align(points_N2: NDArray[np.float32], like_N2: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn (and mirror) a trajectory about its mean to lie as near as it can to another one.

    Distances are unchanged. Both must have the same positions.
    """
    cross = points_N2.astype(np.float64).T @ like_N2.astype(np.float64)
    left, _, right = np.linalg.svd(cross)
    turned: NDArray[np.float32] = (points_N2 @ (left @ right)).astype(np.float32)
    return turned
