"""Effective context: what earlier tokens are worth, and what the loss feels of each.

Truncated context: the loss on the same targets, with only the last n tokens before each of them
kept and the model started afresh there. Learned positions count from the first token that is kept.

Influence: the norm of d loss_t / d x_{t-k}, where x_{t-k} is what the token k places before the
target brings in: the embedding where the stream starts with it, the drive of a grounded state.
Norms of different models have different scales, so each lag's share of the sum is there too. What
reaches a prediction past x is not in it: a retrieval that looks tokens up in the table.

Legend: W windows (one target each), N tokens before a target, T = N + 1, B windows of one forward,
D width of an embedding, K lengths or lags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.analysis.intervene import intervene
from palimpsest.analysis.passes import Measured, check_windows, evaluating, input_tap
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.evaluation.statistics import Estimate, column_means
from palimpsest.models.language_model import LanguageModel

__all__ = ["ContextLoss", "Influence", "measure_context", "measure_influence"]

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class ContextLoss(Measured):
    """Loss by the number of preceding tokens that are kept, with standard errors over targets.

    Attributes:
        targets: how many tokens are predicted, the same ones for every length.
        lengths: (K) preceding tokens kept, ascending.
        loss: (K) mean nats.
        excess: (K) nats above the longest length, paired by target; 0 at the end.
        tolerance: nats.
        effective: the shortest length from which on no excess is above ``tolerance``.
    """

    targets: int
    lengths: tuple[int, ...]
    loss: tuple[Estimate, ...]
    excess: tuple[Estimate, ...]
    tolerance: float
    effective: int


@dataclass(frozen=True, kw_only=True)
class Influence(Measured):
    """Mean norm of the loss's gradient by lag, with standard errors over targets.

    Attributes:
        tap: what is differentiated by.
        targets: how many losses.
        lags: 1 … N; the token before the target has lag 1.
        norm: (N) mean norm.
        share: (N) of the sum over all lags.
        half: the least lag up to which half of the sum lies.
        most: the same for 90 %.
    """

    tap: str
    targets: int
    lags: tuple[int, ...]
    norm: tuple[Estimate, ...]
    share: tuple[float, ...]
    half: int
    most: int


def measure_context(
    model: LanguageModel,
    ids_WT: Tensor,
    lengths: Sequence[int] | None = None,
    *,
    tolerance: float = 0.01,
    batch_tokens: int = 8192,
) -> ContextLoss:
    """Measure the loss on the last token of each window by how much before it is kept.

    Args:
        model: any model; it comes back in the mode it was in.
        ids_WT: windows whose last token is the target; cut them with a stride, so that targets lie
            apart (``cut_windows(ids, n + 1, stride=…)``).
        lengths: preceding tokens to keep, each in [1, T - 1]; None takes powers of two, and T - 1.
        tolerance: see :class:`ContextLoss`.
        batch_tokens: tokens of a forward, about.

    Raises:
        InputError: windows that do not fit the model, or lengths that do not fit the windows.
    """
    check_windows(model, ids_WT, 1, least=2)
    longest = ids_WT.shape[1] - 1
    if lengths is None:
        lengths = [1 << i for i in range(longest.bit_length()) if 1 << i < longest] + [longest]
    chosen = sorted(set(lengths))
    if not chosen or chosen[0] < 1 or chosen[-1] > longest:
        raise InputError(
            f"lengths={list(lengths)}: must lie between 1 and {longest}, the tokens before each "
            "target; use longer windows"
        )
    if tolerance < 0.0 or batch_tokens < 1:
        raise InputError(
            f"tolerance={tolerance}, batch_tokens={batch_tokens}: must be at least 0 and 1"
        )
    columns = []
    for kept in chosen:
        parts = []
        for ids_BT in ids_WT.split(max(1, batch_tokens // kept)):
            with inference(model):
                losses_B = _last_losses(model, ids_BT[:, -kept - 1 :])
            parts.append(losses_B.double().cpu())
        columns.append(torch.cat(parts))
    loss_WK = torch.stack(columns, 1)
    excess_WK = loss_WK - loss_WK[:, -1:]
    above = [float(x) > tolerance for x in excess_WK.mean(0)]
    start = max((i + 1 for i, over in enumerate(above) if over), default=0)
    return ContextLoss(
        targets=len(ids_WT),
        lengths=tuple(chosen),
        loss=column_means(loss_WK),
        excess=column_means(excess_WK),
        tolerance=tolerance,
        effective=chosen[start],
    )


def _last_losses(model: LanguageModel, ids_BT: Tensor) -> Tensor:
    """(B) nats of the last token of each row, given those before it."""
    inputs_BN, targets_BN = _split(model, ids_BT)
    output = model(inputs_BN, targets=targets_BN)
    assert output.token_losses is not None
    last_B: Tensor = output.token_losses[:, -1]
    return last_B


def _split(model: LanguageModel, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """All but the last token, and targets of which only the last counts."""
    ids_BT = ids_BT.to(model.device)
    targets_BN = torch.full_like(ids_BT[:, 1:], IGNORED)
    targets_BN[:, -1] = ids_BT[:, -1]
    return ids_BT[:, :-1], targets_BN


def measure_influence(model: LanguageModel, ids_WT: Tensor, *, batch_size: int = 16) -> Influence:
    """Measure how the loss on the last token of each window depends on the tokens before it.

    One backward pass gives all lags of a batch of targets.

    Args:
        model: any model; it comes back in the mode it was in, its gradients untouched.
        ids_WT: windows whose last token is the target, see :func:`measure_context`.
        batch_size: windows of a pass.

    Raises:
        InputError: windows that do not fit the model, or a model without a tap of its input.
    """
    check_windows(model, ids_WT, batch_size, least=2)
    name = input_tap(model)
    parts = []
    for ids_BT in ids_WT.split(batch_size):
        inputs_BN, targets_BN = _split(model, ids_BT)
        leaves: list[Tensor] = []

        def leaf(x_BND: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
            leaves.append(x_BND.detach().requires_grad_())
            return leaves[-1]

        with evaluating(model), intervene(model, {name: leaf}):
            output = model(inputs_BN, targets=targets_BN)
            (gradient_BND,) = torch.autograd.grad(output.loss_sum, leaves)
        parts.append(gradient_BND.norm(dim=-1).flip(1).double().cpu())
    norm_WN = torch.cat(parts)
    mean_N = norm_WN.mean(0)
    total = float(mean_N.sum())
    if not 0.0 < total < float("inf"):
        raise InputError(f"{name}: the gradient's norms add up to {total}; has training diverged?")
    share_N = mean_N / total
    reached_N = share_N.cumsum(0)
    return Influence(
        tap=name,
        targets=len(ids_WT),
        lags=tuple(range(1, norm_WN.shape[1] + 1)),
        norm=column_means(norm_WN),
        share=tuple(share_N.tolist()),
        half=_until(reached_N, 0.5),
        most=_until(reached_N, 0.9),
    )


def _until(reached_N: Tensor, share: float) -> int:
    return min(int((reached_N < share).sum()) + 1, len(reached_N))
