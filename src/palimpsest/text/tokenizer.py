"""Text to token ids and back, with the exact bytes of every id.

A tokenizer here is a table: the bytes each id contributes. Decoding and counting bytes are the
same for all of them, so that "bits per byte" means one thing: an id that holds part of a character
counts for the bytes that it holds, never for the replacement character it would print.

**The dummy prefix.** Tokenizers of the SentencePiece kind put one space before a text that has
none, so that a word looks the same at the start and inside. That space is in the table (the id
``▁a`` is the two bytes ``" a"``) but it is not in the text. The rule here: the first id of a text
does not count one leading space, where the first id of a text is the first of the sequence and
the first after any special token. ``decode``, ``byte_lengths``, ``count_bytes`` and the
:class:`~palimpsest.text.StreamDecoder` all follow it.

**Special tokens** (begin, end, padding, chat marks) contribute no bytes, and text never turns into
them: ``<|im_start|>`` written in a text is encoded as those characters.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest.digests import seal, unseal
from palimpsest.files import parse_json
from palimpsest.text.errors import TokenizerError

__all__ = ["ByteTokenizer", "Tokenizer", "load_tokenizer"]

SAVED_NAME = "tokenizer.palimpsest.json"
SAVED_FORMAT = "palimpsest-tokenizer"
SAVED_VERSION = 1
PIECE = 1 << 20  # ids of one piece


class Tokenizer(ABC):
    """The contract of every tokenizer.

    Args:
        name: what logs and results call it.
        table: the bytes of each id, b"" for the special ones; its length is the vocabulary size.
        special_ids: the ids that stand for no text.
        pad_id: the id of padding, or None.
        bos_id: the id that begins a document, or None.
        eos_id: the id that ends a document, or None.
        prefix_space: whether encoding puts a dummy space before the text.
    """

    kind: str

    def __init__(
        self,
        *,
        name: str,
        table: list[bytes],
        special_ids: Iterable[int],
        pad_id: int | None,
        bos_id: int | None,
        eos_id: int | None,
        prefix_space: bool,
    ) -> None:
        self.name = name
        self.pad_id = pad_id
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.prefix_space = prefix_space
        self.special_ids = frozenset(special_ids)
        self._fingerprint: str | None = None
        self._table = table
        self._lengths = np.array([len(entry) for entry in table], dtype=np.int32)
        self._is_special = np.zeros(len(table), dtype=bool)
        self._is_special[list(self.special_ids)] = True
        self._leads_with_space = np.array([entry[:1] == b" " for entry in table], dtype=bool)

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones included."""
        return len(self._table)

    @abstractmethod
    def _encode_text(self, text: str) -> list[int]:
        """The ids of the text alone."""

    @abstractmethod
    def _definition(self) -> dict[str, Any]:
        """What defines this tokenizer, as JSON values; ``from_definition`` takes it back."""

    @classmethod
    @abstractmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Tokenizer:
        """The tokenizer that ``to_json`` described."""

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Text to ids.

        Args:
            text: any text that can be written as UTF-8.
            bos: put the begin id first.
            eos: put the end id last.

        Raises:
            TokenizerError: ``bos`` or ``eos`` of a tokenizer that has none; a text that UTF-8
                cannot write, half of a surrogate pair (its position is named).
        """
        _check_text(text)
        ids = self._encode_text(text)
        if bos:
            ids.insert(0, self._existing("bos"))
        if eos:
            ids.append(self._existing("eos"))
        return ids

    def encode_array(self, text: str, *, bos: bool = False, eos: bool = False) -> NDArray[np.int32]:
        """:meth:`encode` as one int32 array (for long texts)."""
        before = [self._existing("bos")] if bos else []
        after = [self._existing("eos")] if eos else []
        pieces = [np.array(before, np.int32), *self.encode_pieces(_check_text(text))]
        return np.concatenate([*pieces, np.array(after, np.int32)], dtype=np.int32)

    def encode_pieces(self, utf8: bytes | memoryview) -> Iterator[NDArray[Any]]:
        """The ids of a text in pieces, so that a long one takes little memory.

        Args:
            utf8: the text in UTF-8.

        Returns:
            Arrays (n,) of some integer dtype, none with BOS or EOS; joined, they are :meth:`encode`
            of the whole text. One piece if the tokenizer allows no cut.
        """
        yield np.asarray(self._encode_text(str(utf8, "utf-8")), dtype=np.int32)

    def decode(self, ids: Iterable[int], *, continued: bool = False) -> str:
        """Ids to text; special ids are skipped, bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: token ids.
            continued: the ids go on inside a text, so their first space is a real one.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        listed = [int(i) for i in ids]
        lengths = self.byte_lengths(listed, starts=() if continued or not listed else (0,)).tolist()
        entries = [self._table[i] for i in listed]
        data = b"".join(e[len(e) - n :] for e, n in zip(entries, lengths, strict=True))
        return data.decode("utf-8", errors="replace")

    def token_bytes(self) -> list[bytes]:
        """The exact bytes of each id (``vocab_size`` entries), b"" for special ids."""
        return list(self._table)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        if not 0 <= token < len(self._table):
            raise self._unknown(token)
        return self._table[token]

    def byte_lengths(
        self, ids: Sequence[int] | NDArray[Any], *, starts: Sequence[int] | NDArray[Any] = (0,)
    ) -> NDArray[np.int32]:
        """How many bytes of text each position stands for.

        Args:
            ids: (N,) token ids.
            starts: the positions where a text starts; ``()`` for ids from the middle of a text.
                The position after a special id is always a start.

        Returns:
            (N,) int32; 0 at special ids.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= len(self._table)):
            raise self._unknown(int(array.min()) if int(array.min()) < 0 else int(array.max()))
        lengths: NDArray[np.int32] = self._lengths[array]
        if self.prefix_space and array.size:
            first = np.zeros(array.size, dtype=bool)
            first[np.asarray(starts, dtype=np.int64)] = True
            first[1:] |= self._is_special[array[:-1]]
            lengths -= (first & self._leads_with_space[array]).astype(np.int32)
        return lengths

    def count_bytes(
        self, ids: Sequence[int] | NDArray[Any], *, starts: Sequence[int] | NDArray[Any] = (0,)
    ) -> int:
        """The bytes of text that the ids stand for: the sum of :meth:`byte_lengths`.

        Equal to ``len(text.encode())`` for ``ids = encode(text)`` of every tokenizer that keeps
        the text; one whose normaliser changes it (lower case, NFKC) counts the changed text. A
        :class:`~palimpsest.text.Corpus` therefore counts the text itself and says where the two
        differ.
        """
        return int(self.byte_lengths(ids, starts=starts).sum(dtype=np.int64))

    def fingerprint(self) -> str:
        """The sha256, in hex, over all that defines the mapping (the name is not part of it)."""
        if self._fingerprint is None:
            canonical = json.dumps([self.kind, self._definition()], sort_keys=True)
            self._fingerprint = hashlib.sha256(canonical.encode("ascii")).hexdigest()
        return self._fingerprint

    def to_json(self) -> dict[str, Any]:
        """This tokenizer as JSON values, complete: :meth:`from_json` needs no other file."""
        return {
            "format": SAVED_FORMAT,
            "version": SAVED_VERSION,
            "kind": self.kind,
            "name": self.name,
            "fingerprint": self.fingerprint(),
            "definition": self._definition(),
        }

    @staticmethod
    def from_json(data: dict[str, Any], *, where: str | Path | None = None) -> Tokenizer:
        """The tokenizer that :meth:`to_json` described.

        Args:
            data: what ``to_json`` returned.
            where: the file it came from, for the error messages.

        Raises:
            TokenizerError: another format or version, an unknown kind, a changed definition.
        """
        if data.get("format") != SAVED_FORMAT or data.get("version") != SAVED_VERSION:
            raise TokenizerError(
                where,
                f"format={data.get('format')!r} version={data.get('version')!r}",
                f"expected {SAVED_FORMAT!r} version {SAVED_VERSION}, as Tokenizer.save writes it",
            )
        from palimpsest.text.subword import HFTokenizer, SentencePieceTokenizer

        kinds: dict[str, type[Tokenizer]] = {
            k.kind: k for k in (ByteTokenizer, HFTokenizer, SentencePieceTokenizer)
        }
        kind = kinds.get(str(data.get("kind", "")))
        if kind is None:
            raise TokenizerError(where, f"kind={data.get('kind')!r}", f"known: {', '.join(kinds)}")
        try:
            tokenizer = kind.from_definition(data["name"], data["definition"])
            data["fingerprint"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, TokenizerError):
                raise
            raise TokenizerError(
                where, f"an incomplete definition ({error!r})", "save the tokenizer again"
            ) from error
        if tokenizer.fingerprint() != data["fingerprint"]:
            raise TokenizerError(
                where,
                "the definition does not give the fingerprint that was saved with it",
                "the file was changed; save the tokenizer again",
            )
        return tokenizer

    def save(self, folder: str | Path) -> Path:
        """Write ``tokenizer.palimpsest.json`` into the folder (made where missing).

        Returns:
            The file written; ``load_tokenizer`` takes it or its folder.
        """
        target = Path(folder) / SAVED_NAME
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        part.write_text(json.dumps(seal(self.to_json())) + "\n", encoding="ascii")
        part.replace(target)
        return target

    def _existing(self, which: str) -> int:
        found: int | None = getattr(self, f"{which}_id")
        if found is None:
            raise TokenizerError(
                None,
                f"{which}=True: tokenizer {self.name!r} has no {which} token",
                f"pass {which}=False, or load the tokenizer with a {which} token named",
            )
        return found

    def _unknown(self, token: int) -> TokenizerError:
        return TokenizerError(
            None,
            f"id {token} is outside the vocabulary of {self.name!r}",
            f"ids are 0 … {self.vocab_size - 1}",
        )


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: ids 0–255 are the bytes, 256 PAD, 257 BOS, 258 EOS; vocabulary 259.

    Source: Xiao, arXiv 2606.05175 (the WikiText-2 byte protocol).
    """

    kind = "bytes"

    def __init__(self) -> None:
        super().__init__(
            name="bytes",
            table=[bytes([value]) for value in range(256)] + [b"", b"", b""],
            special_ids=(256, 257, 258),
            pad_id=256,
            bos_id=257,
            eos_id=258,
            prefix_space=False,
        )

    def _encode_text(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_pieces(self, utf8: bytes | memoryview) -> Iterator[NDArray[Any]]:
        """The bytes themselves, a view of ``utf8`` (see :meth:`Tokenizer.encode_pieces`)."""
        values = np.frombuffer(utf8, dtype=np.uint8)
        for start in range(0, len(values), PIECE):
            yield values[start : start + PIECE]

    def _definition(self) -> dict[str, Any]:
        return {"bytes": 256, "pad": 256, "bos": 257, "eos": 258}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> ByteTokenizer:
        """There is only one byte tokenizer."""
        return cls()


def _check_text(text: str) -> bytes:
    """A text in UTF-8.

    Raises:
        TokenizerError: it has half of a surrogate pair.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            None,
            f"the text has half of a surrogate pair, {text[error.start]!a}, at character "
            f"{error.start}, which UTF-8 cannot write",
            "remove it, or decode the text's source as UTF-8",
        ) from error


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """The tokenizer that a user named.

    Args:
        spec: ``"bytes"``; a ``.json`` file (of the ``tokenizers`` library, or one that
            :meth:`Tokenizer.save` wrote); a ``.model`` or ``.model.*`` file (SentencePiece); or a
            folder that holds what ``save`` wrote, or else a ``tokenizer.json``.

    Raises:
        TokenizerError: nothing there, or nothing that is known.
        ImportError: a SentencePiece file without the extra ``sentencepiece``.
    """
    if isinstance(spec, str) and spec == "bytes":
        return ByteTokenizer()
    path = Path(spec)
    choices = (
        "pass 'bytes', a tokenizer .json, a SentencePiece .model, or a folder with a tokenizer"
    )
    if path.is_dir():
        inside = [path / SAVED_NAME, path / "tokenizer.json"]
        found = next((file for file in inside if file.is_file()), None)
        if found is None:
            raise TokenizerError(path, f"no {SAVED_NAME} or tokenizer.json in this folder", choices)
        path = found
    if not path.is_file():
        raise TokenizerError(path, "no such tokenizer", choices)
    from palimpsest.text.subword import HFTokenizer, SentencePieceTokenizer

    if path.suffix == ".json":
        try:
            data = parse_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TokenizerError(path, f"not JSON ({error})", choices) from error
        if isinstance(data, dict) and data.get("format") == SAVED_FORMAT:
            content, right = unseal(data)
            if not right:
                raise TokenizerError(
                    path,
                    "its content does not match its sha256, so it was damaged or edited",
                    "restore it from a copy, or save the tokenizer again",
                )
            return Tokenizer.from_json(content, where=path)
        return HFTokenizer.from_file(path)
    if ".model" in path.suffixes:
        return SentencePieceTokenizer.from_file(path)
    raise TokenizerError(path, f"a tokenizer with suffix {path.suffix!r} is not known", choices)
