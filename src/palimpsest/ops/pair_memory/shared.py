"""The pair memory by chunks where heads share their keys and queries, as in Mamba-2's SSD.

The equations are those of ``chunked.py``. Here the scores Q Kᵀ are formed once for all heads that
share them, and whatever differs between these heads, the decays, is put on the values: then the
memories of all of them are written, and read, by one product with the values side by side, and
nothing of a key's or a query's size is repeated.

The gradient of the log decays cannot be taken from those of keys and queries, which are sums over
heads. But a head's read is linear in its query, and what it writes is bilinear in key and value,
so that q_t·∂q_t = read_t·∂read_t and k_t·∂k_t = v_t·∂v_t for each head by itself.

B batch, T positions, N chunks, C positions of a chunk, H value heads, K key heads that J = H / K
value heads share, S width of keys, R width of values.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import lowest_log_decay, running_sums, without_autocast
from palimpsest.ops.first_order import first_derivatives_only

__all__ = ["SharedPairMemory", "shared_chunk", "shared_step"]


def shared_chunk(length: int) -> int:
    """Positions per chunk, by measurement."""
    return min(64, length)


def shared_step(
    keys_BKS: Tensor,
    values_BHR: Tensor,
    queries_BKS: Tensor,
    log_decay_BH: Tensor,
    initial_BHSR: Tensor,
) -> tuple[Tensor, Tensor]:
    """One position: read_BHR and the memory after it."""
    groups = keys_BKS.shape[1]
    kept = initial_BHSR * log_decay_BH.exp()[:, :, None, None]
    values_BKJ1R = values_BHR.unflatten(1, (groups, -1)).unsqueeze(3)
    final = torch.addcmul(
        kept.unflatten(1, (groups, -1)), keys_BKS[:, :, None, :, None], values_BKJ1R
    )
    read_BKJ1R = torch.matmul(queries_BKS[:, :, None, None, :], final)
    return read_BKJ1R.flatten(1, 3), final.flatten(1, 2)


def _by_group(x_BTX: Tensor, groups: int, chunk: int) -> Tensor:
    """(B, T, K·X) to (B·N·K, C, X): a view where there is one group."""
    batch, length, width = x_BTX.shape
    x = x_BTX.reshape(batch * length // chunk, chunk, groups, width // groups)
    return x.transpose(1, 2).reshape(-1, chunk, width // groups)


def _from_groups(x: Tensor, batch: int, groups: int) -> Tensor:
    """(B·N·K, C, X) to (B, T, K·X)."""
    chunk, width = x.shape[1:]
    return x.reshape(-1, groups, chunk, width).transpose(1, 2).reshape(batch, -1, groups * width)


def _by_head(x_BTHR: Tensor, chunk: int) -> Tensor:
    """(B, T, H, R) to (B·N·H, C, R)."""
    batch, length, heads, width = x_BTHR.shape
    x = x_BTHR.reshape(batch * length // chunk, chunk, heads, width)
    return x.transpose(1, 2).reshape(-1, chunk, width)


def _add_heads(target_BTHR: Tensor, x: Tensor) -> None:
    """Add (B·N·H, C, R) to (B, T, H, R), which is contiguous."""
    chunk, width = x.shape[1:]
    heads = target_BTHR.shape[2]
    target = target_BTHR.view(-1, chunk, heads, width)
    target += x.view(-1, heads, chunk, width).transpose(1, 2)


def _to_groups(state_BHSR: Tensor, groups: int) -> Tensor:
    """(B, H, S, R) to (B, K, S, J, R)."""
    state_BKJSR: Tensor = state_BHSR.unflatten(1, (groups, -1))
    return state_BKJSR.transpose(2, 3)


def _to_heads(state_BKSJR: Tensor) -> Tensor:
    return state_BKSJR.transpose(2, 3).flatten(1, 2)


def _pad(length: int, chunk: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Zeros behind the last position, up to a whole number of chunks: no write and no decay."""
    missing = -length % chunk
    if not missing:
        return tensors
    return tuple(F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) for x in tensors)


class SharedPairMemory(torch.autograd.Function):
    """Reads and final memory; H is a multiple of K, gates are in values and decays already."""

    @staticmethod
    def forward(
        ctx: Any,
        keys_BTKS: Tensor,
        values_BTHR: Tensor,
        queries_BTKS: Tensor,
        log_decay_BTH: Tensor,
        initial_BHSR: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, width = values_BTHR.shape
        groups = keys_BTKS.shape[2]
        chunk = shared_chunk(length)
        keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH = _pad(
            length, chunk, keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH
        )
        keys = _by_group(keys_BTKS.flatten(2), groups, chunk)
        queries = _by_group(queries_BTKS.flatten(2), groups, chunk)
        values = _by_head(values_BTHR, chunk)
        sums_BTH = _chunk_sums(log_decay_BTH, chunk)
        decay = _decay_matrix(sums_BTH, chunk, values_BTHR.dtype)
        scores = torch.bmm(queries, keys.mT).tril_()
        weights = _weigh(scores, decay)

        to_end, from_start, whole = _decays(sums_BTH, chunk, groups, values_BTHR.dtype)
        weighted = _by_group((values_BTHR * to_end).flatten(2), groups, chunk)
        updates = torch.bmm(keys.mT, weighted)
        found, final = _carry(updates, whole, _to_groups(initial_BHSR, groups))
        read = _from_groups(torch.bmm(queries, found.view_as(updates)), batch, groups)
        read_BTHR = read.view(batch, -1, heads, width).mul_(from_start)
        _add_heads(read_BTHR, torch.bmm(weights, values))
        read_BTHR = read_BTHR[:, :length]
        ctx.save_for_backward(
            keys, values_BTHR, queries, sums_BTH, decay, scores, found, final, read_BTHR
        )
        ctx.sizes = (length, chunk, groups)
        return read_BTHR, _to_heads(final)

    @staticmethod
    @first_derivatives_only("pair_memory")
    def backward(ctx: Any, d_read_BTHR: Tensor, d_final_BHSR: Tensor) -> tuple[Tensor, ...]:
        with without_autocast(d_read_BTHR.device):
            return _backward(ctx.saved_tensors, ctx.sizes, d_read_BTHR, d_final_BHSR)


def _chunk_sums(log_decay_BTH: Tensor, chunk: int) -> Tensor:
    """Running sums inside each chunk, -inf replaced by a finite log of zero."""
    finite = log_decay_BTH.clamp(min=lowest_log_decay(log_decay_BTH.dtype))
    sums_BNCH = running_sums(finite.unflatten(1, (-1, chunk)), 2)
    return sums_BNCH.flatten(1, 2).contiguous()


def _decay_matrix(sums_BTH: Tensor, chunk: int, dtype: torch.dtype) -> Tensor:
    """exp(G_t - G_i) as (B·N·H, C, C); above the diagonal it means nothing and may be inf."""
    sums = _by_head(sums_BTH.unsqueeze(-1), chunk).contiguous()
    return (sums - sums.mT).to(dtype).exp_()


def _weigh(scores: Tensor, decay: Tensor) -> Tensor:
    """scores ⊙ decay for every head, 0 above the diagonal."""
    chunk = decay.shape[1]
    weights = scores.view(-1, 1, chunk, chunk) * decay.view(scores.shape[0], -1, chunk, chunk)
    return weights.view_as(decay).tril_()


def _decays(
    sums_BTH: Tensor, chunk: int, groups: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """From each position to its chunk's end, from the start to it (B, T, H, 1), and the chunk's
    whole decay (B, N, K, 1, J, 1)."""
    batch, _, heads = sums_BTH.shape
    sums_BNCH = sums_BTH.view(batch, -1, chunk, heads)
    last_BN1H = sums_BNCH[:, :, -1:]
    to_end = (last_BN1H - sums_BNCH).exp_().to(dtype).view(batch, -1, heads, 1)
    whole = last_BN1H.exp().to(dtype).view(batch, -1, groups, 1, heads // groups, 1)
    return to_end, sums_BTH.exp().to(dtype).unsqueeze(-1), whole


def _carry(updates: Tensor, whole: Tensor, initial_BKSJR: Tensor) -> tuple[Tensor, Tensor]:
    """The memory that every chunk finds (B, N, K, S, J, R), and the one that the last leaves."""
    batch, chunks = whole.shape[:2]
    updates = updates.view(batch, chunks, *initial_BKSJR.shape[1:])
    found = torch.empty_like(updates)
    found[:, 0] = initial_BKSJR
    for n in range(1, chunks):
        torch.addcmul(updates[:, n - 1], whole[:, n - 1], found[:, n - 1], out=found[:, n])
    return found, torch.addcmul(updates[:, -1], whole[:, -1], found[:, -1])


def _backward(
    saved: tuple[Tensor, ...],
    sizes: tuple[int, int, int],
    d_read_BTHR: Tensor,
    d_final_BHSR: Tensor,
) -> tuple[Tensor, ...]:
    keys, values_BTHR, queries, sums_BTH, decay, scores, found, final, read_BTHR = saved
    length, chunk, groups = sizes
    batch, padded, heads, _ = values_BTHR.shape
    to_end, from_start, whole = _decays(sums_BTH, chunk, groups, values_BTHR.dtype)
    d_log_BTH = (d_read_BTHR * read_BTHR).sum(-1)
    d_read_BTHR, d_log_BTH = _pad(length, chunk, d_read_BTHR, d_log_BTH)

    # between chunks: what each chunk's reads ask of the memory it found, and the adjoint of the
    # memory that it leaves, which later chunks ask for
    d_weighted_read = _by_group((d_read_BTHR * from_start).flatten(2), groups, chunk)
    asked = torch.bmm(queries.mT, d_weighted_read).view_as(found)
    d_ends = torch.empty_like(asked)
    d_ends[:, -1] = _to_groups(d_final_BHSR, groups)
    d_whole = [(final * d_ends[:, -1]).sum((2, 4))]  # over a memory's entries, last chunk first
    for n in range(found.shape[1] - 1, 0, -1):
        torch.addcmul(asked[:, n], whole[:, n], d_ends[:, n], out=d_ends[:, n - 1])
        d_whole.append((found[:, n] * d_ends[:, n - 1]).sum((2, 4)))
    d_initial = torch.addcmul(asked[:, 0], whole[:, 0], d_ends[:, 0])
    d_ends_flat = d_ends.view(queries.shape[0], queries.shape[2], -1)
    weighted = _by_group((values_BTHR * to_end).flatten(2), groups, chunk)
    d_queries = torch.bmm(d_weighted_read, found.view_as(d_ends_flat).mT)
    d_keys = torch.bmm(weighted, d_ends_flat.mT)
    d_values = _from_groups(torch.bmm(keys, d_ends_flat), batch, groups)
    d_values_BTHR = d_values.view_as(values_BTHR).mul_(to_end)

    # inside chunks
    d_read = _by_head(d_read_BTHR, chunk)
    _add_heads(d_values_BTHR, torch.bmm(_weigh(scores, decay).mT, d_read))
    d_weights = torch.bmm(d_read, _by_head(values_BTHR, chunk).mT).mul_(decay)
    d_scores = d_weights.view(scores.shape[0], -1, chunk, chunk).sum(1).tril_()
    d_queries.baddbmm_(d_scores, keys)
    d_keys.baddbmm_(d_scores.mT, queries)

    # log decays: as in chunked.py, but from reads and values
    d_log_BTH -= (values_BTHR * d_values_BTHR).sum(-1)
    d_log_BNCH = d_log_BTH.reshape(batch, -1, chunk, heads).flip(2).cumsum(2).flip(2)
    d_log_BNCH += torch.stack(d_whole[::-1], dim=1).view(batch, -1, 1, heads)
    shape = (batch, padded, groups, -1)
    return (
        _from_groups(d_keys, batch, groups).view(shape)[:, :length],
        d_values_BTHR[:, :length],
        _from_groups(d_queries, batch, groups).view(shape)[:, :length],
        d_log_BNCH.view(batch, padded, heads)[:, :length],
        _to_heads(d_initial),
    )
