"""A tokenizer as small as the models of the contract."""

from __future__ import annotations

from typing import Any

from palimpsest.text import Tokenizer

__all__ = ["Letters", "Words"]

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,\n<&\"'"


class Letters(Tokenizer):
    """34 characters, then padding, begin and end: 37 ids."""

    kind = "letters"

    def __init__(self, *, begin: bool = True) -> None:
        n = len(ALPHABET)
        super().__init__(
            name="letters",
            table=[c.encode() for c in ALPHABET] + [b"", b"", b""],
            special_ids=(n, n + 1, n + 2),
            pad_id=n,
            bos_id=n + 1 if begin else None,
            eos_id=n + 2,
            prefix_space=False,
        )

    def _encode_text(self, text: str) -> list[int]:
        return [ALPHABET.index(c) for c in text]

    def _definition(self) -> dict[str, Any]:
        return {"alphabet": ALPHABET}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Letters:
        return cls()


class Words(Letters):
    """The same with some words as tokens of their own, 40 ids."""

    kind = "words"
    WORDS = ("nothing", "the", "is ")

    def __init__(self) -> None:
        super().__init__()
        n = len(ALPHABET)
        Tokenizer.__init__(
            self,
            name="words",
            table=[*self.token_bytes(), *(word.encode() for word in self.WORDS)],
            special_ids=(n, n + 1, n + 2),
            pad_id=n,
            bos_id=n + 1,
            eos_id=n + 2,
            prefix_space=False,
        )

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            word = next((w for w in self.WORDS if text.startswith(w)), text[0])
            ids += self._letters(word) if len(word) == 1 else [37 + self.WORDS.index(word)]
            text = text[len(word) :]
        return ids

    @staticmethod
    def _letters(text: str) -> list[int]:
        return [ALPHABET.index(c) for c in text]
