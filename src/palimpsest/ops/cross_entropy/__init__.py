"""Cross-entropy straight from features, so that (B,T,V) logits need not exist.

Legend: B batch, T time, E features, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.cross_entropy.chunked import cross_entropy_chunked
from palimpsest.ops.cross_entropy.reference import cross_entropy_reference
from palimpsest.ops.dispatch import Dispatcher

__all__ = ["cross_entropy"]

_dispatcher = Dispatcher("cross_entropy")
_dispatcher.register("reference", cross_entropy_reference)
_dispatcher.register("chunked", cross_entropy_chunked)


def cross_entropy(
    features_BTE: Tensor,
    head_VE: Tensor,
    targets_BT: Tensor,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits ``features @ head.T``, in nats.

    Args:
        features_BTE: (B,T,E) what meets the vocabulary.
        head_VE: (V,E) the output matrix, usually the tied embedding.
        targets_BT: (B,T) ids; -100 gives a loss of 0 and no gradient.
        backend: "reference" (full logits) or "chunked" (the default: logits exist for a bounded
            number of positions at a time).

    Returns:
        The sum over all positions (0-d, differentiable) and the (B,T) losses per position (not
        differentiable), in fp32 (fp64 for fp64 inputs). Under autocast the products run in its
        dtype and the softmax in fp32.
    """
    run = _dispatcher.pick(backend, lambda: "chunked")
    features_NE = features_BTE.reshape(-1, features_BTE.shape[-1])
    total, losses_N = run(features_NE, head_VE, targets_BT.reshape(-1).long())
    return total, losses_N.view(targets_BT.shape)
