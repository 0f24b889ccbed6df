"""Tokens as one can look at them: what is shown for each, and which tokens make one character.

A token need not be text: it may be one byte of a character, a control character, or a mark that
turns the direction of writing. What is shown stands for exactly one token or, where several
tokens share a character, for those together: a *cell*.

Legend: N tokens, C cells.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palimpsest.text import Tokenizer

__all__ = ["Cells", "cut_cells", "token_label", "visible"]

NEWLINE, SPACE, TAB, CARRIAGE_RETURN = "↵", "␣", "⇥", "␍"
_CONTROL_PICTURES = 0x2400  # the picture of control character n is 0x2400 + n
_DELETE, _DELETE_PICTURE = 0x7F, "␡"


@dataclass(frozen=True)
class Cells:
    """A text cut into what is shown of it.

    Attributes:
        text: what is shown, control characters replaced by pictures of them.
        ends_C: where each cell ends in it, in units of UTF-16 (as JavaScript counts).
        first_token_C: the first token of each cell.
        byte_starts_N: the byte of the text at which each token starts.
        n_bytes: of the whole text.
    """

    text: str
    ends_C: NDArray[np.int32]
    first_token_C: NDArray[np.int32]
    byte_starts_N: NDArray[np.int32]
    n_bytes: int


def visible(text: str) -> str:
    """A text in which everything can be seen; a line still ends where it ended.

    Control characters become their pictures, other characters without a shape of their own
    (U+202E, say, which turns the direction of writing) their numbers.
    """
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return NEWLINE + "\n"
    if character == "\t":
        return TAB + "\t"
    if character == "\r":
        return CARRIAGE_RETURN
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return _DELETE_PICTURE
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
        return f"⟨{code:04X}⟩"
    return character


def token_label(tokenizer: Tokenizer, token: int) -> str:
    """A short name of one token, for a list: spaces and line ends can be seen, bytes that are no
    text are written in hexadecimal."""
    if token >= tokenizer.vocab_size:
        return f"⟨unused id {token}⟩"
    if token in tokenizer.special_ids:
        names = {tokenizer.bos_id: "begin", tokenizer.eos_id: "end", tokenizer.pad_id: "padding"}
        return f"⟨{names.get(token, f'special id {token}')}⟩"
    data = tokenizer.bytes_of(token)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return " ".join(f"0x{byte:02X}" for byte in data)
    return visible(text).replace("\n", "").replace("\t", "").replace(" ", SPACE)


def cut_cells(
    tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.int32], starts: Iterable[int] = (0,)
) -> Cells:
    """Cut a text into cells.

    Args:
        tokenizer: the one that made the ids.
        ids: (N,) without special ids.
        starts: the tokens at which a document starts.

    Returns:
        Cells whose tokens, put together, are all tokens; a cell never crosses a document.
    """
    first = sorted(set(starts))
    lengths = tokenizer.byte_lengths(ids, starts=first).astype(np.int64)
    shown: list[str] = []
    ends: list[int] = []
    tokens: list[int] = []
    begin, end = 0, 0
    fresh = set(first)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    table = tokenizer.token_bytes()
    waiting = ""

    def close(text: str, token: int) -> None:
        nonlocal end
        text = visible(text)
        end += len(text.encode("utf-16-le")) // 2
        shown.append(text)
        ends.append(end)
        tokens.append(token)

    for i, (token, length) in enumerate(zip(ids, lengths.tolist(), strict=True)):
        if i in fresh:
            rest = waiting + decoder.decode(b"", final=True)
            if i > begin:
                close(rest, begin)
            begin, waiting = i, ""
        data = table[int(token)]
        waiting += decoder.decode(data[len(data) - length :])
        if not decoder.getstate()[0]:
            close(waiting, begin)
            begin, waiting = i + 1, ""
    if begin < len(lengths):
        close(waiting + decoder.decode(b"", final=True), begin)
    byte_starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
    return Cells(
        text="".join(shown),
        ends_C=np.asarray(ends, np.int32),
        first_token_C=np.asarray(tokens, np.int32),
        byte_starts_N=byte_starts.astype(np.int32),
        n_bytes=int(lengths.sum()),
    )
