"""From the chosen pairs to what is read: the differentiable half of top-k retrieval.

B batch, T positions, N pairs, D width of values, K pairs chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.library_kernels import weighted_rows

__all__ = ["flat_pairs", "weigh"]


def flat_pairs(pairs_BTK: Tensor, n_pairs: int) -> Tensor:
    """Indices into N as indices into B·N."""
    rows_B = torch.arange(pairs_BTK.shape[0], device=pairs_BTK.device) * n_pairs
    return pairs_BTK + rows_B[:, None, None]


def weigh(
    flat_BTK: Tensor,
    valid_BTK: Tensor,
    cosine_BTK: Tensor,
    values_BND: Tensor | None,
    log_strength_BN: Tensor | None,
    scale: float | Tensor,
    temperature: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """softmax(temperature · (scale · cosine + log strength)), and the values summed with it.

    The chosen values of all positions never exist side by side: they are added up as they are
    looked up.

    Returns:
        read_BTD (of width 0 without values) and weights_BTK; both 0 where no pair is valid.
    """
    score_BTK = scale * cosine_BTK
    if log_strength_BN is not None:
        score_BTK = score_BTK + log_strength_BN.reshape(-1)[flat_BTK]
    logits_BTK = (temperature * score_BTK).masked_fill(~valid_BTK, -1e30)
    weights_BTK = logits_BTK.softmax(-1) * valid_BTK
    if values_BND is None:
        return weights_BTK[..., :0], weights_BTK
    read = weighted_rows(
        flat_BTK.flatten(0, 1),
        values_BND.reshape(-1, values_BND.shape[-1]),
        weights_BTK.flatten(0, 1),
    )
    return read.unflatten(0, flat_BTK.shape[:2]), weights_BTK
