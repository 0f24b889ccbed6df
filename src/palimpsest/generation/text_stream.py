"""From ids to text that can be shown at once: whole characters, and nothing of a stop string.

Two things hold text back. An id may end inside a UTF-8 character, so bytes wait for the rest of it;
and the end of the text may be the beginning of a stop string, so characters wait until it is
decided. What waits is plain data, so that it can be saved with a session.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.errors import InputError
from palimpsest.text import Tokenizer

__all__ = ["TextStream", "Waiting", "check_stop"]


@dataclass(frozen=True)
class Waiting:
    """What has been decoded but not given out.

    Attributes:
        partial: the first bytes of a character.
        held: characters that may begin a stop string.
        at_start: whether the next id begins a text (its dummy space is then left out, see
            :mod:`palimpsest.text.tokenizer`).
    """

    partial: bytes = b""
    held: str = ""
    at_start: bool = True


def check_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple.

    Raises:
        InputError: an empty one, one that is no string, or a bare string instead of a list.
    """
    if isinstance(stop, str):
        raise InputError(f"stop={stop!r}: pass a list of strings, such as [{stop!r}]")
    for text in stop:
        if not isinstance(text, str) or not text:
            raise InputError(f"stop contains {text!r}: must be strings of at least one character")
    return tuple(stop)


class TextStream:
    """Takes ids one at a time, gives out text.

    The text given out does not depend on how characters are spread over ids: a stop string ends
    the text where it is first complete (of several complete at once, the one that began first).

    Args:
        tokenizer: any tokenizer.
        stop: strings that end the text; they are not given out.
        waiting: where an earlier stream left off.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), waiting: Waiting | None = None
    ) -> None:
        waiting = waiting or Waiting()
        self._tokenizer = tokenizer
        self._stop = check_stop(stop)
        self._at_start = waiting.at_start
        self._held = waiting.held
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.setstate((waiting.partial, 0))
        self.stopped = False

    @property
    def waiting(self) -> Waiting:
        """What has not been given out."""
        return Waiting(self._utf8.getstate()[0], self._held, self._at_start)

    def push(self, token: int) -> str:
        """Take one id; the text that is decided now, often none.

        After a stop string is complete, ``stopped`` is True and nothing more is given out.
        """
        data = self._tokenizer.bytes_of(token)
        if token in self._tokenizer.special_ids:
            self._at_start = True
        else:
            if self._at_start and self._tokenizer.prefix_space and data[:1] == b" ":
                data = data[1:]
            self._at_start = False
        return self._decide(self._utf8.decode(data))

    def flush(self) -> str:
        """What still waits, when nothing can follow: an unfinished character is U+FFFD."""
        text = self._decide(self._utf8.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _decide(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [
            (at + len(stop), at)
            for stop in self._stop
            if (at := text.find(stop)) >= 0  # the first place is also where it ends first
        ]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` (and is not all of it)."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
