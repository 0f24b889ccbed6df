"""Floating-point operations of a forward pass: what models count them with.

A multiply-add is two operations. Counted are the products with parameters, of queries with keys
and of weights with values (T × T of them, the masked half included, as PyTorch's own counter and
the papers do), convolutions, and what recurrences do to each entry of their states. Left out is
what costs one operation an entry of the stream: norms, activations, gates, residual sums, softmax,
positions; and look-ups of embeddings, sorting, and the loss.

A recurrence is counted as its equation says, a token at a time. Chunked forms do more products
than that, and are faster for it.
"""

from __future__ import annotations

from torch import nn

__all__ = ["attention", "memory_read", "memory_write", "pair_memory", "products"]


def products(length: int, *modules: nn.Module) -> int:
    """Products of every position with every matrix in some modules.

    Embeddings, which are looked up, do not belong into ``modules``. A convolution's kernel counts
    in full: each of its entries meets each position once.

    Args:
        length: T.
        modules: where the matrices are; parameters of one dimension are not counted.
    """
    entries = sum(p.numel() for m in modules for p in m.parameters() if p.ndim >= 2)
    return 2 * length * entries


def attention(length: int, width: int) -> int:
    """Scores and their mixture of values, in one layer: 4 T² · width.

    Args:
        length: T.
        width: of all query heads together.
    """
    return 4 * length * length * width


def memory_read(length: int, entries: int) -> int:
    """One product of a vector with a memory, at every position.

    Args:
        length: T.
        entries: numbers in the memory, all heads together.
    """
    return 2 * length * entries


def memory_write(length: int, entries: int) -> int:
    """Decay of a memory, and an outer product added to it, at every position.

    Args:
        length: T.
        entries: numbers in the memory, all heads together.
    """
    return 3 * length * entries


def pair_memory(length: int, n_heads: int, state_dim: int, n_slots: int) -> int:
    """The running state and the pair memory of one triple-latent layer, both written and read.

    Args:
        length: T.
        n_heads: H.
        state_dim: S.
        n_slots: R, or 0 for the memory in full.
    """
    entries = n_heads * state_dim * (2 * n_slots or state_dim)
    running = memory_write(length, n_heads * state_dim)
    return running + memory_write(length, entries) + memory_read(length, entries)
