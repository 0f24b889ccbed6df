"""LAMBADA: the last word of a passage, counted as the paper counts it and as the harness does.

- *first token* (Grounded Prediction Networks): the top-1 prediction of the last word's first token
  given what precedes it; the perplexity is exp of the mean cross-entropy over all tokens of all
  last words. With a tokenizer of bytes the first token is the space before the word.
- *whole word* (lm-evaluation-harness, ``lambada_openai``): every token of the last word must be the
  top-1 prediction given those before it; the perplexity is exp of the mean over the words of minus
  their log-likelihood, so it compares between tokenizers.

The context is read once, without logits; its state then predicts the word's tokens, so the product
with the vocabulary is made at these only.

Source: arXiv 2605.10643 (LAMBADA as that paper counts it); Paperno et al., arXiv 1606.06031.

Legend: B batch, T time, M tokens of a word, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from palimpsest.errors import InputError, counted
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.evaluation.lambada_data import (
    SHA256,
    LambadaExample,
    encode_lambada,
    find_lambada,
    read_lambada,
)
from palimpsest.evaluation.perplexity import check_tokenizer
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.record import TextResult, context_note, provenance
from palimpsest.evaluation.statistics import Estimate, exponential, mean, ratio, share
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from palimpsest.text import Tokenizer

__all__ = ["LambadaResult", "LambadaScores", "evaluate_lambada", "score_lambada"]

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class LambadaResult(TextResult):
    """LAMBADA, both ways (the other fields: see ``Result``).

    ``data_sha256`` is over the file, as ``sha256sum`` prints it.

    Attributes:
        examples: passages, each with one last word.
        word_tokens: tokens of all last words.
        inexact: words whose ids, behind those of the context, are not the ids of the whole text.
        first_token_correct: words whose first token was the top-1 prediction.
        word_correct: words of which every token was.
        token_nats: mean cross-entropy over the words' tokens.
        word_nats: mean over the words of minus their log-likelihood.
    """

    SCHEMA: ClassVar[str] = "palimpsest-lambada"
    KIND: ClassVar[str] = "LAMBADA"

    examples: int
    word_tokens: int
    inexact: int
    first_token_correct: int
    word_correct: int
    token_nats: Estimate
    word_nats: Estimate

    def __post_init__(self) -> None:
        for name in ("token_nats", "word_nats"):
            object.__setattr__(self, name, Estimate.read(getattr(self, name)))

    @property
    def first_token_accuracy(self) -> Estimate:
        """The paper's accuracy."""
        return share(self.first_token_correct, self.examples)

    @property
    def token_perplexity(self) -> Estimate:
        """The paper's perplexity, per token: comparable only between equal tokenizers."""
        return exponential(self.token_nats)

    @property
    def word_accuracy(self) -> Estimate:
        """The harness's accuracy."""
        return share(self.word_correct, self.examples)

    @property
    def word_perplexity(self) -> Estimate:
        """The harness's perplexity, per word."""
        return exponential(self.word_nats)

    def derived(self) -> dict[str, Any]:
        names = ("first_token_accuracy", "token_perplexity", "word_accuracy", "word_perplexity")
        return {name: vars(getattr(self, name)) for name in names}

    def rows(self) -> dict[str, str]:
        known = "the EleutherAI test file" if self.data_sha256 == SHA256 else "not the known file"
        return {
            "data": f"{self.data} ({counted(self.examples, 'example')}, {known}, "
            f"sha256 {self.data_sha256[:16]}…)",
            "tokenizer": f"{self.tokenizer} ({self.tokenizer_fingerprint[:16]}…)",
            "counted": f"{counted(self.examples, 'word')} = {counted(self.word_tokens, 'token')}",
            "first token": f"accuracy {self.first_token_accuracy}",
            "": f"perplexity {self.token_perplexity} per token",
            "whole word": f"accuracy {self.word_accuracy}",
            " ": f"perplexity {self.word_perplexity} per word",
            "time": f"{self.wall_seconds:.1f} s, "
            f"{self.examples / max(self.wall_seconds, 1e-9):,.0f} examples/s",
        }


@dataclass(frozen=True)
class LambadaScores:
    """One entry per example, in the order given: two models can be compared word by word.

    Attributes:
        first_correct: (N,) bool, the first token was the top-1 prediction.
        word_correct: (N,) bool, every token was.
        nats: (N,) float64, minus the log-likelihood of the word.
        tokens: (N,) int64, tokens of the word.
    """

    first_correct: NDArray[np.bool_]
    word_correct: NDArray[np.bool_]
    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]


def evaluate_lambada(
    model: LanguageModel,
    tokenizer: Tokenizer,
    data: str | Path,
    *,
    field: str = "text",
    bos: Literal["auto", "none"] = "auto",
    max_context: int | None = None,
    max_examples: int | None = None,
    batch_size: int = 32,
    precision: Precision = "fp32",
    source: str | None = None,
    seed: int | None = None,
    trained_with: str | None = None,
    progress: bool = True,
) -> LambadaResult:
    """Evaluate a model on LAMBADA.

    Args:
        model: any language model; it comes back in the mode it was in.
        tokenizer: the one the model was trained with.
        data: a file with one text per line ({"text": …}), or "hub".
        field: the field of an object that holds the text.
        bos: "auto": BOS before each passage where the tokenizer has one; "none": never.
        max_context: read only so many last tokens of each context, for models with a bound.
        max_examples: only the first so many.
        batch_size: passages of a forward; changes the result by rounding only.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        source: what the result calls the model, such as its folder.
        seed: the model's training seed, to be kept in the result.
        trained_with: the fingerprint of the tokenizer saved with the model, to be compared.
        progress: whether to show progress on standard error.

    Raises:
        InputError: no such data (with where to get it), a tokenizer that is not the model's, or a
            passage that is too long for it.
        CorpusError: a file without such texts.
    """
    check_tokenizer(model, tokenizer, trained_with)
    for name, value in (("max_context", max_context), ("max_examples", max_examples)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    if bos not in ("auto", "none"):
        raise InputError(f"bos={bos!r}: choose 'auto' or 'none'")
    with_bos = bos == "auto" and tokenizer.bos_id is not None
    path = find_lambada(data)
    texts, sha256 = read_lambada(path, field)
    texts = texts[:max_examples]
    examples = encode_lambada(texts, tokenizer, bos=with_bos, max_context=max_context)
    stretch = max(len(e.context) + len(e.word) - 1 for e in examples)
    if model.max_length is not None and stretch > model.max_length:
        longest = max(len(e.word) for e in examples)
        room = model.max_length - longest + 1 - int(with_bos)
        raise InputError(
            f"a passage of {stretch} tokens: {model.describe_bound()}; "
            f"pass max_context={max(room, 1)} or less"
        )
    start = time.perf_counter()
    scores = score_lambada(
        model, examples, batch_size=batch_size, precision=precision, progress=progress
    )
    wall_seconds = time.perf_counter() - start
    total = float(scores.nats.sum())
    if not math.isfinite(total):
        raise InputError(
            f"the loss of {source or model.registry_name} on {path} is {total}: its parameters "
            "hold NaN or infinite values, so its training has diverged"
        )
    return LambadaResult(
        **provenance(model, precision, stretch),
        source=source,
        data=str(path),
        data_sha256=sha256,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        protocol=describe(tokenizer, examples, with_bos, max_context, max_examples)
        + context_note(model, stretch),
        settings={
            "field": field,
            "bos": with_bos,
            "max_context": max_context,
            "max_examples": max_examples,
            "window": model.window,
        },
        seed=seed,
        batch_size=batch_size,
        wall_seconds=wall_seconds,
        examples=len(examples),
        word_tokens=int(scores.tokens.sum()),
        inexact=sum(not e.exact for e in examples),
        first_token_correct=int(scores.first_correct.sum()),
        word_correct=int(scores.word_correct.sum()),
        token_nats=ratio(scores.nats, scores.tokens),
        word_nats=mean(scores.nats),
    )


def describe(
    tokenizer: Tokenizer,
    examples: Sequence[LambadaExample],
    bos: bool,
    max_context: int | None,
    max_examples: int | None,
) -> str:
    """The protocol in one line."""
    is_space = all(tokenizer.bytes_of(e.word[0]) == b" " for e in examples)
    parts = [
        "the last word with the space before it, given all before it"
        if max_context is None
        else f"the last word with the space before it, given the {max_context} tokens before it",
        "BOS before each passage" if bos else "no BOS",
        "first token: top-1 of the word's first token"
        + (", which here is the space;" if is_space else ";")
        + " perplexity over the tokens of all words",
        "whole word: top-1 of each of its tokens; perplexity over words",
    ]
    if max_examples is not None:
        parts.append(f"the first {max_examples} examples only")
    return "; ".join(parts)


def score_lambada(
    model: LanguageModel,
    examples: Sequence[LambadaExample],
    *,
    batch_size: int = 32,
    precision: Precision = "fp32",
    progress: bool = True,
) -> LambadaScores:
    """Score each example; those of similar length are read together.

    Args:
        model: any language model.
        examples: at least one, from ``encode_lambada``.
        batch_size: the most rows of a forward.
        precision: see :func:`evaluate_lambada`.
        progress: whether to show progress on standard error.
    """
    check_precision(precision)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: must be at least 1")
    if not examples:
        raise InputError("examples=[]: there is nothing to score")
    count = len(examples)
    first, word = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    nats = np.zeros(count, np.float64)

    total = sum(len(e.context) + len(e.word) for e in examples)
    with track("LAMBADA", total) if progress else nullcontext(lambda _: None) as advance:
        for rows in batches(examples, batch_size):
            batch = [examples[i] for i in rows]
            first[rows], word[rows], nats[rows] = _score_batch(model, batch, precision)
            advance(sum(len(e.context) + len(e.word) for e in batch))
    tokens = np.array([len(e.word) for e in examples], np.int64)
    return LambadaScores(first, word, nats, tokens)


def batches(examples: Sequence[LambadaExample], size: int) -> Iterator[list[int]]:
    """Indices of examples read together, the longest first.

    Examples of which nothing is read before the word's own prediction stay among themselves.
    """
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].context))
    for group in (
        [i for i in order if len(examples[i].context) > 1],
        [i for i in order if len(examples[i].context) == 1],
    ):
        for low in range(0, len(group), size):
            yield group[low : low + size]


def _score_batch(
    model: LanguageModel, batch: Sequence[LambadaExample], precision: Precision
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
    device = model.device
    with inference(model, precision):
        state: State | None = None
        if len(batch[0].context) > 1:
            ids_BT, real_BT = _pad([e.context[:-1] for e in batch], device)
            state = model(ids_BT, attention_mask=real_BT).state
        ids_BM, real_BM = _pad([(e.context[-1], *e.word[:-1]) for e in batch], device)
        logits_BMV = model(ids_BM, state, attention_mask=real_BM).logits
    logits_BMV = logits_BMV.to(torch.promote_types(logits_BMV.dtype, torch.float32))
    targets_BM, _ = _pad([e.word for e in batch], device, IGNORED)
    nats_BM = F.cross_entropy(
        logits_BMV.transpose(1, 2), targets_BM, ignore_index=IGNORED, reduction="none"
    )
    right_BM = logits_BMV.argmax(-1) == targets_BM
    whole_B = (right_BM | (targets_BM == IGNORED)).all(1)
    return (
        right_BM[:, 0].cpu().numpy(),
        whole_B.cpu().numpy(),
        nats_BM.double().sum(1).cpu().numpy(),
    )


def _pad(
    rows: Sequence[tuple[int, ...]], device: torch.device, filler: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Rows of one length, padded on the right, and the mask of what is real where any is not."""
    width = max(len(row) for row in rows)
    ids_BT = torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
    if all(len(row) == width for row in rows):
        return ids_BT.to(device), None
    lengths_B = torch.tensor([len(row) for row in rows])
    real_BT = torch.arange(width) < lengths_B[:, None]
    return ids_BT.to(device), real_BT.to(device)
