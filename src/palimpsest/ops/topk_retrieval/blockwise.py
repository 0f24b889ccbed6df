"""Top-k retrieval by blocks of queries and keys: memory linear in T.

Blocks of keys are met from the newest to the oldest. Inside a block the place in it is added to the
(integer) rank as its lowest ten bits, so that the library's top-k, which settles ties as it likes,
meets none. The best so far and a block's best are merged by a stable sort, in which the newer pairs
stand first.

B batch, T positions, N pairs, A width of queries and keys, D width of values, K pairs chosen,
Q queries of a block, J keys of a block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import without_autocast
from palimpsest.ops.topk_retrieval.ranking import (
    cosine_units,
    rank_with_strength,
    scale_value,
    strength_units,
    unit,
)
from palimpsest.ops.topk_retrieval.weighting import flat_pairs, weigh

__all__ = ["choose_pairs", "topk_retrieval_blockwise"]

PLACE_BITS = 10  # 43 bits and a sign of rank, 10 of place: float64 holds both exactly
KEY_BLOCK = 1 << PLACE_BITS
QUERY_BLOCK = 256
_NOT_READABLE = -(2.0**62)
_LOWEST = -(1 << 50)  # below every rank, above every rank of a pair that may not be read


def choose_pairs(
    queries_BTA: Tensor,
    keys_BNA: Tensor,
    log_strength_BN: Tensor | None,
    top_k: int,
    scale: float,
    delay: int,
    usable_BN: Tensor | None,
    first_BT: Tensor | None,
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
) -> tuple[Tensor, Tensor]:
    """The pairs that every position reads, best first, and which of them exist.

    Returns:
        pairs_BTK, indices into N, and valid_BTK; no gradients.
    """
    length, n_pairs = queries_BTA.shape[1], keys_BNA.shape[1]
    top_k = min(top_k, n_pairs)
    key_units_BNA = cosine_units(keys_BNA)
    query_units_BTA = cosine_units(queries_BTA)
    strength_BN = None if log_strength_BN is None else strength_units(log_strength_BN)
    if strength_BN is None:
        # one factor for sign and room for the place; a power of two keeps the product exact
        query_units_BTA.mul_(((scale > 0) - (scale < 0)) * float(KEY_BLOCK))
    pairs, valid = [], []
    for start in range(0, length, query_block):
        stop = min(start + query_block, length)
        best_rank: Tensor | None = None
        best_pair: Tensor | None = None
        end = max(n_pairs - length + stop - delay, 0)  # no query of the block reads at or after it
        for high in range(end, 0, -key_block):
            low = max(high - key_block, 0)
            rank_BQJ = torch.bmm(query_units_BTA[:, start:stop], key_units_BNA[:, low:high].mT)
            if strength_BN is not None:
                rank_with_strength(rank_BQJ, scale, strength_BN[:, None, low:high])
                rank_BQJ.mul_(float(KEY_BLOCK))
            place_J = torch.arange(high - low, device=rank_BQJ.device, dtype=rank_BQJ.dtype)
            if usable_BN is None:
                rank_BQJ.add_(place_J)
            else:
                usable_BJ = usable_BN[:, low:high]
                rank_BQJ.add_(torch.where(usable_BJ, place_J, _NOT_READABLE)[:, None])
            _hide_unreadable(rank_BQJ, first_BT, start, low, n_pairs - length - delay)
            ranked = rank_BQJ.topk(min(top_k, high - low), dim=-1).values.to(torch.int64)
            rank = ranked >> PLACE_BITS
            pair = (ranked & (KEY_BLOCK - 1)) + low
            if best_rank is not None and best_pair is not None:
                rank = torch.cat([best_rank, rank], dim=-1)
                pair = torch.cat([best_pair, pair], dim=-1)
                order = rank.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
                rank, pair = rank.gather(-1, order), pair.gather(-1, order)
            best_rank, best_pair = rank, pair
        shape = (queries_BTA.shape[0], stop - start, top_k)
        if best_rank is None or best_pair is None:
            best_rank = torch.full(shape, _LOWEST, device=keys_BNA.device)
            best_pair = torch.zeros(shape, dtype=torch.int64, device=keys_BNA.device)
        missing = (0, top_k - best_rank.shape[-1])
        pairs.append(F.pad(best_pair, missing))
        valid.append(F.pad(best_rank > _LOWEST, missing))
    return torch.cat(pairs, dim=1), torch.cat(valid, dim=1)


def _hide_unreadable(
    rank_BQJ: Tensor, first_BT: Tensor | None, start: int, low: int, offset: int
) -> None:
    """Masks pairs that are too new for their query, or of an earlier document, in place."""
    n_queries, n_keys = rank_BQJ.shape[1:]
    if first_BT is None and low + n_keys - 1 <= start + offset:
        return
    place_J = torch.arange(low, low + n_keys, device=rank_BQJ.device)
    limit_Q = torch.arange(start, start + n_queries, device=rank_BQJ.device) + offset
    hidden = place_J > limit_Q[:, None]
    if first_BT is not None:
        first_BQ = first_BT[:, start : start + n_queries]
        hidden = hidden | (place_J < first_BQ[:, :, None])
    rank_BQJ.masked_fill_(hidden, _NOT_READABLE)


def topk_retrieval_blockwise(
    queries_BTA: Tensor,
    keys: Tensor,
    values_BND: Tensor | None,
    log_strength_BN: Tensor | None,
    key_ids_BN: Tensor | None,
    top_k: int,
    scale: float | Tensor,
    temperature: float | Tensor,
    delay: int,
    usable_BN: Tensor | None,
    first_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks; arguments as in :func:`palimpsest.ops.topk_retrieval.topk_retrieval`."""
    keys_BNA = keys if key_ids_BN is None else F.embedding(key_ids_BN, keys)
    batch, n_pairs, width = keys_BNA.shape
    with torch.no_grad():
        pairs_BTK, valid_BTK = choose_pairs(
            queries_BTA,
            keys_BNA,
            log_strength_BN,
            top_k,
            scale_value(scale),
            delay,
            usable_BN,
            first_BT,
        )
        flat_BTK = flat_pairs(pairs_BTK, n_pairs)
    with without_autocast(keys.device):
        picked_BTKA = F.embedding(flat_BTK, unit(keys_BNA).reshape(batch * n_pairs, width))
        cosine_BTK = torch.matmul(picked_BTKA, unit(queries_BTA).unsqueeze(-1)).squeeze(-1)
        read_BTD, weights_BTK = weigh(
            flat_BTK, valid_BTK, cosine_BTK, values_BND, log_strength_BN, scale, temperature
        )
    return read_BTD, pairs_BTK.masked_fill(~valid_BTK, -1), weights_BTK
