"""Text output that never ends the work: a closed pipe, a full disk, characters it cannot encode.

:class:`SafeStream` wraps a text stream. It replaces characters that the stream's encoding lacks,
and after a failed write it drops everything that follows and remembers the failure, so that the
caller can finish and save first. The command line wraps both standard streams
(``palimpsest.cli.output``); library code writes its progress through :func:`safe_stderr`.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from typing import TextIO, cast

from palimpsest.errors import InputError, PalimpsestError

__all__ = ["SafeStream", "plain", "require_unicode", "safe_stderr", "safe_stdout"]

# what stands for a character of our own output where the encoding lacks it
_SUBSTITUTES = str.maketrans(
    {
        "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "·": "*", "→": "->", "←": "<-",
        "≥": ">=", "≤": "<=", "≈": "~", "±": "+/-", "“": '"', "”": '"', "‘": "'", "’": "'",
        "─": "-", "━": "=", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "•": "*",
    }
)  # fmt: skip


class SafeStream(io.TextIOBase):
    """A text stream whose ``write`` never raises.

    Args:
        stream: what to write to; None (a standard stream that is closed) drops everything.

    Attributes:
        stream: as given.
        failure: the error of the first write that failed, or None. Nothing is written after it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self.stream = stream
        self.failure: Exception | None = None

    def write(self, text: str) -> int:
        """Write text; characters outside the encoding are replaced.

        Returns:
            The number of characters given.
        """
        if self.stream is not None and self.failure is None:
            try:
                try:
                    self.stream.write(text)
                except UnicodeError:  # nothing of the text has been written
                    self.stream.write(_encodable(text, self.encoding))
            except (OSError, ValueError) as failure:  # ValueError: a file that is closed
                self.failure = failure
        return len(text)

    def flush(self) -> None:
        """Flush the stream; a failure is remembered."""
        if self.stream is not None and self.failure is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as failure:
                self.failure = failure

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        try:
            return self.stream is not None and self.stream.isatty()
        except ValueError:  # closed
            return False

    def fileno(self) -> int:
        """The stream's file descriptor.

        Raises:
            io.UnsupportedOperation: it has none.
        """
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding; "utf-8" if it has none."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The stream's own treatment of characters outside its encoding."""
        return getattr(self.stream, "errors", None)


def _encodable(text: str, encoding: str) -> str:
    """The text with a substitute for each character that the encoding lacks."""

    def fits(piece: str) -> bool:
        try:
            piece.encode(encoding)
        except UnicodeError:
            return False
        return True

    found = []
    for character in text:
        if not fits(character):
            if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte of a file name that is not UTF-8
                character = f"\\x{ord(character) - 0xDC00:02x}"
            else:
                character = character.translate(_SUBSTITUTES)
                character = character if fits(character) else "?"
        found.append(character)
    return "".join(found)


def safe_stderr() -> TextIO:
    """The present standard error as a :class:`SafeStream`."""
    return _safe(sys.stderr)


def safe_stdout() -> TextIO:
    """The present standard output as a :class:`SafeStream`."""
    return _safe(sys.stdout)


def _safe(stream: TextIO | None) -> TextIO:
    safe = stream if isinstance(stream, SafeStream) else SafeStream(stream)
    return cast(TextIO, safe)


def plain(text: object) -> str:
    """Text for a message: control characters and marks of direction as escapes, line ends kept.

    A file name may hold an escape sequence that a terminal would obey.
    """
    return "".join(_escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def require_unicode(text: str, name: str, error: type[PalimpsestError] = InputError) -> None:
    """Refuse a file name that is not UTF-8: records that name the file could not be written.

    Args:
        text: the name, or another argument.
        name: what the caller calls it; "" if the text speaks for itself.
        error: the class of the error.

    Raises:
        PalimpsestError: shows the text with its bytes escaped; of class ``error``.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        label = f"{name} {plain(text)}".strip()
        raise error(f"{label}: is not UTF-8; rename the file or folder, or use UTF-8") from None
