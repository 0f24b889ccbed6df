"""Top-k retrieval over keys that are rows of a table (numba): one score per distinct key.

The keys of the family depend on the token alone, so a query meets only as many different scores
as there are different tokens: one small matrix product instead of one entry per pair of positions,
and a compiled walk over the pairs that looks scores up. The product for the search is that of whole
numbers, exact in any order (``ranking.py``): a query finds the same pairs alone and among others.

B batch, T positions, N pairs, A width of queries and keys, U distinct keys, K pairs chosen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import without_autocast
from palimpsest.ops.threads import as_array, require_cpu, run_rows
from palimpsest.ops.topk_retrieval.ranking import COSINE_UNIT, cosine_units, scale_value, unit
from palimpsest.ops.topk_retrieval.weighting import flat_pairs, weigh

__all__ = ["topk_retrieval_numba"]

# Up to this many distinct keys per chosen pair, the cosines that are weighed are picked from one
# product with all keys; above it they are formed for the chosen keys alone.
KEPT_COSINES = 128
QUERY_BLOCK = 256


def _distinct(table_VA: Tensor, ids_BN: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the table that occurs, where that is certain to be smaller."""
    if table_VA.shape[0] <= ids_BN.numel():
        return table_VA, ids_BN
    used_U, ids_BN = torch.unique(ids_BN, return_inverse=True)
    return F.embedding(used_U, table_VA), ids_BN


def _search(
    cosine_BTU: Tensor,
    ids_BN: Tensor,
    log_strength_BN: Tensor | None,
    usable_BN: Tensor | None,
    first_BT: Tensor | None,
    scale: float,
    offset: int,
    top_k: int,
) -> Tensor:
    """pairs_BTK, best first, -1 where there are fewer."""
    batch, length, _ = cosine_BTU.shape
    from palimpsest.ops.topk_retrieval.loops import choose_loop

    if log_strength_BN is None:
        log_strength_BN = cosine_BTU.new_empty(0, 0)
    if usable_BN is None:
        usable_BN = torch.empty(0, 0, dtype=torch.bool, device="cpu")
    if first_BT is None:
        first_BT = torch.empty(0, 0, dtype=torch.int64, device="cpu")
    pairs_BTK = torch.full((batch, length, top_k), -1, device="cpu")
    arrays = map(as_array, (cosine_BTU, ids_BN, log_strength_BN, usable_BN, first_BT))
    run_rows(
        choose_loop(),
        (*arrays, scale, offset, as_array(pairs_BTK)),
        batch * length,
        batch * length * (offset + length // 2) * 4,
    )
    return pairs_BTK


def topk_retrieval_numba(
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
    """The walk; arguments as in :func:`palimpsest.ops.topk_retrieval.topk_retrieval`."""
    require_cpu("topk_retrieval", keys)
    if key_ids_BN is None:
        raise ValueError(
            "backend='numba' of op 'topk_retrieval' needs key_ids_BN and a table of keys; "
            "use backend='blockwise' for keys that are not rows of a table"
        )
    length, n_pairs = queries_BTA.shape[1], key_ids_BN.shape[1]
    top_k = min(top_k, n_pairs)
    factor = scale_value(scale)
    offset = n_pairs - length - delay
    with without_autocast(keys.device):
        table_UA, ids_BN = _distinct(keys, key_ids_BN)
        whole_AU, pairs = cosine_units(table_UA).T, []
        for start in range(0, length, QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            whole_BQA = cosine_units(queries_BTA[:, block])
            pairs.append(
                _search(
                    torch.matmul(whole_BQA, whole_AU),
                    ids_BN,
                    log_strength_BN,
                    usable_BN,
                    None if first_BT is None else first_BT[:, block],
                    factor * COSINE_UNIT,
                    offset + start,
                    top_k,
                )
            )
        pairs_BTK = torch.cat(pairs, dim=1)
        valid_BTK = pairs_BTK >= 0
        flat_BTK = flat_pairs(pairs_BTK.clamp(min=0), n_pairs)
        chosen_BTK = ids_BN.reshape(-1)[flat_BTK]
        units_UA, units_BTA = unit(table_UA), unit(queries_BTA)
        if units_UA.shape[0] <= KEPT_COSINES * top_k:
            cosine_BTK = torch.matmul(units_BTA, units_UA.T).gather(-1, chosen_BTK)
        else:
            picked_BTKA = F.embedding(chosen_BTK, units_UA)
            cosine_BTK = torch.matmul(picked_BTKA, units_BTA.unsqueeze(-1)).squeeze(-1)
        read_BTD, weights_BTK = weigh(
            flat_BTK, valid_BTK, cosine_BTK, values_BND, log_strength_BN, scale, temperature
        )
    return read_BTD, pairs_BTK, weights_BTK
