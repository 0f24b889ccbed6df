"""The two-layer feed-forward network of a Transformer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.dropout import dropout
from palimpsest.layers.init import linear

__all__ = ["FeedForward"]


class FeedForward(nn.Module):
    """Linear(d, 4d), exact GELU, dropout, Linear(4d, d), with biases.

    Args:
        d_model: d.
        dropout: probability of dropping a hidden unit while training.
    """

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.rise = linear(d_model, 4 * d_model, bias=True)
        self.fall = linear(4 * d_model, d_model, bias=True)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.rise(x))
        y: Tensor = self.fall(dropout(hidden, self.dropout, self.training))
        return y
