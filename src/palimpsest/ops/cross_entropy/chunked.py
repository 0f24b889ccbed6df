"""Cross-entropy over blocks of rows: logits exist for one block at a time.

The only gradient that reaches the sum is one scalar, so the gradients of the features and of the
head are formed while a block's logits are at hand and merely scaled in backward.

Legend: N rows, R rows of a block, E features, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.cross_entropy.reference import softmax_dtype
from palimpsest.ops.first_order import first_derivatives_only

__all__ = ["cross_entropy_chunked"]

LOGITS_PER_BLOCK = 1 << 21  # 8 MB of fp32: stays near the caches and bounds the memory


class _SumOfLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_NE: Tensor,
        head_VE: Tensor,
        targets_N: Tensor,
        product: torch.dtype,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = softmax_dtype(features_NE, head_VE)
        x_NE, w_VE = features_NE.to(product), head_VE.to(product)
        # a parameter "needs" its gradient even under no_grad, where nobody will ask for it
        want_x, want_w = (need and with_gradients for need in ctx.needs_input_grad[:2])
        losses_N = torch.empty(len(x_NE), dtype=wide, device=x_NE.device)
        dx_NE = torch.empty_like(features_NE) if want_x else None
        dw_VE = torch.zeros_like(head_VE, dtype=wide) if want_w else None
        rows = max(16, LOGITS_PER_BLOCK // len(w_VE))
        for start in range(0, len(x_NE), rows):
            block = slice(start, start + rows)
            target_R1 = targets_N[block, None]
            ignored_R1 = target_R1 == -100
            target_R1 = target_R1.clamp(min=0)
            logits_RV = (x_NE[block] @ w_VE.t()).to(wide)
            top_R1 = logits_RV.gather(1, target_R1)
            norm_R1 = logits_RV.logsumexp(1, keepdim=True)
            losses_N[block] = (norm_R1 - top_R1).masked_fill_(ignored_R1, 0.0).squeeze(1)
            if not (want_x or want_w):
                continue
            dlogits_RV = logits_RV.sub_(norm_R1).exp_()
            dlogits_RV.scatter_add_(
                1, target_R1, dlogits_RV.new_full((1, 1), -1.0).expand_as(target_R1)
            )
            dlogits_RV.masked_fill_(ignored_R1, 0.0)
            d_RV = dlogits_RV.to(product)
            if dx_NE is not None:
                dx_NE[block] = d_RV @ w_VE
            if dw_VE is not None:
                dw_VE += d_RV.t() @ x_NE[block]
        ctx.save_for_backward(dx_NE, dw_VE)
        ctx.head_dtype = head_VE.dtype
        ctx.mark_non_differentiable(losses_N)
        return losses_N.sum(), losses_N

    @staticmethod
    @first_derivatives_only("cross_entropy")
    def backward(
        ctx: Any, dsum: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        dx_NE, dw_VE = ctx.saved_tensors
        return (
            None if dx_NE is None else (dx_NE * dsum).to(dx_NE.dtype),
            None if dw_VE is None else (dw_VE * dsum).to(ctx.head_dtype),
            None,
            None,
            None,
        )


def cross_entropy_chunked(
    features_NE: Tensor, head_VE: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """See :func:`palimpsest.ops.cross_entropy.cross_entropy`."""
    device = features_NE.device.type
    product = torch.promote_types(features_NE.dtype, head_VE.dtype)
    if torch.is_autocast_enabled(device):
        product = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        total, losses_N = _SumOfLosses.apply(  # type: ignore[no-untyped-call]
            features_NE, head_VE, targets_N, product, torch.is_grad_enabled()
        )
    return total, losses_N
