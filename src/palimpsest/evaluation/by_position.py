"""Loss by position in the window: does context help to the end of it?

A text is cut into consecutive windows of N tokens, the state reset at each, and the loss at each
position is averaged over the windows. All positions see the same mixture of text, so what differs
between them is the context alone. Neighbouring positions are joined into buckets; the standard
errors are over the windows, and the gain from one bucket to the next is taken within each window.

Legend: W windows, N tokens of a window, G buckets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from palimpsest.errors import InputError, counted
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.evaluation.perplexity import check_tokenizer
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.protocol import IGNORED, BosRule, Protocol, Window, text_windows
from palimpsest.evaluation.record import TextResult, context_note, provenance
from palimpsest.evaluation.statistics import Estimate, mean
from palimpsest.models.language_model import LanguageModel, Predict
from palimpsest.text import Corpus, Tokenizer, read_documents

__all__ = ["Bucket", "PositionsResult", "Spacing", "evaluate_positions", "position_buckets"]

Spacing = Literal["log", "equal"]
LEAST_WINDOWS = 2


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring positions of the window.

    Attributes:
        first: the first position, counted from 1: it has 1 token of the window's text, BOS or the
            token before the window to be predicted from, the next one has 2, and so on.
        last: the last position.
        tokens: predictions counted, over all windows.
        loss: mean nats per token.
        gain: the bucket before minus this one, in nats, paired by window; None for the first.
            Above 0, the longer context helps.
    """

    first: int
    last: int
    tokens: int
    loss: Estimate
    gain: Estimate | None

    @classmethod
    def read(cls, found: Any) -> Bucket:
        """From a bucket or from what JSON keeps of one."""
        if isinstance(found, cls):
            return found
        gain = None if found["gain"] is None else Estimate.read(found["gain"])
        return cls(**{**found, "loss": Estimate.read(found["loss"]), "gain": gain})


@dataclass(frozen=True, kw_only=True)
class PositionsResult(TextResult):
    """Loss by position (the other fields: see ``Result``).

    ``data_sha256`` is over the text, as for perplexity.

    Attributes:
        windows: whole windows read.
        left_out: tokens at the ends of documents that fill no window.
        buckets: from the first position to the last.
    """

    SCHEMA: ClassVar[str] = "palimpsest-positions"
    KIND: ClassVar[str] = "loss by position"

    windows: int
    left_out: int
    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", tuple(Bucket.read(b) for b in self.buckets))

    @property
    def loss(self) -> float:
        """Mean nats per token over all positions."""
        tokens = sum(b.tokens for b in self.buckets)
        return sum(b.loss.value * b.tokens for b in self.buckets) / tokens

    @property
    def context_helps_until(self) -> int:
        """The last position of the last bucket that is better than the one before.

        Better by more than the 95 % interval of the gain; 1 where none is.
        """
        better = [b.last for b in self.buckets if b.gain is not None and b.gain.low > 0]
        return max(better, default=1)

    def derived(self) -> dict[str, Any]:
        return {"loss": self.loss, "context_helps_until": self.context_helps_until}

    def rows(self) -> dict[str, str]:
        last = self.buckets[-1]
        end = ""
        if last.gain is not None:
            end = (
                f"; the last bucket gains {last.gain.value:.4f} nats "
                f"(95 %: {last.gain.low:.4f} … {last.gain.high:.4f}) over the one before"
            )
        helps = f"helps up to position {self.context_helps_until}"
        if self.context_helps_until == 1:
            helps = "no bucket is better than the one before by more than chance"
        return {
            "tokenizer": f"{self.tokenizer} ({self.tokenizer_fingerprint[:16]}…)",
            "counted": f"{counted(self.windows, 'window')}; "
            f"{counted(self.left_out, 'token')} left out",
            "loss": f"{self.loss:.4f} nats per token",
            "context": f"{helps}{end}",
        }

    def by_position(self) -> Table:
        """One line for each bucket."""
        table = Table()
        for name in ("position", "tokens", "nats/token", "± s.e.", "gain", "± s.e."):
            table.add_column(name, justify="right")
        for b in self.buckets:
            gain = ("", "") if b.gain is None else (f"{b.gain.value:+.4f}", _error(b.gain))
            where = str(b.first) if b.first == b.last else f"{b.first}–{b.last}"
            table.add_row(where, f"{b.tokens:,}", f"{b.loss.value:.4f}", _error(b.loss), *gain)
        return table


def evaluate_positions(
    model: LanguageModel,
    tokenizer: Tokenizer,
    path: str | Path,
    *,
    seq_len: int = 512,
    spacing: Spacing = "log",
    buckets: int = 8,
    predict: Predict = "next",
    bos: BosRule = "auto",
    max_windows: int | None = None,
    batch_size: int = 8,
    precision: Precision = "fp32",
    prepare: str = "none",
    field: str = "text",
    source: str | None = None,
    seed: int | None = None,
    trained_with: str | None = None,
    progress: bool = True,
) -> PositionsResult:
    """Measure the loss by position in the window.

    Args:
        model: any language model; it comes back in the mode it was in.
        tokenizer: the one the model was trained with.
        path: what ``palimpsest.text.read_documents`` reads.
        seq_len: N, tokens of a window.
        spacing: "log": 1, 2, 3–4, 5–8, …; "equal": ``buckets`` of equal width.
        buckets: how many, for "equal" only.
        predict, bos, max_windows, prepare, field: as for perplexity (see ``Protocol``).
        batch_size: windows of a forward; changes the result by rounding only.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        source, seed, trained_with, progress: as for ``evaluate_text``.

    Raises:
        InputError: a tokenizer or a protocol that does not fit the model, or a text that fills
            fewer than two windows.
        CorpusError: a file that is missing, empty or not UTF-8.
    """
    check_tokenizer(model, tokenizer, trained_with)
    check_precision(precision)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: must be at least 1")
    edges = position_buckets(seq_len, spacing, buckets)
    protocol = Protocol(
        kind="windows", seq_len=seq_len, predict=predict, bos=bos, max_windows=max_windows
    ).resolve(tokenizer)
    stretch = seq_len + int(predict == "current" and protocol.bos == "window")
    if model.max_length is not None and stretch > model.max_length:
        raise InputError(
            f"a window of {stretch} tokens: {model.describe_bound()}; use a smaller seq_len"
        )
    corpus = Corpus.from_documents(
        read_documents(path, field=field), tokenizer, bos=False, eos=False, prepare=prepare
    )
    windows: list[Window] = []
    read = 0
    documents = map(corpus.document, range(corpus.num_documents))
    for _, window in text_windows(documents, protocol, tokenizer.bos_id):
        read += int((window.targets != IGNORED).sum())
        if len(window.targets) == stretch:
            windows.append(window)
    if len(windows) < LEAST_WINDOWS:
        raise InputError(
            f"{path}: fills {counted(len(windows), 'window')} of {seq_len} tokens, and "
            f"standard errors need {LEAST_WINDOWS}; use a longer text or a smaller seq_len"
        )
    start = time.perf_counter()
    losses_WN = _read(model, windows, predict, batch_size, precision, str(path), progress)
    wall_seconds = time.perf_counter() - start
    losses_WN = losses_WN[:, stretch - seq_len :]
    counted_WN = np.stack([w.targets != IGNORED for w in windows])[:, stretch - seq_len :]
    if not math.isfinite(float(losses_WN.sum())):
        raise InputError(
            f"the loss of {source or model.registry_name} on {path} is not finite: its training "
            "has diverged"
        )
    return PositionsResult(
        **provenance(model, precision, stretch),
        source=source,
        data=str(path),
        data_sha256=corpus.text_sha256,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        protocol=f"loss by position in {protocol.describe()}; whole windows only"
        + ("" if prepare == "none" else f"; prepare={prepare}")
        + context_note(model, stretch),
        settings={
            **protocol.to_dict(),
            "spacing": spacing,
            "buckets": len(edges),
            "prepare": prepare,
            "window": model.window,
        },
        seed=seed,
        batch_size=batch_size,
        wall_seconds=wall_seconds,
        windows=len(windows),
        left_out=read - int(counted_WN.sum()),
        buckets=tuple(_buckets(losses_WN, counted_WN, edges)),
    )


def position_buckets(
    seq_len: int, spacing: Spacing = "log", buckets: int = 8
) -> list[tuple[int, int]]:
    """First and last position of each bucket, counted from 1; together they are 1 … seq_len.

    Raises:
        InputError: an unknown spacing, or more buckets than positions.
    """
    if spacing not in get_args(Spacing):
        raise InputError(f"spacing={spacing!r}: choose one of {', '.join(get_args(Spacing))}")
    if seq_len < 2:
        raise InputError(f"seq_len={seq_len}: must be at least 2, or there is nothing to compare")
    if spacing == "log":
        ends = [1 << i for i in range(seq_len.bit_length()) if 1 << i < seq_len] + [seq_len]
    else:
        if not 1 <= buckets <= seq_len:
            raise InputError(f"buckets={buckets}: must be from 1 to seq_len={seq_len}")
        ends = [round(seq_len * (i + 1) / buckets) for i in range(buckets)]
    return [(low + 1, high) for low, high in zip([0, *ends], ends, strict=False)]


def _buckets(
    losses_WN: NDArray[np.float64], counted_WN: NDArray[np.bool_], edges: Sequence[tuple[int, int]]
) -> list[Bucket]:
    found: list[Bucket] = []
    before_W: NDArray[np.float64] | None = None
    for first, last in edges:
        where = slice(first - 1, last)
        tokens_W = counted_WN[:, where].sum(1)
        full = tokens_W > 0  # BOS read as a first token counts for nothing
        if not full.any():
            continue
        sums_W = losses_WN[:, where].sum(1)
        means_W = np.where(full, sums_W / np.maximum(tokens_W, 1), np.nan)
        gain = None
        if before_W is not None:
            both = np.isfinite(before_W) & full
            gain = mean((before_W - means_W)[both]) if both.any() else None
        found.append(
            Bucket(
                first=first,
                last=last,
                tokens=int(tokens_W.sum()),
                loss=mean(means_W[full]),
                gain=gain,
            )
        )
        before_W = means_W
    return found


def _read(
    model: LanguageModel,
    windows: Sequence[Window],
    predict: Predict,
    batch_size: int,
    precision: Precision,
    label: str,
    progress: bool,
) -> NDArray[np.float64]:
    """Nats at every position of every window, 0 where not counted."""
    parts = []
    total = sum(len(w.inputs) for w in windows)
    with track(label, total) if progress else nullcontext(lambda _: None) as advance:
        for low in range(0, len(windows), batch_size):
            rows = windows[low : low + batch_size]
            ids = torch.from_numpy(np.stack([w.inputs for w in rows])).to(model.device)
            targets = torch.from_numpy(np.stack([w.targets for w in rows])).to(model.device)
            with inference(model, precision):
                out = model(ids, targets=targets, predict=predict)
            assert out.token_losses is not None
            parts.append(out.token_losses.double().cpu().numpy())
            advance(ids.numel())
    return np.concatenate(parts)


def _error(estimate: Estimate) -> str:
    return "" if estimate.stderr is None else f"{estimate.stderr:.4f}"
