"""The gated delta-rule memory by chunks of steps, and a window's division into blocks of chunks.

Inside a chunk the memory M₀ of its start is only read; the rank-one updates k uᵀ are kept as rows
and flushed together. With G the cumulative log decay from the chunk's start,
    M_t = e^{G_t} M₀ + Σ_{i≤t} e^{G_t − G_i} k_i u_iᵀ
and, with Λ = dL/dM at the chunk's end and w = β·du,
    Λ_t = e^{G_C − G_t} Λ_C + Σ_{i≥t} e^{G_i − G_t} q_i do_iᵀ − Σ_{i>t} e^{G_{i−1} − G_t} k_i w_iᵀ.
All exponents are ≤ 0. Exact; the rule predicts from the UNDECAYED memory.

The memory is saved at the start of each block only; the backward flushes a block's chunks again.

Legend: B batch, H heads, S steps of a block or chunk, K d_key, U d_val, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "BLOCK_ROWS",
    "CHUNK",
    "ChunkGrads",
    "ChunkRows",
    "block_steps",
    "flush",
    "flush_backward",
    "layer_outputs",
    "schedule",
]

CHUNK = 8  # measured: 8 beats 16 and 32, whose sums inside a chunk cost more than the flushes
BLOCK_ROWS = 2048  # steps × batch of a block: enough for the weights' products to run at full speed

Chunk = tuple[int, int]


@dataclass
class ChunkRows:
    """Rows of a chunk (or block): keys (B,H,S,K), updates u (B,H,S,U), decay G (B,H,S).

    G is the cumulative log decay from the start of the row's own chunk.
    """

    keys: Tensor
    updates: Tensor
    decay: Tensor

    @staticmethod
    def empty(
        batch: int, heads: int, steps: int, d_key: int, d_val: int, like: Tensor
    ) -> ChunkRows:
        return ChunkRows(
            like.new_zeros(batch, heads, steps, d_key),
            like.new_zeros(batch, heads, steps, d_val),
            like.new_zeros(batch, heads, steps),
        )

    def part(self, lo: int, hi: int) -> ChunkRows:
        """Views of some steps."""
        at = (slice(None), slice(None), slice(lo, hi))
        return ChunkRows(self.keys[at], self.updates[at], self.decay[at])


@dataclass
class ChunkGrads:
    """What the backward keeps of a block.

    queries (L,B,H,S,K), douts (L,B,H,S,U), w = β·du (B,H,S,U), and the running scalar
    φ = ⟨Λ_t, M_t⟩ (B,H), from which the decay's gradient follows without a product of matrices.
    """

    queries: Tensor
    douts: Tensor
    w: Tensor
    phi: Tensor


def block_steps(batch: int) -> int:
    """Most steps of a block."""
    return max(1, BLOCK_ROWS // batch // CHUNK) * CHUNK


def schedule(steps: int, batch: int, reset_T: Tensor | None) -> list[list[Chunk]]:
    """Blocks of chunks (start, end): a chunk also ends before each step at which a row resets."""
    cuts = set() if reset_T is None else set(reset_T.nonzero().flatten().tolist())
    blocks: list[list[Chunk]] = [[]]
    start = 0
    for t in range(1, steps + 1):
        if t == steps or t in cuts or t - start == CHUNK:
            if blocks[-1] and t - blocks[-1][0][0] > block_steps(batch):
                blocks.append([])
            blocks[-1].append((start, t))
            start = t
    return [block for block in blocks if block]


def flush(memory: Tensor, rows: ChunkRows) -> None:
    """M after the rows of a chunk, in place."""
    last = rows.decay[:, :, -1:]
    weighted = rows.keys * torch.exp(last - rows.decay)[..., None]
    memory.mul_(torch.exp(last)[..., None]).add_(weighted.transpose(-1, -2) @ rows.updates)


def layer_outputs(memory: Tensor, rows: ChunkRows, queries: Tensor) -> Tensor:
    """(L,B,H,S,U): o_t = M_tᵀ q_t for all steps of a chunk at once."""
    G = rows.decay
    ratio = (G[..., :, None] - G[..., None, :]).clamp_(max=0.0).exp_().tril_()
    inside = (queries @ rows.keys.transpose(-1, -2) * ratio) @ rows.updates
    return inside.addcmul_(queries @ memory, torch.exp(G)[..., None])


def flush_backward(lam: Tensor, rows: ChunkRows, queries: Tensor, douts: Tensor, w: Tensor) -> None:
    """Λ at a chunk's start from Λ at its end, in place."""
    G = rows.decay
    before = torch.cat([torch.zeros_like(G[:, :, :1]), G[:, :, :-1]], -1)
    keys = rows.keys * torch.exp(before)[..., None]
    lam.mul_(torch.exp(G[:, :, -1:])[..., None]).sub_(keys.transpose(-1, -2) @ w)
    weight = torch.exp(G)[..., None]
    for q, do in zip(queries, douts, strict=True):
        lam += (q * weight).transpose(-1, -2) @ do
