"""Causal self-attention with rotary positions, whose query heads may share keys and values.

Legend: B batch, T time, N cached positions with the T new ones, D d_model, H query heads, G heads
of keys and values, K = D / H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palimpsest.layers.attention import ATTENTION_TAPS, show_projections
from palimpsest.layers.growing import Growing
from palimpsest.layers.init import linear
from palimpsest.layers.rotary import rotate
from palimpsest.ops.library_kernels import attend
from palimpsest.taps import Tap, tap

__all__ = ["GroupedAttention"]


class GroupedAttention(nn.Module):
    """Attention without biases, by ``scaled_dot_product_attention``.

    ``project`` ((H+2G)·K, D) holds the rows of the queries, the keys, then the values, head by
    head: one product makes all. Query heads 0 … H/G - 1 read the first head of keys, and so on.
    Keys are cached turned, so that none is turned twice.

    Args:
        d_model: D.
        n_heads: H, which divides D.
        n_kv_heads: G, which divides H.
        out_std: standard deviation with which the output projection starts; the other starts
            with 0.02.

    Source:
        arXiv 1706.03762; shared keys and values: arXiv 2305.13245.
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, out_std: float = 0.02) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        width = d_model // n_heads
        self.project = linear(d_model, (n_heads + 2 * n_kv_heads) * width)
        self.out = linear(d_model, d_model, std=out_std)

    def forward(
        self, n_BTD: Tensor, past: Growing, mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Growing]:
        """What each position reads (B,T,D), and the keys and values with the new ones.

        Args:
            n_BTD: the normed input.
            past: turned keys, and values, (B,N-T,2,G,K) of earlier positions.
            mask: from ``AttentionCache.extend``.
            angles: of the new positions, from ``rotary_angles``.
        """
        heads, groups = self.n_heads, self.n_kv_heads
        projected = self.project(n_BTD).unflatten(-1, (heads + 2 * groups, -1))
        turned = rotate(projected[:, :, : heads + groups], angles)
        query = turned[:, :, :heads].transpose(1, 2)
        new = torch.stack([turned[:, :, heads:], projected[:, :, heads + groups :]], dim=2)
        show_projections(self, turned[:, :, :heads], *new.unbind(2))
        keys_values = past.append(new)
        keys, values = keys_values.entries.to(query.dtype).unbind(2)
        read_BHTK = attend(
            query,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask,
            causal=mask is None and past.length == 0,
        )
        read_BTHK = tap(self, "memory_read", read_BHTK.transpose(1, 2))
        return self.out(read_BTHK.flatten(2)), keys_values

    def describe_taps(self) -> dict[str, Tap]:
        return ATTENTION_TAPS
