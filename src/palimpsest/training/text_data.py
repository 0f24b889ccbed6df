"""Training on text: the corpus of a recipe, its batches, and the validation on held-out text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palimpsest.errors import ConfigError
from palimpsest.models import LanguageModel
from palimpsest.text import (
    Corpus,
    RandomWindowSampler,
    StreamSampler,
    Tokenizer,
    WindowSampler,
    consecutive_windows,
    load_tokenizer,
    open_shards,
    prepare_wikitext,
    read_documents,
    split_documents,
)
from palimpsest.training.batch import Autocast, TrainBatch, TrainingData
from palimpsest.training.recipe import DataRecipe, Recipe

__all__ = ["TextSource", "TextValidation", "text_data"]

SHARDS_HEADER = "shards.json"


class TextSource:
    """Windows of a corpus, read as the recipe's ``predict`` says.

    Args:
        sampler: cuts the windows.
        predict: "next" or "current"; for "current" the targets are the inputs themselves.
    """

    def __init__(
        self, sampler: WindowSampler | RandomWindowSampler | StreamSampler, predict: str
    ) -> None:
        self._sampler = sampler
        self._current = predict == "current"

    @property
    def carries_state(self) -> bool:
        return isinstance(self._sampler, StreamSampler)

    def batch_at(self, step: int) -> TrainBatch:
        batch = self._sampler.batch_at(step)
        targets = batch.inputs if self._current else batch.targets
        return TrainBatch(batch.inputs, targets, batch.reset)

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self._sampler, RandomWindowSampler):
            return self._sampler.state_dict()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self._sampler, RandomWindowSampler):
            self._sampler.load_state_dict(state)


class TextValidation:
    """The first windows of the held-out text, each from the zero state.

    The loss is the mean over all targets, BOS and EOS among them. Bits per byte divides the same
    sum by the bytes of text that these targets stand for; it is left out where the tokenizer
    changed the text, so that its ids do not count the bytes exactly.

    Args:
        corpus: the held-out text.
        tokenizer: the one that made it.
        recipe: for the window's length, the reading and how many windows.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> None:
        train = recipe.train
        self._corpus = corpus
        self._length = recipe.data.seq_len
        self._predict = train.predict
        self._rows = train.batch_size // train.grad_accumulation
        there = (corpus.num_tokens - 1) // self._length
        self.windows = min(there, train.eval_batches * train.batch_size)
        next(iter(consecutive_windows(corpus, self._length, 1)))  # refuses too short a text
        first = 0 if self._predict == "current" else 1
        stop = first + self.windows * self._length
        self.num_bytes = (
            int(corpus.byte_lengths(tokenizer, first, stop).sum(dtype=np.int64))
            if corpus.inexact_documents == 0
            else 0
        )

    def measure(self, model: LanguageModel, autocast: Autocast) -> dict[str, Any]:
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        for batch in consecutive_windows(
            self._corpus, self._length, self._rows, limit=self.windows
        ):
            inputs = batch.inputs.to(model.device)
            current = self._predict == "current"
            targets = inputs if current else batch.targets.to(model.device)
            with autocast():
                out = model(inputs, targets=targets, predict=self._predict)
            assert out.loss_sum is not None
            total += out.loss_sum.double()
        nats = float(total)
        row: dict[str, Any] = {"loss": nats / (self.windows * self._length)}
        if self.num_bytes:
            row["bits_per_byte"] = nats / math.log(2) / self.num_bytes
        return row


def text_data(recipe: Recipe, tokenizer: Tokenizer | None = None) -> TrainingData:
    """Read the text of a recipe.

    Args:
        recipe: whose ``data.train`` names the text.
        tokenizer: takes the place of the recipe's (a run's own copy, on resuming).

    Raises:
        PalimpsestError, TextError: nothing to read, unreadable text, too little of it, an unknown
            tokenizer.
    """
    data, train = recipe.data, recipe.train
    if not data.train:
        raise ConfigError(
            "data.train is empty: name text files or folders (--data FILE), "
            "or a task (--task recall)"
        )
    if tokenizer is None:
        if not data.tokenizer:
            raise ConfigError(
                "data.tokenizer is not set: this recipe needs one of its own "
                "(--tokenizer FILE, or 'bytes')"
            )
        tokenizer = load_tokenizer(data.tokenizer)
    corpus, held_out = _corpora(data, tokenizer)
    sampler: WindowSampler | RandomWindowSampler | StreamSampler
    if data.order == "stream":
        starts = None if data.reset_at_documents else np.array([], dtype=np.int64)
        sampler = StreamSampler(corpus, data.seq_len, train.batch_size, document_starts=starts)
        if train.batch_size > sampler.num_windows:
            raise ConfigError(
                f"train.batch_size={train.batch_size} with data.order='stream': the text has only "
                f"{sampler.num_windows} windows of data.seq_len={data.seq_len}, one row each"
            )
    elif data.order == "random":
        sampler = RandomWindowSampler(corpus, data.seq_len, train.batch_size, train.seed)
    else:
        sampler = WindowSampler(corpus, data.seq_len, train.batch_size, train.seed)
    validation = None
    if held_out is not None and train.eval_every:
        validation = TextValidation(held_out, tokenizer, recipe)
    names = [Path(path).name for path in data.train]
    description: dict[str, Any] = {
        "train": _describe(corpus, data.train),
        "tokenizer": {"name": tokenizer.name, "fingerprint": tokenizer.fingerprint()},
    }
    if validation is not None and held_out is not None:
        description["validation"] = {
            **_describe(held_out, data.validation or data.train),
            "protocol": f"the first {validation.windows} windows of {data.seq_len} tokens, "
            "each from the zero state",
            "bytes_measured": validation.num_bytes or None,
        }
    return TrainingData(
        source=TextSource(sampler, train.predict),
        validation=validation,
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer,
        description=description,
        label=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
    )


def _corpora(data: DataRecipe, tokenizer: Tokenizer) -> tuple[Corpus, Corpus | None]:
    """The training text and the held-out text."""
    shards = _shards(data.train)
    if data.validation or shards or data.validation_fraction == 0.0:
        if shards and not data.validation and data.validation_fraction:
            raise ConfigError(
                f"data.train={shards!r}: token shards cannot be split; name data.validation, "
                "or set data.validation_fraction=0"
            )
        held_out = _read(data, data.validation, tokenizer) if data.validation else None
        return _read(data, data.train, tokenizer), held_out
    documents = list(read_documents(data.train, field=data.text_field))
    if data.prepare == "wikitext":
        documents = [prepare_wikitext(documents)]
    parts = split_documents(documents, data.validation_fraction)
    return (
        Corpus.from_documents(parts[0], tokenizer),
        Corpus.from_documents(parts[1], tokenizer),
    )


def _read(data: DataRecipe, paths: Sequence[str], tokenizer: Tokenizer) -> Corpus:
    shards = _shards(paths)
    if shards:
        return open_shards(shards, tokenizer=tokenizer)
    documents = read_documents(paths, field=data.text_field)
    return Corpus.from_documents(documents, tokenizer, prepare=data.prepare)


def _shards(paths: Sequence[str]) -> str | None:
    folders = [path for path in paths if (Path(path) / SHARDS_HEADER).is_file()]
    if folders and len(paths) > 1:
        raise ConfigError(f"{folders[0]}: a folder of token shards must be the only path")
    return folders[0] if folders else None


def _describe(corpus: Corpus, paths: Sequence[str]) -> dict[str, Any]:
    return {
        "paths": list(paths),
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "bytes": corpus.num_bytes,
        "sha256": corpus.text_sha256,
    }
