"""What an evaluation reads and what it counts: windows of a text, and which tokens they predict.

Three protocols, in which every token of a text is predicted exactly once:

- ``windows``: consecutive windows of N tokens, the state reset at each; the last one may be short.
- ``strided``: a window of N tokens every S tokens, the state reset at each; a window counts only
  the tokens that no earlier window has counted, so each has at least N - S tokens of context.
- ``carried``: one state through the whole text.

Documents of one file are separate texts: no window spans two of them and no state passes between.

BOS is read and never counted; EOS is neither read nor counted. ``bos="document"`` reads BOS before
each document, so its first token is predicted from BOS; ``bos="window"`` before each window;
``bos="none"`` never. The first token of a later window is predicted from the token before it (with
``predict="next"``), from BOS, or from the zero state (with ``predict="current"``). Only
``predict="next"`` with ``bos="none"`` leaves a token out: the first of each document, which then
counts neither as a token nor as bytes.

Legend: N tokens of a window, S stride, L tokens of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from palimpsest.errors import InputError
from palimpsest.models.language_model import Predict
from palimpsest.text import Tokenizer

__all__ = [
    "IGNORED",
    "BosRule",
    "Kind",
    "Protocol",
    "Window",
    "document_windows",
    "first_counted",
    "text_windows",
]

Kind = Literal["windows", "strided", "carried"]
BosRule = Literal["auto", "document", "window", "none"]

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a text is cut, what precedes it, and what is counted.

    Attributes:
        kind: "windows", "strided" or "carried" (see the head of this file).
        seq_len: N, in tokens; for "carried" the tokens of one forward, which do not change the
            result.
        stride: S, in tokens, for "strided" only; None takes half of N.
        predict: "next" or "current", how logits align with tokens (see ``LanguageModel.forward``).
        bos: where BOS is read; "auto" is "document" where the tokenizer has one, else "none".
        max_windows: stop after so many windows of the whole text; None for all. Not for "carried".

    Raises:
        InputError: values that mean nothing together.
    """

    kind: Kind = "windows"
    seq_len: int = 512
    stride: int | None = None
    predict: Predict = "next"
    bos: BosRule = "auto"
    max_windows: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("kind", Kind), ("predict", Predict), ("bos", BosRule)):
            if getattr(self, name) not in get_args(known):
                raise InputError(
                    f"{name}={getattr(self, name)!r}: choose one of {', '.join(get_args(known))}"
                )
        if self.seq_len < 1:
            raise InputError(f"seq_len={self.seq_len}: must be at least 1 token")
        if self.kind == "strided":
            stride = max(self.seq_len // 2, 1) if self.stride is None else self.stride
            if not 1 <= stride <= self.seq_len:
                raise InputError(
                    f"stride={stride}: must be from 1 to seq_len={self.seq_len}, or tokens between "
                    "two windows would never be predicted"
                )
            object.__setattr__(self, "stride", stride)
        elif self.stride is not None:
            raise InputError(f"stride={self.stride}: only the strided protocol has one")
        if self.max_windows is not None and self.kind == "carried":
            raise InputError(f"max_windows={self.max_windows}: the carried protocol has no windows")
        if self.max_windows is not None and self.max_windows < 1:
            raise InputError(f"max_windows={self.max_windows}: must be at least 1")
        if self.kind == "carried" and self.bos == "window":
            raise InputError(
                "bos='window': the carried protocol has no windows; use bos='document'"
            )

    def resolve(self, tokenizer: Tokenizer) -> Protocol:
        """The same protocol with ``bos="auto"`` decided.

        Raises:
            InputError: BOS is asked of a tokenizer that has none.
        """
        if self.bos == "auto":
            return replace(self, bos="none" if tokenizer.bos_id is None else "document")
        if self.bos != "none" and tokenizer.bos_id is None:
            raise InputError(
                f"bos={self.bos!r}: tokenizer {tokenizer.name!r} has no BOS token; use bos='none'"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    def describe(self) -> str:
        """One line that says all of it, for tables and results."""
        if self.kind == "carried":
            cut = "state carried through each document"
        elif self.kind == "windows":
            cut = f"windows of {self.seq_len} tokens, state reset at each"
        else:
            cut = f"windows of {self.seq_len} tokens every {self.stride}, state reset at each"
        if self.max_windows is not None:
            cut += f", the first {self.max_windows}"
        before = {
            "document": "BOS before each document",
            "window": "BOS before each window",
            "none": "no BOS",
            "auto": "BOS where the tokenizer has one",
        }[self.bos]
        if self.bos == "none" and self.predict == "next":
            before += ", the first token of a document not counted"
        return f"{cut}; {before}; EOS not counted; predict={self.predict}"


class Window(NamedTuple):
    """One row to read: inputs and targets (T,) int64, targets -100 where not counted."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


def first_counted(protocol: Protocol) -> int:
    """The first token of a document that is predicted: 0, or 1 where nothing precedes it."""
    return int(protocol.bos == "none" and protocol.predict == "next")


def document_windows(
    tokens: NDArray[Any], protocol: Protocol, bos_id: int | None
) -> Iterator[Window]:
    """All windows of one document; for "carried", one window that is the whole document.

    Args:
        tokens: (n,) ids of the text, without BOS or EOS.
        protocol: resolved (``bos`` is not "auto").
        bos_id: the tokenizer's BOS; read only where the protocol asks for it.
    """
    lead = bos_id if protocol.bos == "window" else None
    stream = np.asarray(tokens).astype(np.int64)
    if protocol.bos == "document":
        stream = np.concatenate([np.array([bos_id], np.int64), stream])
    # a target before `first` has nothing that predicts it; one before `counted` is no text
    first = int(protocol.predict == "next" and lead is None)
    counted = int(protocol.bos == "document" or first)
    length = len(stream)
    size = length if protocol.kind == "carried" else protocol.seq_len
    step = protocol.stride or size
    low = first
    while counted < length:
        high = min(low + size, length)
        if high > counted:  # not where a window of one token is BOS itself
            yield _cut(stream, low, high, counted, protocol.predict, lead)
            counted = high
        low += step


def text_windows(
    documents: Iterable[NDArray[Any]], protocol: Protocol, bos_id: int | None
) -> Iterator[tuple[int, Window]]:
    """The windows of all documents, each with its document's number; ``max_windows`` in all."""
    left = protocol.max_windows
    for index, tokens in enumerate(documents):
        for window in document_windows(tokens, protocol, bos_id):
            if left == 0:
                return
            yield index, window
            left = None if left is None else left - 1


def _cut(
    stream: NDArray[np.int64], low: int, high: int, counted: int, predict: Predict, lead: int | None
) -> Window:
    """Targets stream[low:high], counted from position ``counted`` on."""
    targets = stream[low:high].copy()
    targets[: max(counted - low, 0)] = IGNORED
    if lead is None:
        shift = int(predict == "next")
        return Window(stream[low - shift : high - shift], targets)
    before = np.array([lead], np.int64)
    if predict == "next":
        return Window(np.concatenate([before, stream[low : high - 1]]), targets)
    targets = np.concatenate([np.array([IGNORED], np.int64), targets])
    return Window(np.concatenate([before, stream[low:high]]), targets)
