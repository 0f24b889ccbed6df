"""Top-k retrieval as a plain loop over time: the truth the fast form is held to.

B batch, T positions, N pairs, A width of queries and keys, D width of values, K pairs chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.topk_retrieval.ranking import (
    cosine_units,
    rank_with_strength,
    scale_value,
    strength_units,
    unit,
)

__all__ = ["topk_retrieval_reference"]


def topk_retrieval_reference(
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
    """One query per step, over all pairs, newest first."""
    keys_BNA = keys if key_ids_BN is None else keys[key_ids_BN]
    length, n_pairs = queries_BTA.shape[1], keys_BNA.shape[1]
    past = n_pairs - length
    number = scale_value(scale)
    place_N = torch.arange(n_pairs, device=keys_BNA.device)
    key_units_BNA = cosine_units(keys_BNA)
    reads: list[Tensor] = []
    chosen: list[Tensor] = []
    weights: list[Tensor] = []
    for t in range(length):
        readable_BN = (place_N <= past + t - delay).expand(keys_BNA.shape[0], n_pairs)
        if usable_BN is not None:
            readable_BN = readable_BN & usable_BN
        if first_BT is not None:
            readable_BN = readable_BN & (place_N >= first_BT[:, t, None])
        rank_BN = (cosine_units(queries_BTA[:, t, None]) * key_units_BNA).sum(-1)
        if log_strength_BN is None:
            rank_BN = rank_BN * ((number > 0) - (number < 0))
        else:
            rank_BN = rank_with_strength(rank_BN, number, strength_units(log_strength_BN))
        rank_BN = rank_BN.masked_fill(~readable_BN, float("-inf"))
        newest_first = rank_BN.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :top_k]
        pairs_BK = n_pairs - 1 - newest_first
        valid_BK = readable_BN.gather(1, pairs_BK)

        cosine_BN = (unit(queries_BTA[:, t, None]) * unit(keys_BNA)).sum(-1)
        score_BN = scale * cosine_BN
        if log_strength_BN is not None:
            score_BN = score_BN + log_strength_BN
        logits_BK = (temperature * score_BN.gather(1, pairs_BK)).masked_fill(~valid_BK, -1e30)
        weights_BK = logits_BK.softmax(-1) * valid_BK
        if values_BND is None:
            reads.append(weights_BK[:, :0])
        else:
            picked_BKD = values_BND.gather(
                1, pairs_BK.unsqueeze(-1).expand(-1, -1, values_BND.shape[2])
            )
            reads.append((weights_BK.unsqueeze(-1) * picked_BKD).sum(1))
        chosen.append(pairs_BK.masked_fill(~valid_BK, -1))
        weights.append(weights_BK)
    return torch.stack(reads, 1), torch.stack(chosen, 1), torch.stack(weights, 1)
