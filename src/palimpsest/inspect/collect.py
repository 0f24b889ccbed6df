"""Runs a model over a text and gathers what a page shows of it.

Legend: N tokens of the text, T positions of a call, V vocabulary, P predictions kept, H heads,
K retrieved positions kept, F entries of a state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.analysis import At, Tape, record, taps
from palimpsest.analysis.horizons import half_life, lag_grid, retention_curves
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.inspect.inspection import Heads, Inspection, Retrieved, Series
from palimpsest.inspect.memory import MemoryPictures, choose_positions
from palimpsest.inspect.reading import Stretch, check_window, cut_feed, describe_reading
from palimpsest.inspect.tokens import Cells, cut_cells, token_label
from palimpsest.inspect.trajectory import Trajectory
from palimpsest.inspect.views import Views, find_views, layer_of
from palimpsest.models.language_model import LanguageModel, Predict
from palimpsest.text import Tokenizer

__all__ = ["collect"]

PREDICTIONS = 5  # kept at each token
PLACES = 8  # retrieved positions kept at each token


@dataclass
class _Gathered:
    """Lists of pieces by name, put together at the end."""

    pieces: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def add(self, name: str, piece: Tensor, dtype: torch.dtype) -> None:
        self.pieces.setdefault(name, []).append(piece.to(dtype).cpu().numpy())

    def whole(self, name: str) -> NDArray[Any]:
        return np.concatenate(self.pieces[name])


def collect(
    model: LanguageModel,
    tokenizer: Tokenizer,
    documents: Sequence[Sequence[int] | NDArray[np.int32]],
    *,
    label: str = "model",
    facts: dict[str, str] | None = None,
    window: int | None = None,
    predict: Predict = "next",
    advance: Callable[[int], None] = lambda tokens: None,
) -> Inspection:
    """Read documents and gather what can be seen.

    Args:
        model: any language model.
        tokenizer: the one it was trained with.
        documents: the ids of each, without begin and end tokens; no state passes between them.
        label: what the page calls the model.
        facts: more to list about it.
        window: read in windows of so many tokens; None carries the state (attention reads
            ``model.window``), or takes the longest window of a model that has a bound.
        predict: "current" where the model was trained to predict a first token from its empty
            state.
        advance: told how many tokens were read.

    Returns:
        An :class:`Inspection`.

    Raises:
        InputError: no tokens, a window that the model cannot hold, a model whose predictions are
            not finite.
    """
    kept = [np.asarray(document, dtype=np.int32) for document in documents if len(document)]
    if not kept:
        raise InputError("the text has no tokens; name a text that has some")
    window = check_window(model, window)
    views, found = find_views(taps(model), model.registry_name), _Gathered()
    begin = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    starts = np.cumsum([0, *map(len, kept[:-1])]).tolist()
    pictures = MemoryPictures(
        {name: layer_of(name) for name in views.matrices},
        choose_positions(sum(map(len, kept)), _count_matrices(model, views.matrices)),
    )
    with Trajectory() as trajectory:
        for first, ids in zip(starts, kept, strict=True):
            feed_T = torch.tensor([[*begin, *ids.tolist()]], device=model.device)
            reader = _Reader(model, views, found, trajectory, pictures, first, len(begin))
            reader.read(feed_T, window, predict, advance)
        surprise = found.whole("surprise").astype(np.float32)
        if np.isinf(surprise).any():
            raise InputError(
                f"the predictions of {label} are not finite: its parameters hold NaN or infinite "
                "values, so its training has diverged"
            )
        points_N2, shares = trajectory.project()
    ids_N = np.concatenate(kept)
    cells = cut_cells(tokenizer, ids_N, starts)
    top_ids_NP = found.whole("top_ids").astype(np.int32)
    known = np.unique(np.concatenate([ids_N, top_ids_NP.ravel()]))
    about = taps(model)
    return Inspection(
        label=label,
        facts={
            "model": model.registry_name,
            "parameters": f"{model.num_parameters():,}",
            **({} if model.causal else {"not causal": "predictions see the tokens they predict"}),
            **(facts or {}),
            "mean surprise": _mean_surprise(surprise, cells),
            "reading": describe_reading(
                window, bool(begin), model.describe_reading(max(map(len, kept)))
            ),
        },
        ids_N=ids_N,
        cells=cells,
        document_starts=tuple(starts),
        surprise_N=surprise,
        entropy_N=found.whole("entropy").astype(np.float32),
        rank_N=found.whole("rank").astype(np.int32),
        top_ids_NP=top_ids_NP,
        top_probabilities_NP=found.whole("top_probabilities").astype(np.float32),
        labels={int(i): token_label(tokenizer, int(i)) for i in known},
        trajectory=views.trajectory,
        points_N2=points_N2,
        shares=shares,
        gates=tuple(
            Series(name, about[name].doc, found.whole(name).astype(np.float16))
            for name in views.gates
        ),
        heads=tuple(_heads(name, views, found, starts) for name, _ in views.heads),
        retrieved=tuple(
            Retrieved(
                layer_of(place),
                found.whole(f"{place}positions").astype(np.int32),
                found.whole(f"{place}weights").astype(np.float16),
            )
            for place in views.retrieval
        ),
        memories=pictures.whole(),
        missing=views.missing,
    )


def _count_matrices(model: LanguageModel, names: Sequence[str]) -> int:
    """The memory matrices of all layers, counted by reading one token."""
    if not names:
        return 0
    with inference(model), record(model, names) as tape:
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    return sum(tape[name].flatten(2, -3).shape[2] for name in names)


def _mean_surprise(surprise_N: NDArray[np.float32], cells: Cells) -> str:
    """Over what was predicted: a first token that nothing precedes counts neither as a token nor
    as bytes, as in the evaluation."""
    predicted = np.isfinite(surprise_N)
    if not predicted.any():
        return "nothing was predicted"
    counted = surprise_N[predicted].astype(np.float64)
    n_bytes = int(np.diff(cells.byte_starts_N, append=cells.n_bytes)[predicted].sum())
    per_byte = f"{counted.sum() / n_bytes:.3f}" if n_bytes else "–"
    return f"{counted.mean():.3f} bits per token, {per_byte} per byte"


def _heads(name: str, views: Views, found: _Gathered, starts: Sequence[int]) -> Heads:
    view, values_NH = dict(views.heads)[name], found.whole(name)
    half_lives, longest = _half_lives(values_NH, starts) if view.kind == "retention" else ((), 0)
    return Heads(
        view.title,
        layer_of(name),
        view.kind,
        # as low as float16 goes
        np.maximum(values_NH, -60000.0).astype(np.float16),
        half_lives,
        longest,
    )


def _half_lives(
    logs_NH: NDArray[np.float32], starts: Sequence[int]
) -> tuple[tuple[float | None, ...], int]:
    """k_{1/e} of each head over all starts in all documents, and the longest lag followed."""
    documents = np.split(logs_NH, list(starts)[1:])
    longest = max(1, max(map(len, documents)) // 2)
    lags = [0, *lag_grid(longest)]
    sums_HK = np.zeros((logs_NH.shape[1], len(lags)))
    counts_K = np.zeros(len(lags))
    for document_NH in documents:
        fit = [lag for lag in lags if lag <= len(document_NH)]
        n_starts = len(document_NH) + 1 - np.asarray(fit)
        curve_HK = retention_curves(torch.from_numpy(document_NH)[None], fit).numpy()
        sums_HK[:, : len(fit)] += curve_HK * n_starts
        counts_K[: len(fit)] += n_starts
    return tuple(half_life(lags, curve) for curve in (sums_HK / counts_K).tolist()), longest


class _Reader:
    """Reads one document.

    Args:
        first: the number of its first token among all tokens.
        begins: how many begin tokens are read before it.
    """

    def __init__(
        self,
        model: LanguageModel,
        views: Views,
        found: _Gathered,
        trajectory: Trajectory,
        pictures: MemoryPictures,
        first: int,
        begins: int,
    ) -> None:
        self.model, self.views, self.found, self.trajectory = model, views, found, trajectory
        self.pictures, self.first, self.begins = pictures, first, begins

    def read(
        self, feed_1T: Tensor, window: int | None, predict: Predict, advance: Callable[[int], None]
    ) -> None:
        length, state = feed_1T.shape[1], None
        if not self.begins:
            self._predict_first(feed_1T, predict)
        for part in cut_feed(length, window, self.model.config.vocab_size):
            # begin tokens are read and not shown
            seen = max(part.keep, self.begins)
            offset = self.first - self.begins
            chosen = [
                token - offset - part.start
                for token in self.pictures.within(offset + seen, offset + part.stop)
            ]
            with (
                inference(self.model),
                record(self.model, self.views.taps) as tape,
                self._record_matrices(chosen) as matrices,
            ):
                output = self.model(
                    feed_1T[:, part.start : part.stop], None if part.fresh else state
                )
                state = output.state
                if part.until > part.predict:
                    counted = slice(part.predict - part.start, part.until - part.start)
                    targets_T = feed_1T[0, part.predict + 1 : part.until + 1]
                    self._keep_predictions(output.logits[0, counted], targets_T)
            self._keep_taps(tape, part)
            if matrices is not None:
                for name in self.views.matrices:
                    self.pictures.add(name, matrices[name][0])
            advance(part.stop - part.keep)

    def _record_matrices(self, positions: list[int]) -> AbstractContextManager[Tape | None]:
        """Record the memory matrices at the positions of a call."""
        if not positions or not self.views.matrices:
            return nullcontext()
        return record(self.model, self.views.matrices, where=At(positions=positions))

    def _predict_first(self, feed_1T: Tensor, predict: Predict) -> None:
        if predict == "current":
            with inference(self.model):
                logits_1V = self.model(feed_1T[:, :1], predict="current").logits[0]
            self._keep_predictions(logits_1V, feed_1T[0, :1])
            return
        for name in ("surprise", "entropy"):
            self.found.add(name, torch.full((1,), math.nan), torch.float32)
        width = min(PREDICTIONS, self.model.config.vocab_size)
        self.found.add("rank", torch.zeros(1), torch.int32)
        self.found.add("top_ids", torch.zeros(1, width), torch.int32)
        self.found.add("top_probabilities", torch.zeros(1, width), torch.float32)

    def _keep_predictions(self, logits_TV: Tensor, target_T: Tensor) -> None:
        log_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)).log_softmax(-1)
        own_T1 = log_TV.gather(1, target_T[:, None])
        best = log_TV.topk(min(PREDICTIONS, log_TV.shape[1]), -1)
        # not a number anywhere becomes infinite, which is refused at the end; NaN means "none"
        bits_T = (own_T1[:, 0] / -math.log(2)).nan_to_num(nan=math.inf)
        self.found.add("surprise", bits_T.clamp(min=0), torch.float32)
        # p log p is 0 where p is 0
        entropy_T = torch.special.entr(log_TV.exp()).sum(-1) / math.log(2)
        self.found.add("entropy", entropy_T, torch.float32)
        self.found.add("rank", (log_TV > own_T1).sum(-1) + 1, torch.int32)
        self.found.add("top_ids", best.indices, torch.int32)
        self.found.add("top_probabilities", best.values.exp(), torch.float32)

    def _keep_taps(self, tape: Tape, part: Stretch) -> None:
        # begin tokens are read and not shown
        skip = max(part.keep, self.begins) - part.start

        def shown(name: str) -> Tensor:
            return tape[name][0, skip:]

        state_NF = shown(self.views.trajectory)
        if len(state_NF) == 0:
            return
        self.trajectory.add(state_NF)
        for name in self.views.gates:
            self.found.add(name, shown(name).flatten(1).float().mean(1), torch.float16)
        for name, view in self.views.heads:
            values_NH = shown(name).float()
            if view.kind == "retention":
                values_NH = values_NH if view.logarithm else values_NH.log()
            self.found.add(name, values_NH, torch.float32)
        here_N1 = torch.arange(len(state_NF))[:, None] + skip + part.start - self.begins
        for place in self.views.retrieval:
            lags_NK = shown(f"{place}retrieval.lags")[:, :PLACES].cpu()
            position_NK = here_N1 - lags_NK
            there = (lags_NK > 0) & (position_NK >= 0)
            position_NK = torch.where(there, position_NK + self.first, -1)
            self.found.add(f"{place}positions", position_NK, torch.int32)
            weights_NK = shown(f"{place}retrieval.weights")[:, :PLACES]
            self.found.add(f"{place}weights", weights_NK, torch.float16)
