"""The pair memory by chunks, in plain PyTorch with a hand-written backward.

With G the running sum of the log decays inside a chunk and P the memory that the chunk finds:

    read = (Q Kᵀ ⊙ D) V + (exp(G) ⊙ Q) P,   D_{ti} = exp(G_t - G_i) for i ≤ t, else 0
    P'   = exp(G_C) P + (exp(G_C - G) ⊙ K)ᵀ V

and P' from chunk to chunk is a decayed running sum again. The gradient of the log decays needs no
product of its own: G_t enters wherever q_t does, and -G_i wherever k_i does, so
∂/∂G_t = q_t·∂q_t - k_t·∂k_t, summed from the chunk's end, plus P'·∂P' for the chunk's whole decay.

Where value heads share keys, K < H, ``shared.py`` has the arrangement.

B batch, T positions, H value heads, K = G·H key heads, S width of keys, R width of values,
M = B·H independent rows (in the public function: memories), G groups of key heads, N chunks,
C positions of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import apply_gates, without_autocast
from palimpsest.ops.decay_scan.chunked import chunk_sums, decay_matrix, scan_rows
from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.pair_memory.shared import SharedPairMemory, shared_step

__all__ = ["chunk_size", "pair_memory_chunked"]


def chunk_size(width: int) -> int:
    """Positions per chunk for keys and values of this width, by measurement."""
    return 16 if width <= 8 else 32 if width <= 32 else 64


def _chunks(x_BTKS: Tensor, heads: int, chunk: int) -> Tensor:
    """(B, T, G·H, S) to (G, B·H, N, C, S), the last chunk filled with zeros."""
    batch, length, key_heads, width = x_BTKS.shape
    padding = -length % chunk
    if padding:
        x_BTKS = F.pad(x_BTKS, (0, 0, 0, 0, 0, padding))
    x_BNCGHS = x_BTKS.reshape(batch, -1, chunk, key_heads // heads, heads, width)
    return x_BNCGHS.permute(3, 0, 4, 1, 2, 5).reshape(
        key_heads // heads, batch * heads, -1, chunk, width
    )


def _unchunk(x_GMNCS: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of :func:`_chunks`."""
    groups, rows, n_chunks, chunk, width = x_GMNCS.shape
    heads = rows // batch
    x_GBHNCS = x_GMNCS.reshape(groups, batch, heads, n_chunks, chunk, width)
    x_BTGHS = x_GBHNCS.permute(1, 3, 4, 0, 2, 5).reshape(
        batch, n_chunks * chunk, groups * heads, width
    )
    return x_BTGHS[:, :length]


def _carry(updates_GMNSR: Tensor, log_decay_MN: Tensor, initial_GMSR: Tensor) -> Tensor:
    """The memory after every chunk: a decayed running sum over chunks."""
    groups, rows, n_chunks, keys, width = updates_GMNSR.shape
    states = scan_rows(
        updates_GMNSR.reshape(groups * rows, n_chunks, keys * width),
        log_decay_MN.repeat(groups, 1),
        initial_GMSR.reshape(groups * rows, keys * width),
    )
    return states.reshape(groups, rows, n_chunks, keys, width)


class _PairMemory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys_BTKS: Tensor,
        values_BTHR: Tensor,
        queries_BTKS: Tensor,
        log_decay_BTH: Tensor,
        initial_BKSR: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, width = values_BTHR.shape
        key_width = keys_BTKS.shape[3]
        chunk = min(chunk_size(max(width, key_width)), length)
        keys, queries = (_chunks(x, heads, chunk) for x in (keys_BTKS, queries_BTKS))
        values = _chunks(values_BTHR, heads, chunk)  # one group, shared by broadcasting
        log_decay = _chunks(log_decay_BTH.unsqueeze(-1), heads, chunk)[0, ..., 0]
        initial = (
            initial_BKSR.reshape(batch, -1, heads, key_width, width)
            .transpose(0, 1)
            .reshape(-1, batch * heads, key_width, width)
        )
        sums_MNC = chunk_sums(log_decay)
        decay = decay_matrix(sums_MNC, values.dtype)
        to_end = (sums_MNC[..., -1:] - sums_MNC).exp_().to(values.dtype).unsqueeze(-1)
        from_start = sums_MNC.exp().to(values.dtype).unsqueeze(-1)
        scores = torch.matmul(queries, keys.mT).mul_(decay)
        read = torch.matmul(scores, values)
        ends = _carry(torch.matmul((keys * to_end).mT, values), sums_MNC[..., -1], initial)
        found = torch.cat([initial.unsqueeze(2), ends[:, :, :-1]], dim=2)
        read += torch.matmul(queries * from_start, found)
        ctx.save_for_backward(
            keys, values, queries, sums_MNC, decay, to_end, from_start, scores, found, ends
        )
        ctx.length = length
        ctx.batch = batch
        return _unchunk(read, batch, length), _to_state(ends[:, :, -1], batch)

    @staticmethod
    @first_derivatives_only("pair_memory")
    def backward(ctx: Any, d_read_BTKR: Tensor, d_final_BKSR: Tensor) -> tuple[Tensor, ...]:
        with without_autocast(d_read_BTKR.device):
            return _backward(ctx.saved_tensors, d_read_BTKR, d_final_BKSR, ctx.batch, ctx.length)


def _to_state(state_GMSR: Tensor, batch: int) -> Tensor:
    groups, rows, keys, width = state_GMSR.shape
    split = state_GMSR.reshape(groups, batch, rows // batch, keys, width)
    return split.transpose(0, 1).reshape(batch, -1, keys, width)


def _backward(
    saved: tuple[Tensor, ...], d_read_BTKR: Tensor, d_final_BKSR: Tensor, batch: int, length: int
) -> tuple[Tensor, ...]:
    keys, values, queries, sums_MNC, decay, to_end, from_start, scores, found, ends = saved
    groups, rows, _, chunk, key_width = keys.shape
    heads, width = rows // batch, values.shape[-1]
    d_read = _chunks(d_read_BTKR, heads, chunk)
    d_final = (
        d_final_BKSR.reshape(batch, groups, heads, key_width, width)
        .transpose(0, 1)
        .reshape(groups, rows, key_width, width)
    )
    # what each chunk's reads ask of the memory that it found
    asked = torch.matmul((queries * from_start).mT, d_read)
    whole_MN = sums_MNC[..., -1]
    # adjoint of the memory that chunk n leaves: chunk n + 1 asked for it, and passes the rest on
    d_ends = _carry(
        torch.cat([torch.zeros_like(asked[:, :, :1]), asked[:, :, 1:].flip(2)], dim=2),
        F.pad(whole_MN[:, 1:].flip(1), (1, 0)),
        d_final,
    ).flip(2)
    d_found = asked[:, :, 0] + from_start[:, 0, -1:] * d_ends[:, :, 0]
    d_scores = torch.matmul(d_read, values.mT).mul_(decay)
    d_queries = torch.matmul(d_scores, keys)
    d_queries += torch.matmul(d_read, found.mT).mul_(from_start)
    d_keys = torch.matmul(d_scores.mT, queries)
    d_keys += torch.matmul(values, d_ends.mT).mul_(to_end)
    d_values = torch.matmul(scores.mT, d_read)
    d_values += torch.matmul(keys * to_end, d_ends)
    d_sums = (queries * d_queries).sum(-1) - (keys * d_keys).sum(-1)
    d_log = d_sums.flip(-1).cumsum(-1).flip(-1)
    d_log += (ends * d_ends).sum((-1, -2)).unsqueeze(-1)
    return (
        _unchunk(d_keys, batch, length),
        _unchunk(d_values.sum(0, keepdim=True), batch, length),
        _unchunk(d_queries, batch, length),
        _unchunk(d_log.sum(0, keepdim=True).unsqueeze(-1), batch, length)[..., 0],
        _to_state(d_found, batch),
    )


def pair_memory_chunked(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    log_decay_BTH: Tensor,
    initial_BMSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The chunkwise form; arguments as in :func:`palimpsest.ops.pair_memory.pair_memory`."""
    values_BTHR, log_decay_BTH = apply_gates(values_BTHR, log_decay_BTH, hold_BT, reset_BT)
    inputs = (keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH)
    with without_autocast(keys_BTKS.device):
        if keys_BTKS.shape[2] >= values_BTHR.shape[2]:
            read_BTMR, final_BMSR = _PairMemory.apply(*inputs, initial_BMSR)  # type: ignore[no-untyped-call]
        elif values_BTHR.shape[1] == 1:
            key, value, query, log_decay = (x.squeeze(1) for x in inputs)
            read_BMR, final_BMSR = shared_step(key, value, query, log_decay, initial_BMSR)
            read_BTMR = read_BMR.unsqueeze(1)
        else:
            read_BTMR, final_BMSR = SharedPairMemory.apply(*inputs, initial_BMSR)  # type: ignore[no-untyped-call]
    return read_BTMR, final_BMSR
