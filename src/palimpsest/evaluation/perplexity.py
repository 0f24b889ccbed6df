"""Perplexity and bits per byte of a text, by a stated protocol.

Legend: B batch, T time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palimpsest.arguments import (
    require_model,
    require_path,
    require_tokenizer,
    require_type,
    require_whole,
)
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.protocol import (
    IGNORED,
    Protocol,
    Window,
    first_counted,
    text_windows,
)
from palimpsest.evaluation.record import context_note, provenance
from palimpsest.evaluation.result import EvaluationResult
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from palimpsest.text import Corpus, Document, Tokenizer, read_documents

__all__ = ["check_tokenizer", "evaluate_documents", "evaluate_text"]

VOCABULARY_MULTIPLE = 128  # models round their vocabulary up to a multiple of at most this


def evaluate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    path: str | Path,
    *,
    protocol: Protocol | None = None,
    batch_size: int = 8,
    precision: Precision = "fp32",
    prepare: str = "none",
    field: str = "text",
    source: str | None = None,
    seed: int | None = None,
    trained_with: str | None = None,
    progress: bool = True,
) -> EvaluationResult:
    """Evaluate a model on a file or folder of text.

    Args:
        model: any language model; it comes back in the mode it was in.
        tokenizer: the one the model was trained with.
        path: what ``palimpsest.text.read_documents`` reads.
        protocol: how to cut and count; None is ``Protocol()``.
        batch_size: rows of a forward; changes the result by rounding only.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        prepare: "none" or "wikitext".
        field: which field of a JSON object holds the text.
        source: what the result calls the model, such as its folder.
        seed: the model's training seed, to be kept in the result.
        trained_with: the fingerprint of the tokenizer saved with the model, to be compared.
        progress: whether to show progress on standard error.

    Raises:
        InputError: a tokenizer, protocol or text that does not fit the model.
        CorpusError: a file that is missing, empty or not UTF-8.
    """
    require_model(model)
    require_tokenizer(tokenizer)
    require_path(path, "path")
    if protocol is not None:
        wanted = "pass a palimpsest.evaluation.Protocol, such as Protocol(kind='carried')"
        require_type(protocol, "protocol", Protocol, wanted)
    require_whole(batch_size, "batch_size")
    check_precision(precision)
    check_tokenizer(model, tokenizer, trained_with)
    return evaluate_documents(
        model,
        tokenizer,
        read_documents(path, field=field),
        data=str(path),
        protocol=protocol,
        batch_size=batch_size,
        precision=precision,
        prepare=prepare,
        source=source,
        seed=seed,
        trained_with=trained_with,
        progress=progress,
    )


def evaluate_documents(
    model: LanguageModel,
    tokenizer: Tokenizer,
    documents: Iterable[Document],
    *,
    data: str,
    protocol: Protocol | None = None,
    batch_size: int = 8,
    precision: Precision = "fp32",
    prepare: str = "none",
    source: str | None = None,
    seed: int | None = None,
    trained_with: str | None = None,
    progress: bool = True,
) -> EvaluationResult:
    """Evaluate a model on documents already read (see :func:`evaluate_text`).

    Args:
        documents: separate texts; no state passes from one to the next.
        data: what the result calls them.
    """
    check_tokenizer(model, tokenizer, trained_with)
    check_precision(precision)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: must be at least 1")
    protocol = (protocol or Protocol()).resolve(tokenizer)
    corpus = Corpus.from_documents(documents, tokenizer, bos=False, eos=False, prepare=prepare)
    stretch = _longest_stretch(corpus, protocol)
    if model.max_length is not None and stretch > model.max_length:
        raise InputError(
            f"a stretch of {stretch} tokens: {model.describe_bound()}; "
            "use a smaller seq_len, and not the carried protocol"
        )

    counts = [0, 0]  # tokens, bytes

    def windows() -> Iterator[Window]:
        documents = map(corpus.document, range(corpus.num_documents))
        found = text_windows(documents, protocol, tokenizer.bos_id)
        for index, those in groupby(found, key=itemgetter(0)):
            counted = 0
            for _, window in those:
                counted += int((window.targets != IGNORED).sum())
                yield window
            counts[0] += counted
            counts[1] += _counted_bytes(corpus, tokenizer, index, first_counted(protocol), counted)

    read = _read_carried if protocol.kind == "carried" else _read_windows
    total, start = 0.0, time.perf_counter()
    with _progress(data, protocol, corpus, progress) as advance:
        for batch in _batches(windows(), batch_size):
            total += read(model, batch, protocol, precision, advance)
    wall_seconds = time.perf_counter() - start

    tokens, num_bytes = counts
    if not tokens or not num_bytes:
        raise InputError(f"{data}: no token can be predicted in it; evaluate a longer text")
    if not math.isfinite(total):
        raise InputError(
            f"the loss of {source or model.registry_name} on {data} is {total}: its parameters "
            "hold NaN or infinite values, so its training has diverged"
        )
    return EvaluationResult(
        **provenance(model, precision, stretch),
        source=source,
        data=data,
        data_sha256=corpus.text_sha256,
        documents=corpus.num_documents,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        protocol=protocol.describe()
        + ("" if prepare == "none" else f"; prepare={prepare}")
        + context_note(model, stretch),
        settings={**protocol.to_dict(), "prepare": prepare, "window": model.window},
        tokens=tokens,
        bytes=num_bytes,
        loss=total / tokens,
        seed=seed,
        batch_size=batch_size,
        wall_seconds=wall_seconds,
    )


def check_tokenizer(
    model: LanguageModel, tokenizer: Tokenizer, trained_with: str | None = None
) -> None:
    """Refuse a tokenizer that is not the model's.

    Args:
        trained_with: the fingerprint of the tokenizer saved with the model, where one was. Without
            it the vocabularies must agree in size, but for a model's own rounding up to a multiple
            of at most 128.

    Raises:
        InputError: another fingerprint, or a vocabulary of another size; both are named.
    """
    ids, rows = tokenizer.vocab_size, model.config.vocab_size
    if trained_with is None:
        fits = ids <= rows <= -(-ids // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    elif trained_with == tokenizer.fingerprint():
        fits = ids <= rows
    else:
        raise InputError(
            f"tokenizer {tokenizer.name!r} has the fingerprint {tokenizer.fingerprint()[:16]}…, "
            f"the model was trained with {trained_with[:16]}…; use the tokenizer saved with it"
        )
    if not fits:
        raise InputError(
            f"tokenizer {tokenizer.name!r} has {ids} ids, the model's vocab_size is {rows}; "
            "use the tokenizer that the model was trained with"
        )


def _longest_stretch(corpus: Corpus, protocol: Protocol) -> int:
    """The most positions that one state reads."""
    longest = max(len(corpus.document(i)) for i in range(corpus.num_documents))
    if protocol.kind != "carried":
        longest = min(longest, protocol.seq_len)
    return longest + int(protocol.predict == "current" and protocol.bos != "none")


def _progress(
    data: str, protocol: Protocol, corpus: Corpus, show: bool
) -> AbstractContextManager[Callable[[int], None]]:
    """The progress bar over the tokens that will be read and counted."""
    if not show:
        return nullcontext(lambda _: None)
    total = corpus.num_tokens
    if protocol.max_windows is not None:
        step = protocol.stride or protocol.seq_len
        total = min(total, protocol.seq_len + (protocol.max_windows - 1) * step)
    return track(data, total)


def _counted_bytes(
    corpus: Corpus, tokenizer: Tokenizer, index: int, first: int, counted: int
) -> int:
    """UTF-8 bytes of the tokens first … first + counted - 1 of a document.

    For a whole document these are the bytes of its text, also where a tokenizer changes the text.
    """
    start, length = int(corpus.document_starts[index]), len(corpus.document(index))
    if first + counted < length:
        lengths = corpus.byte_lengths(tokenizer, start + first, start + first + counted)
        return int(lengths.sum(dtype=np.int64))
    skipped = corpus.byte_lengths(tokenizer, start, start + min(first, length))
    return int(corpus.document_bytes[index]) - int(skipped.sum(dtype=np.int64))


def _batches(windows: Iterator[Window], size: int) -> Iterator[list[Window]]:
    while batch := list(islice(windows, size)):
        yield batch


def _stack(rows: Sequence[Window], device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids, targets and, where rows differ in length, the mask of a batch padded on the right."""
    width = max(len(row.inputs) for row in rows)
    ids_BT = np.zeros((len(rows), width), np.int64)
    targets_BT = np.full((len(rows), width), IGNORED, np.int64)
    real_BT = np.zeros((len(rows), width), bool)
    for i, row in enumerate(rows):
        ids_BT[i, : len(row.inputs)] = row.inputs
        targets_BT[i, : len(row.targets)] = row.targets
        real_BT[i, : len(row.inputs)] = True
    mask = None if real_BT.all() else torch.from_numpy(real_BT).to(device)
    return torch.from_numpy(ids_BT).to(device), torch.from_numpy(targets_BT).to(device), mask


def _forward(
    model: LanguageModel,
    rows: Sequence[Window],
    state: State | None,
    protocol: Protocol,
    precision: Precision,
) -> tuple[float, State]:
    """The sum of the counted losses (added up in float64, so that B does not matter)."""
    ids_BT, targets_BT, mask_BT = _stack(rows, model.device)
    with inference(model, precision):
        out = model(
            ids_BT, state, targets=targets_BT, attention_mask=mask_BT, predict=protocol.predict
        )
    assert out.token_losses is not None
    return float(out.token_losses.cpu().double().sum()), out.state


def _read_windows(
    model: LanguageModel,
    batch: list[Window],
    protocol: Protocol,
    precision: Precision,
    advance: Callable[[int], None],
) -> float:
    total, _ = _forward(model, batch, None, protocol, precision)
    advance(sum(int((row.targets != IGNORED).sum()) for row in batch))
    return total


def _read_carried(
    model: LanguageModel,
    batch: list[Window],
    protocol: Protocol,
    precision: Precision,
    advance: Callable[[int], None],
) -> float:
    """Each row is a document, read in chunks; rows that have ended leave the batch."""
    rows = sorted(batch, key=lambda row: -len(row.inputs))
    state: State | None = None
    total, size = 0.0, protocol.seq_len
    for start in range(0, len(rows[0].inputs), size):
        alive = [row for row in rows if len(row.inputs) > start]
        if state is not None and len(alive) < len(rows):
            state = state.select(slice(len(alive)))
        rows = alive
        chunk = [
            Window(r.inputs[start : start + size], r.targets[start : start + size]) for r in rows
        ]
        value, state = _forward(model, chunk, state, protocol, precision)
        total += value
        advance(sum(len(row.inputs) for row in chunk))
    return total
