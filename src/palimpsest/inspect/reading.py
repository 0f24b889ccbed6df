"""How a model reads a text that is longer than one call.

A model without a bound reads on and on, its state carried from piece to piece; attention then reads
a sliding window of the length that it was trained on. A model with a bound,
or one that is asked to, reads windows that overlap by half, each from an empty state, and a
position counts in the window where it has half a window or more before it.

Legend: T positions of a feed, a document with its begin token where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel

__all__ = ["Stretch", "check_window", "cut_feed", "describe_reading"]

PIECE = 512  # tokens of one call while the state is carried
LOGITS = 1 << 24  # entries of the largest array of logits


@dataclass(frozen=True)
class Stretch:
    """One call of the model.

    Attributes:
        start, stop: the positions of the feed that are read.
        keep: the first of them that is recorded; all before it were recorded before.
        fresh: whether to start from an empty state.
        predict: the first position whose prediction (of the token after it) counts.
        until: one more than the last such position.
    """

    start: int
    stop: int
    keep: int
    fresh: bool
    predict: int
    until: int


def check_window(model: LanguageModel, window: int | None) -> int | None:
    """The window to read in, or None to carry the state.

    Raises:
        InputError: fewer than 2 tokens, or more than the model holds.
    """
    bound = model.max_length
    if window is None or (window == 0 and model.window == 0):
        return bound
    if window < 2 or (bound is not None and window > bound):
        most = "" if bound is None else f"; {model.describe_bound()}"
        raise InputError(f"window={window}: must be at least 2{most}")
    return window


def cut_feed(length: int, window: int | None, vocabulary: int) -> Iterator[Stretch]:
    """Cut a feed of ``length`` positions into calls."""
    if window is None:
        piece = max(1, min(PIECE, LOGITS // vocabulary))
        for start in range(0, length, piece):
            stop = min(start + piece, length)
            yield Stretch(start, stop, start, start == 0, start, min(stop, length - 1))
        return
    step, seen = max(1, window // 2), min(window, length)
    yield Stretch(0, seen, 0, True, 0, min(seen, length - 1))
    while seen < length:
        stop = min(seen + step, length)
        # what just follows a window is predicted in it, from all of it
        yield Stretch(max(0, stop - window), stop, seen, True, seen, min(stop, length - 1))
        seen = stop


def describe_reading(window: int | None, begin: bool, attention: str = "") -> str:
    """The rule in a sentence, for the page.

    Args:
        window: as given by :func:`check_window`.
        begin: whether a begin token is read.
        attention: what the model says about a text of this length.
    """
    first = " A begin token is read first and not shown." if begin else ""
    if window is None:
        limit = f"; {attention}" if attention else ""
        return f"One state is carried through each document{limit}.{first}"
    return (
        f"Windows of {window} tokens that overlap by half, each from an empty state; a token "
        f"counts where it has most context.{first}"
    )
