"""Kernels of PyTorch that have no second derivatives, each with a form that has them.

Inside ``force_backend("reference")`` the differentiable form runs; otherwise the kernel does, and a
backward pass with ``create_graph=True`` raises the same error as our own fast backends.

B batch, H heads, G heads of keys, T positions, N keys, K width, M rows, J entries of a row, V rows
of a table, D width of the table.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from palimpsest.ops.dispatch import reference_everywhere
from palimpsest.ops.first_order import guard_outputs

__all__ = ["attend", "weighted_rows"]


def attend(
    query_BHTK: Tensor,
    keys_BGNK: Tensor,
    values_BGNK: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    dropout: float = 0.0,
) -> Tensor:
    """``scaled_dot_product_attention``: what each position reads, (B,H,T,K).

    Args:
        query_BHTK: H is a multiple of G.
        keys_BGNK, values_BGNK: those of all positions.
        mask: True where a query may read a key, broadcastable to (B,H,T,N); None for all.
        causal: a query may read the keys up to its own index.
        dropout: probability of dropping an attention weight.
    """
    with sdpa_kernel(SDPBackend.MATH) if reference_everywhere() else nullcontext():
        read_BHTK = F.scaled_dot_product_attention(
            query_BHTK,
            keys_BGNK,
            values_BGNK,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=causal,
            enable_gqa=query_BHTK.shape[1] != keys_BGNK.shape[1],
        )
    if _fused(read_BHTK):
        guard_outputs("attention", read_BHTK)
    return read_BHTK


def _fused(read: Tensor) -> bool:
    """Whether a fused kernel ran and will be differentiated."""
    node: Any = read.grad_fn
    for _ in range(3):  # the kernel pads uneven widths, and its output is cut back
        if node is None:
            return False
        if node.name().startswith("ScaledDotProduct"):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def weighted_rows(ids_MJ: Tensor, table_VD: Tensor, weights_MJ: Tensor) -> Tensor:
    """Rows of a table, looked up and summed with weights: (M,D).

    Args:
        ids_MJ: which rows.
        table_VD: the table, in the dtype of the weights.
        weights_MJ: their weights.
    """
    if reference_everywhere():
        return (weights_MJ.unsqueeze(-1) * F.embedding(ids_MJ, table_VD)).sum(1)
    # the rows never exist side by side
    summed_MD = F.embedding_bag(ids_MJ, table_VD, mode="sum", per_sample_weights=weights_MJ)
    guard_outputs("topk_retrieval", summed_MD)
    return summed_MD
