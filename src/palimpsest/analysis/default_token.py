"""The default-token direction: what all states have in common, and what it says when decoded.

The mean state s̄ is over all positions of all windows. Decoded means that s̄ takes the place of what
the head reads, so norm, projection and bias are the model's own. The mean embedding is the mean
row of the matrix that meets the vocabulary, which is the token embedding where the two are tied; it
is decoded by its product with that matrix.

Source: arXiv 2605.10643, which measures this for Grounded Prediction Networks. Here it is for every
architecture: the vector that the head reads is the predicted state there, and elsewhere the
residual of the last layer.

Legend: W windows, T tokens of a window, B windows of one forward, V vocabulary, D width of a state,
G groups of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palimpsest.analysis.passes import (
    Measured,
    check_windows,
    decode_vectors,
    read_windows,
    state_tap,
)
from palimpsest.analysis.ranks import count_tokens, spearman
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.text import Tokenizer

__all__ = [
    "BiasEffect",
    "DefaultToken",
    "TopToken",
    "bias_effect",
    "count_tokens",
    "measure_default_token",
]

BIAS = "decode.bias"  # the parameter that a model with decoder_bias has
MOST_RUNNING = 64  # windows whose running means are kept until s̄ is known


@dataclass(frozen=True, kw_only=True)
class TopToken(Measured):
    """A token that a vector decodes to.

    Attributes:
        id: the token.
        text: its text, or "0x…" where its bytes are no UTF-8; None without a tokenizer.
        probability: by softmax over the vocabulary.
    """

    id: int
    text: str | None
    probability: float


@dataclass(frozen=True, kw_only=True)
class DefaultToken(Measured):
    """The mean state and what it decodes to (definitions at the head of the file).

    Attributes:
        tap: whose vectors these are.
        states: how many.
        mean_state: (D) s̄.
        norm: ‖s̄‖.
        norm_share: ‖s̄‖ over the mean norm of a state.
        group_cosine_mean, group_cosine_std: of the cosines between the means of any two groups of
            windows; None with fewer than two groups, and the second with fewer than three.
        groups: how many groups of neighbouring windows.
        top: the most probable tokens when s̄ is decoded, best first.
        embedding_top: the same for the mean embedding.
        embedding_overlap: how many tokens are in both lists.
        embedding_cosine: cosine of the mean embedding and the features that s̄ decodes through.
        spearman: rank correlation of the logits of s̄ with the unigram counts, over the tokens
            that occur in the training data; None without counts.
        spearman_all: the same over the whole vocabulary, tokens that never occur as ties.
        embedding_spearman: as ``spearman``, for the mean embedding.
        positions: running means end after so many states.
        convergence: for each of them the cosine of a window's running mean with s̄, averaged over
            at most 64 windows spread over the text.
    """

    tap: str
    states: int
    mean_state: tuple[float, ...]
    norm: float
    norm_share: float
    group_cosine_mean: float | None
    group_cosine_std: float | None
    groups: int
    top: tuple[TopToken, ...]
    embedding_top: tuple[TopToken, ...]
    embedding_overlap: int
    embedding_cosine: float
    spearman: float | None
    spearman_all: float | None
    embedding_spearman: float | None
    positions: tuple[int, ...]
    convergence: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class BiasEffect(Measured):
    """What an explicit decoder bias takes over from the mean state.

    Attributes:
        without: the model trained without a bias.
        with_bias: the one trained with it.
        norm_change: ‖s̄‖ with over without, less 1.
        share_change: the same for ``norm_share``, which does not depend on the states' scale.
        bias_norm: norm of the bias.
        bias_top: what the bias alone decodes to.
        bias_overlap: how many of these the mean state decodes to in the same model.
        bias_spearman: as ``DefaultToken.spearman``, for the bias alone.
    """

    without: DefaultToken
    with_bias: DefaultToken
    norm_change: float
    share_change: float
    bias_norm: float
    bias_top: tuple[TopToken, ...]
    bias_overlap: int
    bias_spearman: float | None


def measure_default_token(
    model: LanguageModel,
    ids_WT: Tensor,
    *,
    unigram: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    batch_size: int = 8,
    groups: int = 8,
    top: int = 10,
) -> DefaultToken:
    """Measure the mean state on windows of a text.

    Args:
        model: any model; it comes back in the mode it was in.
        ids_WT: windows, each read from an empty state (``cut_windows``).
        unigram: (V) counts of the training data (``count_tokens``).
        tokenizer: to write the tokens out.
        batch_size: windows of a forward.
        groups: how many groups of neighbouring windows to compare the means of; fewer where there
            are fewer windows.
        top: how many tokens to list.

    Raises:
        InputError: windows that do not fit the model, counts of another vocabulary, ``top`` or
            ``groups`` out of range, a mean state that is not finite.
    """
    check_windows(model, ids_WT, batch_size)
    vocabulary = model.config.vocab_size
    if not 1 <= top <= vocabulary:
        raise InputError(f"top={top}: must be from 1 to the vocabulary's {vocabulary}")
    if groups < 1:
        raise InputError(f"groups={groups}: must be at least 1")
    if unigram is not None and unigram.shape != (vocabulary,):
        raise InputError(
            f"unigram of shape {tuple(unigram.shape)}: must be ({vocabulary},), the counts of the "
            "model's vocabulary"
        )
    name, windows = state_tap(model), len(ids_WT)
    groups = min(groups, windows)
    positions = _positions(ids_WT.shape[1])
    spread = torch.linspace(0, windows - 1, min(windows, MOST_RUNNING), dtype=torch.float64)
    shown = set(spread.round().long().tolist())
    sums_GD, running, norms, first = torch.zeros(0), [], 0.0, 0
    for tape in read_windows(model, ids_WT, [name], batch_size):
        states_BTD = tape[name].cpu()
        if not first:
            sums_GD = torch.zeros(groups, states_BTD.shape[-1], dtype=torch.float64)
        places = torch.arange(first, first + len(states_BTD))
        sums_BD = states_BTD.sum(1, dtype=torch.float64)
        sums_GD.index_add_(0, places * groups // windows, sums_BD)
        norms += float(states_BTD.norm(dim=-1).sum(dtype=torch.float64))
        rows = [i for i, place in enumerate(places.tolist()) if place in shown]
        if rows:
            cut = states_BTD[rows].cumsum(1, dtype=torch.float64)[:, [p - 1 for p in positions]]
            running.append(cut)
        first += len(states_BTD)
    count = ids_WT.numel()
    mean_D = sums_GD.sum(0) / count
    norm = float(mean_D.norm())
    if not 0.0 < norm < float("inf"):
        raise InputError(
            f"{name}: the mean state has norm {norm}; the model's states must be finite"
        )
    group_mean, group_std = _pairwise(sums_GD)
    closeness = torch.nn.functional.cosine_similarity(torch.cat(running), mean_D, dim=-1).mean(0)

    head_VE = model.head_weight().detach().double()
    features_E = decode_vectors(model, mean_D[None])[0].double()
    embedding_E = head_VE.mean(0)
    logits_V, embedding_logits_V = head_VE @ features_E, head_VE @ embedding_E
    best = _top(logits_V, top, tokenizer)
    embedding_best = _top(embedding_logits_V, top, tokenizer)
    return DefaultToken(
        tap=name,
        states=count,
        mean_state=tuple(mean_D.tolist()),
        norm=norm,
        norm_share=norm / (norms / count),
        group_cosine_mean=group_mean,
        group_cosine_std=group_std,
        groups=groups,
        top=best,
        embedding_top=embedding_best,
        embedding_overlap=_overlap(best, embedding_best),
        embedding_cosine=float(torch.cosine_similarity(features_E, embedding_E, dim=0)),
        spearman=_with_unigram(logits_V, unigram),
        spearman_all=None if unigram is None else spearman(logits_V, unigram),
        embedding_spearman=_with_unigram(embedding_logits_V, unigram),
        positions=tuple(positions),
        convergence=tuple(closeness.tolist()),
    )


def bias_effect(
    without: LanguageModel,
    with_bias: LanguageModel,
    ids_WT: Tensor,
    *,
    unigram: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    batch_size: int = 8,
    groups: int = 8,
    top: int = 10,
) -> BiasEffect:
    """Compare a model trained without a decoder bias with one trained with it.

    Args:
        without: a model whose configuration says ``decoder_bias=False``.
        with_bias: the same architecture with ``decoder_bias=True``, trained in the same way.
        ids_WT, unigram, tokenizer, batch_size, groups, top: see :func:`measure_default_token`.

    Raises:
        InputError: models without that option, or not one of each; else as
            :func:`measure_default_token`.
    """
    for name, model, wanted in (("without", without, False), ("with_bias", with_bias, True)):
        has = getattr(model.config, "decoder_bias", None)
        if has is not wanted:
            said = "has no such option" if has is None else f"has decoder_bias={has}"
            raise InputError(
                f"{name}: {model.registry_name} {said}; needs a model with decoder_bias={wanted}"
            )
    given: dict[str, Any] = {
        "unigram": unigram,
        "tokenizer": tokenizer,
        "batch_size": batch_size,
        "groups": groups,
        "top": top,
    }
    plain = measure_default_token(without, ids_WT, **given)
    biased = measure_default_token(with_bias, ids_WT, **given)
    bias_E = dict(with_bias.named_parameters())[BIAS].detach().double()
    logits_V = with_bias.head_weight().detach().double() @ bias_E
    best = _top(logits_V, top, tokenizer)
    return BiasEffect(
        without=plain,
        with_bias=biased,
        norm_change=biased.norm / plain.norm - 1.0,
        share_change=biased.norm_share / plain.norm_share - 1.0,
        bias_norm=float(bias_E.norm()),
        bias_top=best,
        bias_overlap=_overlap(best, biased.top),
        bias_spearman=_with_unigram(logits_V, unigram),
    )


def _positions(length: int) -> list[int]:
    """1, 3, 10, 30, 100, … and the whole window."""
    found = [step * 10**power for power in range(7) for step in (1, 3)]
    return [*(p for p in found if p < length), length]


def _pairwise(sums_GD: Tensor) -> tuple[float | None, float | None]:
    """Mean and standard deviation (divisor n - 1) of the cosines of all pairs."""
    unit_GD = torch.nn.functional.normalize(sums_GD, dim=-1)
    above = torch.triu_indices(len(unit_GD), len(unit_GD), 1)
    cosines = (unit_GD @ unit_GD.T)[above[0], above[1]]
    if not len(cosines):
        return None, None
    return float(cosines.mean()), float(cosines.std()) if len(cosines) > 1 else None


def _top(logits_V: Tensor, count: int, tokenizer: Tokenizer | None) -> tuple[TopToken, ...]:
    order = logits_V.argsort(descending=True, stable=True)[:count].tolist()
    probabilities = logits_V.softmax(0)
    return tuple(
        TopToken(
            id=i,
            text=None if tokenizer is None else _written(tokenizer.bytes_of(i)),
            probability=float(probabilities[i]),
        )
        for i in order
    )


def _written(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return f"0x{token.hex()}"


def _overlap(a: Sequence[TopToken], b: Sequence[TopToken]) -> int:
    return len({t.id for t in a} & {t.id for t in b})


def _with_unigram(logits_V: Tensor, unigram: Tensor | None) -> float | None:
    if unigram is None:
        return None
    seen = unigram > 0
    return spearman(logits_V.cpu()[seen.cpu()], unigram[seen])
