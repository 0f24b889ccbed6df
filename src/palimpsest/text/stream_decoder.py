"""Text from ids that come one at a time, for generation that prints while it runs."""

from __future__ import annotations

import codecs

from palimpsest.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Decodes ids one at a time and gives out complete characters only.

    What ``push`` and ``flush`` return, joined, equals ``tokenizer.decode`` of all the ids.

    Args:
        tokenizer: any tokenizer.
        continued: the ids go on inside a text (a prompt came before), so a leading space is kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, continued: bool = False) -> None:
        self._tokenizer = tokenizer
        self._at_start = not continued
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take one id; the characters that are complete now, often none or several.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        data = self._tokenizer.bytes_of(token)
        if token in self._tokenizer.special_ids:
            self._at_start = True
            return ""
        if self._at_start and self._tokenizer.prefix_space and data[:1] == b" ":
            data = data[1:]
        self._at_start = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left: U+FFFD where the ids ended inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)
