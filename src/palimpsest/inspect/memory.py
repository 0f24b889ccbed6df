"""Pictures of the memory matrices at a few positions of the text.

The size of the pictures is bounded: at most 64 positions, evenly spaced over the text and fewer for
many heads; at most 128 matrices; at most 24 rows and columns of each, where a cell of a larger
matrix is the entry of largest magnitude in its block.

Legend: N tokens, M recorded positions, H heads, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Memory", "MemoryPictures", "choose_positions"]

POSITIONS = 64
SIDE = 24  # rows and columns of a picture
MATRICES = 128
CELLS = 400_000  # of all pictures of a model: one byte each


@dataclass(frozen=True)
class Memory:
    """The memory matrices of one layer at the recorded positions.

    Attributes:
        layer: its number, or "" if the model has one memory.
        positions_M: the token after whose write each was recorded, ascending.
        names: of the heads, such as "3", or "0.3" with several memories per head.
        values_MHRC: -127 to 127, in units of ``scale_H / 127``.
        scale_H: the largest magnitude of each head at the recorded positions.
        shape: rows and columns of the matrix itself.
    """

    layer: str
    positions_M: NDArray[np.int32]
    names: tuple[str, ...]
    values_MHRC: NDArray[np.int8]
    scale_H: NDArray[np.float32]
    shape: tuple[int, int]


def choose_positions(n_tokens: int, n_matrices: int) -> NDArray[np.int64]:
    """Tokens at which the memory is recorded: evenly spaced, the last token among them.

    Args:
        n_tokens: of the text, at least 1.
        n_matrices: heads of all layers, which share the bound on the size.
    """
    each = max(1, min(n_matrices, MATRICES)) * SIDE * SIDE
    count = min(n_tokens, POSITIONS, max(1, CELLS // each))
    return np.unique(np.linspace(n_tokens - 1, 0, count).round().astype(np.int64))


def shrink(matrix: Tensor) -> Tensor:
    """(…,R,C) to at most SIDE rows and columns; the entry of largest magnitude of each block."""
    height, width = (min(size, SIDE) for size in matrix.shape[-2:])
    flat = matrix.reshape(-1, 1, *matrix.shape[-2:])
    high = F.adaptive_max_pool2d(flat, (height, width))
    low = -F.adaptive_max_pool2d(-flat, (height, width))
    return torch.where(high >= -low, high, low).reshape(*matrix.shape[:-2], height, width)


class MemoryPictures:
    """Collects the matrices of every layer.

    Args:
        layers: layer of each tap.
        positions: from :func:`choose_positions`.
    """

    def __init__(self, layers: Mapping[str, str], positions: NDArray[np.int64]) -> None:
        self.layers, self.positions = layers, positions
        self._found: dict[str, list[Tensor]] = {name: [] for name in layers}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def within(self, first: int, last: int) -> Sequence[int]:
        """The recorded tokens from ``first`` up to, not including, ``last``."""
        inside = (self.positions >= first) & (self.positions < last)
        return [int(token) for token in self.positions[inside]]

    def add(self, name: str, matrix: Tensor) -> None:
        """Take the matrices (M,…,R,C) of the next recorded positions."""
        self._shapes[name] = tuple(matrix.shape[1:])
        self._found[name].append(shrink(matrix.float().flatten(1, -3)).cpu())

    def whole(self) -> tuple[Memory, ...]:
        """What was collected: the first 128 matrices, in the order of the layers."""
        made, left = [], MATRICES
        for name, pieces in self._found.items():
            if not pieces or not left:
                continue
            *heads, rows, columns = self._shapes[name]
            names = [".".join(map(str, index)) for index in np.ndindex(*heads)][:left]
            values = torch.cat(pieces)[:, : len(names)].nan_to_num()
            scale_H = values.abs().amax((0, 2, 3))
            units = (values / scale_H.clamp(min=1e-30)[:, None, None] * 127).round()
            made.append(
                Memory(
                    self.layers[name],
                    self.positions.astype(np.int32),
                    tuple(names),
                    units.to(torch.int8).numpy(),
                    scale_H.numpy(),
                    (rows, columns),
                )
            )
            left -= len(names)
        return tuple(made)
