"""Cross-entropy with full logits under autograd: the truth for the chunked form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["cross_entropy_reference", "softmax_dtype"]


def softmax_dtype(*tensors: Tensor) -> torch.dtype:
    """fp32, or fp64 where an input has it."""
    wide = torch.float32
    for tensor in tensors:
        wide = torch.promote_types(wide, tensor.dtype)
    return wide


def cross_entropy_reference(
    features_NE: Tensor, head_VE: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """See :func:`palimpsest.ops.cross_entropy.cross_entropy`."""
    logits_NV = functional.linear(features_NE, head_VE)
    wide = softmax_dtype(features_NE, head_VE)
    losses_N = functional.cross_entropy(
        logits_NV.to(wide), targets_N, ignore_index=-100, reduction="none"
    )
    return losses_N.sum(), losses_N.detach()
