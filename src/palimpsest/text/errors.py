"""What can be wrong with text, a tokenizer or a token shard.

Every message names the file (and the line or byte), what was found there, and what to do about it.
"""

from __future__ import annotations

from pathlib import Path

from palimpsest.errors import PalimpsestError

__all__ = ["CorpusError", "ShardError", "TextError", "TokenizerError", "WindowError"]


class TextError(PalimpsestError, ValueError):
    """The base of this floor's errors.

    Args:
        where: the file or folder (with ``:line`` where there is one), or None.
        problem: what was found there.
        remedy: what would be right, or what to do.
    """

    def __init__(self, where: str | Path | None, problem: str, remedy: str) -> None:
        self.where = None if where is None else str(where)
        prefix = "" if where is None else f"{where}: "
        super().__init__(f"{prefix}{problem}; {remedy}")


class CorpusError(TextError):
    """The text cannot be read or split as asked."""


class TokenizerError(TextError):
    """The tokenizer cannot be loaded, or was given something that it does not know."""


class ShardError(TextError):
    """A folder of token shards is damaged, foreign, or belongs to another tokenizer."""


class WindowError(TextError):
    """No window of the asked length can be cut from these tokens."""
