"""The norms' weights; the arithmetic is the ops' own, so that there is one definition of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palimpsest.ops.grounded_loop.reference import RMS_EPS, rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, computed in at least fp32, in which it is returned.

    Args:
        width: entries that are normed together.
        eps: added to the mean square; 1e-6 unless told.
    """

    def __init__(self, width: int, eps: float = RMS_EPS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
