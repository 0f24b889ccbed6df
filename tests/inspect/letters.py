"""A tokenizer as small as the models of the contract."""

from __future__ import annotations

from typing import Any

from palimpsest.text import Tokenizer

__all__ = ["Letters"]

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
