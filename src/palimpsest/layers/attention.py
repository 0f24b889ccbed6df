"""Causal self-attention with a cache of keys and values that grows with the text.

Legend: B batch, T time, N cached positions with the T new ones, D d_model, H heads, K = D / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.documents import first_readable
from palimpsest.layers.growing import Growing
from palimpsest.layers.init import linear, xavier_uniform_
from palimpsest.ops.library_kernels import attend
from palimpsest.state import State
from palimpsest.taps import Tap, tap

__all__ = ["ATTENTION_TAPS", "AttentionCache", "CausalSelfAttention", "show_projections"]

ATTENTION_TAPS = {
    "query": Tap("(B,T,H,K)", "queries"),
    "key": Tap("(B,T,G,K)", "keys as they are cached, of the G heads that have them"),
    "value": Tap("(B,T,G,K)", "values as they are cached"),
    "memory_read": Tap(
        "(B,T,H,K)", "what each head reads, before the projection", replaceable=True
    ),
}


def show_projections(
    module: nn.Module, query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor
) -> None:
    """The first three taps of an attention layer."""
    tap(module, "query", query_BTHK)
    tap(module, "key", key_BTGK)
    tap(module, "value", value_BTGK)


@dataclass(frozen=True)
class AttentionCache(State):
    """Keys and values of all positions so far, and which of them a row may read.

    Attributes:
        keys_values: for each layer (B,N,2,H,K), in the dtype in which they were computed.
        real: (B,N) bool, False at padding.
        first: (B,) the first position of the row's current document.
        masked: (B,) bool, whether there are any positions that the row may not read; without any,
            attention runs without a mask.
    """

    kind: ClassVar[str] = "attention-cache"

    keys_values: tuple[Growing, ...]
    real: Growing
    first: Tensor
    masked: Tensor

    @staticmethod
    def empty(
        batch: int,
        n_layers: int,
        n_heads: int,
        width: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> AttentionCache:
        """A cache of no positions."""
        layer = torch.zeros(batch, 0, 2, n_heads, width, device=device, dtype=dtype)
        flags = torch.zeros(batch, 0, device=device, dtype=torch.bool)
        return AttentionCache(
            tuple(Growing(layer) for _ in range(n_layers)),
            Growing(flags),
            torch.zeros(batch, device=device, dtype=torch.long),
            torch.zeros(batch, device=device, dtype=torch.bool),
        )

    def extend(
        self, length: int, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[AttentionCache, Tensor | None]:
        """Make room for new positions, whose keys and values the layers append.

        Args:
            length: T.
            hold_BT: True at padding, which is never read.
            reset_BT: True where a document starts; earlier ones are not read from there on.

        Returns:
            The cache, its keys and values still to be appended, and the mask (B,1,T,N) of what
            each new position reads, or None where plain causal attention is right.
        """
        past = self.real.length
        if hold_BT is None:
            written_BT = self.first.new_ones(len(self.first), length, dtype=torch.bool)
        else:
            written_BT = ~hold_BT
        real, masked_B = self.real.append(written_BT), self.masked
        if hold_BT is not None:
            masked_B = masked_B | hold_BT.any(1)
        if reset_BT is not None:
            masked_B = masked_B | reset_BT.any(1)
        first_BT = first_readable(self.first, length, past, reset_BT)
        cache = AttentionCache(self.keys_values, real, first_BT[:, -1].clone(), masked_B)
        if past == 0 and hold_BT is None and reset_BT is None:
            return cache, None
        some_masked = bool(masked_B.any())
        if length == 1 and not some_masked:
            return cache, None
        column_N = torch.arange(past + length, device=self.first.device)
        own_T1 = column_N[past:, None]
        mask = (column_N <= own_T1)[None]
        if some_masked:
            mask = mask & (column_N >= first_BT[..., None]) & real.entries[:, None]
            mask = mask | (column_N == own_T1)  # padding reads itself: no softmax over nothing
        return cache, mask[:, None]

    def forget_unreadable(self) -> AttentionCache:
        """Drop the positions at the front that no row can read any more."""
        count = int(self.first.min())
        if count == 0:
            return self
        return AttentionCache(
            tuple(layer.without_first(count) for layer in self.keys_values),
            self.real.without_first(count),
            self.first - count,
            self.masked,
        )


class CausalSelfAttention(nn.Module):
    """Multi-head self-attention with biases, by ``scaled_dot_product_attention``.

    Starts as torch's own MultiheadAttention does in the published model: the joint projection
    Xavier-uniform, the output projection normal of std 0.02, biases zero.

    Args:
        d_model: D.
        n_heads: H, which divides D.
        dropout: probability of dropping an attention weight while training.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out = linear(d_model, d_model, bias=True)
        xavier_uniform_(self.weight)

    def forward(self, n_BTD: Tensor, past: Growing, mask: Tensor | None) -> tuple[Tensor, Growing]:
        """What each position reads (B,T,D), and the keys and values with the new ones.

        Args:
            n_BTD: the normed input.
            past: keys and values (B,N-T,2,H,K) of earlier positions.
            mask: from :meth:`AttentionCache.extend`.
        """
        projected = F.linear(n_BTD, self.weight, self.bias).unflatten(-1, (3, self.n_heads, -1))
        show_projections(self, *projected.unbind(2))
        keys_values = past.append(projected[:, :, 1:])
        keys, values = keys_values.entries.unbind(2)
        query = projected[:, :, 0].transpose(1, 2)
        keys, values = keys.to(query.dtype), values.to(query.dtype)
        read_BHTK = attend(
            query,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask,
            causal=mask is None and past.length == 0,
            dropout=self.dropout if self.training else 0.0,
        )
        read_BTHK = tap(self, "memory_read", read_BHTK.transpose(1, 2))
        return self.out(read_BTHK.flatten(2)), keys_values

    def describe_taps(self) -> dict[str, Tap]:
        return ATTENTION_TAPS
