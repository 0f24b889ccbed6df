"""The norms' weights; the arithmetic is the ops' own, so that there is one definition of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palimpsest.ops.grounded_loop.reference import rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + 1e-6) · weight, computed in at least fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)
