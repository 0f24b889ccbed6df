"""The gated delta-rule memory by chunks of steps: what happens once per chunk.

Inside a chunk the memory M₀ of its start is only read; the rank-one updates k uᵀ are kept as rows
and flushed together. With G the cumulative log decay from the chunk's start,
    M_t = e^{G_t} M₀ + Σ_{i≤t} e^{G_t − G_i} k_i u_iᵀ
and, with Λ = dL/dM at the chunk's end and w = β·du,
    Λ_t = e^{G_C − G_t} Λ_C + Σ_{i≥t} e^{G_i − G_t} q_i do_iᵀ − Σ_{i>t} e^{G_{i−1} − G_t} k_i w_iᵀ.
All exponents are ≤ 0. Exact; the rule predicts from the UNDECAYED memory. See docs/performance.md.

Legend: B batch, H heads, X = B·H, C steps of a chunk, K d_key, U d_val, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ChunkGrads", "ChunkRows", "flush", "flush_backward", "layer_outputs", "schedule"]

CHUNK = 32


@dataclass
class ChunkRows:
    """A chunk's rows: keys (B,H,C,K), updates u (B,H,C,U), cumulative log decay G (B,H,C)."""

    keys: Tensor
    updates: Tensor
    decay: Tensor

    @staticmethod
    def empty(batch: int, heads: int, d_key: int, d_val: int, like: Tensor) -> ChunkRows:
        return ChunkRows(
            like.new_zeros(batch, heads, CHUNK, d_key),
            like.new_zeros(batch, heads, CHUNK, d_val),
            like.new_zeros(batch, heads, CHUNK),
        )


@dataclass
class ChunkGrads:
    """What the backward keeps for a chunk.

    queries (L,B,H,C,K), douts (L,B,H,C,U), w = β·du (B,H,C,U), and the running scalar
    φ = ⟨Λ_t, M_t⟩ (B,H), from which the decay's gradient follows without a product of matrices.
    """

    queries: Tensor
    douts: Tensor
    w: Tensor
    phi: Tensor


def schedule(steps: int, reset_T: Tensor | None) -> list[tuple[int, int]]:
    """Chunks as (start, end): every CHUNK steps, and before each step at which a row resets."""
    cuts = set() if reset_T is None else set(reset_T.nonzero().flatten().tolist())
    chunks, start = [], 0
    for t in range(1, steps + 1):
        if t == steps or t in cuts or t - start == CHUNK:
            chunks.append((start, t))
            start = t
    return chunks


def flush(memory: Tensor, rows: ChunkRows, n: int, out: Tensor) -> None:
    """out ← M after n steps of the chunk."""
    G = rows.decay[:, :, :n]
    last = G[:, :, -1:]
    weighted = rows.keys[:, :, :n] * torch.exp(last - G)[..., None]
    torch.matmul(weighted.transpose(-1, -2), rows.updates[:, :, :n], out=out)
    out.addcmul_(memory, torch.exp(last)[..., None])


def layer_outputs(memory: Tensor, rows: ChunkRows, queries: Tensor, n: int) -> Tensor:
    """(L,B,H,C,U): o_t = M_tᵀ q_t for n steps at once."""
    G = rows.decay[:, :, :n]
    keys, updates = rows.keys[:, :, :n], rows.updates[:, :, :n]
    ratio = (G[..., :, None] - G[..., None, :]).clamp_(max=0.0).exp_().tril_()
    q = queries[..., :n, :]
    inside = (q @ keys.transpose(-1, -2) * ratio) @ updates
    return inside.addcmul_(q @ memory, torch.exp(G)[..., None])


def flush_backward(lam: Tensor, rows: ChunkRows, grads: ChunkGrads, n: int) -> Tensor:
    """Λ at the chunk's start from Λ at its end."""
    G = rows.decay[:, :, :n]
    before = torch.cat([torch.zeros_like(G[:, :, :1]), G[:, :, :-1]], -1)
    keys = rows.keys[:, :, :n] * -torch.exp(before)[..., None]
    start = keys.transpose(-1, -2) @ grads.w[:, :, :n]
    start.addcmul_(lam, torch.exp(G[:, :, -1:])[..., None])
    weight = torch.exp(G)[..., None]
    for queries, douts in zip(grads.queries, grads.douts, strict=True):
        start += (queries[:, :, :n] * weight).transpose(-1, -2) @ douts[:, :, :n]
    return start
