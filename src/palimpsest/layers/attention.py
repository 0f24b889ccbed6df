"""Causal self-attention with a cache of keys and values, of the whole text or of a window.

Legend: B batch, T time, N cached positions with the T new ones, D d_model, H heads, K = D / H.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.documents import first_readable, oldest_in_window
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
        window: each position reads itself and the ``window - 1`` tokens before it; 0: all tokens
            before it. The cache then keeps ``window - 1`` tokens, whatever the length of the text.
    """

    kind: ClassVar[str] = "attention-cache"

    keys_values: tuple[Growing, ...]
    real: Growing
    first: Tensor
    masked: Tensor
    window: int = 0

    @staticmethod
    def empty(
        batch: int,
        n_layers: int,
        n_heads: int,
        width: int,
        device: torch.device | str,
        dtype: torch.dtype,
        window: int = 0,
    ) -> AttentionCache:
        """A cache of no positions."""
        layer = torch.zeros(batch, 0, 2, n_heads, width, device=device, dtype=dtype)
        flags = torch.zeros(batch, 0, device=device, dtype=torch.bool)
        return AttentionCache(
            tuple(Growing(layer) for _ in range(n_layers)),
            Growing(flags),
            torch.zeros(batch, device=device, dtype=torch.long),
            torch.zeros(batch, device=device, dtype=torch.bool),
            window,
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
        past, total = self.real.length, self.real.length + length
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
        first_B = first_BT[:, -1].clone()
        too_many = 0 < self.window < total  # more entries than one position reads
        if 0 < self.window <= total:
            oldest_BT = oldest_in_window(real.entries, length, self.window)
            first_BT = torch.maximum(first_BT, oldest_BT[:, :-1])
            first_B = torch.maximum(first_B, oldest_BT[:, -1].clone())
        cache = AttentionCache(self.keys_values, real, first_B, masked_B, self.window)
        if past == 0 and hold_BT is None and reset_BT is None and not too_many:
            return cache, None
        some_masked = too_many or bool(masked_B.any())
        if length == 1 and not some_masked:
            return cache, None
        column_N = torch.arange(total, device=self.first.device)
        own_T1 = column_N[past:, None]
        mask = (column_N <= own_T1)[None]
        if some_masked:
            mask = mask & (column_N >= first_BT[..., None]) & real.entries[:, None]
            mask = mask | (column_N == own_T1)  # padding reads itself: no softmax over nothing
        return cache, mask[:, None]

    def with_layers(self, keys_values: list[Growing], *, forget: bool) -> AttentionCache:
        """The cache with what the layers appended.

        Args:
            keys_values: of each layer, the new ones included.
            forget: drop positions that no row reads again; with a window that is always done.
        """
        cache = dataclasses.replace(self, keys_values=tuple(keys_values))
        if not forget and not self.window:
            return cache
        count = min(int(self.first.min()), self.real.length)
        if count:
            cache = AttentionCache(
                tuple(layer.without_first(count) for layer in cache.keys_values),
                self.real.without_first(count),
                self.first - count,
                self.masked,
                self.window,
            )
        if not self.window:
            return cache
        if cache.real.length >= 2 * self.window:
            return cache._compact()
        # padding and earlier documents that have left the window cost no mask any more
        masked_B = (cache.first > 0) | ~cache.real.entries.all(1)
        return dataclasses.replace(cache, masked=masked_B)

    def _compact(self) -> AttentionCache:
        """Each row's readable tokens only, at the end of its row: a row that is held while others
        go on must not make the cache grow."""
        column_N = torch.arange(self.real.length, device=self.first.device)
        readable_BN = self.real.entries & (column_N >= self.first[:, None])
        count_B = readable_BN.sum(1)
        kept = int(count_B.max())
        # a stable sort moves them to the end in their order
        order_BN = readable_BN.long().argsort(dim=1, stable=True)[:, self.real.length - kept :]
        row_B1 = torch.arange(len(order_BN), device=order_BN.device)[:, None]
        return AttentionCache(
            tuple(Growing(layer.entries[row_B1, order_BN]) for layer in self.keys_values),
            Growing(readable_BN.gather(1, order_BN)),
            kept - count_B,
            count_B < kept,
            self.window,
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
