"""Tokenised text: one array of ids, where its documents start, and how many bytes they were.

How documents join: each is BOS, its tokens, EOS, one after another, where the tokenizer has these
marks (``bos=`` and ``eos=`` say otherwise). Splitting into training and validation happens on the
text, before this: :func:`palimpsest.text.split_documents`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest.errors import counted
from palimpsest.text.documents import Document, prepare_wikitext, read_documents
from palimpsest.text.errors import CorpusError
from palimpsest.text.reading import BIG_REMEDY
from palimpsest.text.tokenizer import Tokenizer

__all__ = ["Corpus", "load_corpus"]

PREPARATIONS = ("none", "wikitext")


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def joining(
    tokenizer: Tokenizer, bos: bool | None, eos: bool | None, where: str | Path | None = None
) -> tuple[bool, bool]:
    """Whether documents get BOS and EOS: what was asked, else what the tokenizer has.

    Raises:
        CorpusError: asked of a tokenizer that has none.
    """
    for name, asked, token in (("bos", bos, tokenizer.bos_id), ("eos", eos, tokenizer.eos_id)):
        if asked and token is None:
            raise CorpusError(
                where,
                f"{name}=True: tokenizer {tokenizer.name!r} has no {name} token",
                f"pass {name}=False",
            )
    return (
        tokenizer.bos_id is not None if bos is None else bos,
        tokenizer.eos_id is not None if eos is None else eos,
    )


@dataclass(frozen=True)
class Encoded:
    """One tokenised document: its ids and bytes, and whether the ids stand for these bytes."""

    num_tokens: int
    num_bytes: int
    exact: bool


class TokenBuffer:
    """An array of ids that grows, and takes little more memory than the ids.

    Args:
        dtype: of the ids.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._array: NDArray[Any] = np.empty(0, dtype)
        self._used = 0

    def add(self, ids: NDArray[Any], expected: int) -> None:
        """Append ids.

        Args:
            ids: (n,) of any integer dtype.
            expected: how many more ids are likely to follow; what is right saves a copy.
        """
        need = self._used + len(ids)
        if need > len(self._array):
            self._array.resize(max(need + expected, len(self._array) * 5 // 4), refcheck=False)
        self._array[self._used : need] = ids
        self._used = need

    def finish(self) -> NDArray[Any]:
        """The ids; the buffer is empty afterwards."""
        self._array.resize(self._used, refcheck=False)
        array, self._array, self._used = self._array, np.empty(0, self._array.dtype), 0
        return array


class TextHash:
    """The sha256 of a sequence of documents.

    Their UTF-8 bytes, with one byte 0xFF (which UTF-8 never has) between two documents: for one
    document this is the sha256 of the text, as ``sha256sum`` prints it for an unprepared file.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._first = True

    def update(self, data: bytes | memoryview) -> None:
        """Add one document's UTF-8 bytes."""
        if not self._first:
            self._hash.update(b"\xff")
        self._first = False
        self._hash.update(data)

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    bos: bool,
    eos: bool,
    text_hash: TextHash,
    take: Callable[[NDArray[Any], int], None],
    progress: Callable[[int], None] | None = None,
) -> Iterator[Encoded]:
    """Tokenise one document after another, each in pieces.

    Args:
        documents: the texts.
        tokenizer: makes the ids.
        bos: start each with BOS.
        eos: end each with EOS.
        text_hash: takes in each text on the way.
        take: called with each piece of ids, in order, and with how many are likely to follow in
            the same document.
        progress: called with the bytes of each piece.

    Raises:
        CorpusError: a document that does not fit into memory.
    """
    before = np.array([tokenizer.bos_id] if bos else [], dtype=np.int32)
    after = np.array([tokenizer.eos_id] if eos else [], dtype=np.int32)
    for document in documents:
        data = document.utf8
        text_hash.update(data)
        tokens, counted = len(before) + len(after), 0
        try:
            take(before, 0)
            starts: tuple[int, ...] = (0,)
            for ids in tokenizer.encode_pieces(data):
                if not len(ids):
                    continue
                piece = tokenizer.count_bytes(ids, starts=starts)
                if progress is not None:
                    progress(piece)
                counted += piece
                tokens += len(ids)
                starts = ()
                left = max(0, len(data) - counted) if counted else 0
                take(ids, int(1.02 * left * tokens / max(1, counted)))
            take(after, 0)
        except MemoryError as failure:
            raise CorpusError(
                document.source, f"its {len(data):,} bytes do not fit into memory", BIG_REMEDY
            ) from failure
        yield Encoded(tokens, len(data), counted == len(data))


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Tokenised documents, one after another.

    Args:
        tokens: (N,) ids, BOS and EOS included; uint16 or uint32, in memory or memory-mapped.
        document_starts: (D,) int64, the position of each document's first token.
        document_bytes: (D,) int64, the UTF-8 bytes of each document's text, counted on the text.
        text_sha256: the hash of the text (see :class:`TextHash`), in hex.
        tokenizer_fingerprint: ``Tokenizer.fingerprint()`` of the tokenizer that made the ids.
        bos: whether each document starts with BOS.
        eos: whether each document ends with EOS.
        inexact_documents: how many documents' ids stand for other bytes than their text has (the
            tokenizer changed the text); where this is 0, :meth:`byte_lengths` is exact anywhere.
    """

    tokens: NDArray[Any]
    document_starts: NDArray[np.int64]
    document_bytes: NDArray[np.int64]
    text_sha256: str
    tokenizer_fingerprint: str
    bos: bool
    eos: bool
    inexact_documents: int

    @property
    def num_tokens(self) -> int:
        """N, the number of ids, BOS and EOS included."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """D, the number of documents."""
        return len(self.document_starts)

    @property
    def num_bytes(self) -> int:
        """The UTF-8 bytes of all the documents' text (no marks, nothing between documents)."""
        return int(self.document_bytes.sum())

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        tokenizer: Tokenizer,
        *,
        bos: bool | None = None,
        eos: bool | None = None,
        prepare: str = "none",
    ) -> Corpus:
        """Tokenise documents into memory.

        Args:
            documents: at least one.
            tokenizer: turns each into ids.
            bos: start each with BOS; None where the tokenizer has one.
            eos: end each with EOS; None where the tokenizer has one.
            prepare: ``"none"``, or ``"wikitext"`` (:func:`palimpsest.text.prepare_wikitext`).

        Raises:
            CorpusError: no documents, a mark that the tokenizer has not.
            ValueError: an unknown ``prepare``.
        """
        if prepare not in PREPARATIONS:
            raise ValueError(f"prepare={prepare!r}: choose one of {', '.join(PREPARATIONS)}")
        if prepare == "wikitext":
            documents = [prepare_wikitext(documents)]
        bos, eos = joining(tokenizer, bos, eos)
        dtype = token_dtype(tokenizer.vocab_size)
        text_hash = TextHash()
        buffer = TokenBuffer(dtype)
        sizes: list[int] = []
        counts: list[int] = []
        inexact = 0
        for encoded in encode_documents(documents, tokenizer, bos, eos, text_hash, buffer.add):
            sizes.append(encoded.num_tokens)
            counts.append(encoded.num_bytes)
            inexact += not encoded.exact
        if not sizes:
            raise CorpusError(None, "there are no documents to tokenise", "pass at least one")
        lengths = np.array(sizes, dtype=np.int64)
        return cls(
            tokens=buffer.finish(),
            document_starts=np.cumsum(lengths) - lengths,
            document_bytes=np.array(counts, dtype=np.int64),
            text_sha256=text_hash.hexdigest(),
            tokenizer_fingerprint=tokenizer.fingerprint(),
            bos=bos,
            eos=eos,
            inexact_documents=inexact,
        )

    @classmethod
    def from_text(
        cls, text: str, tokenizer: Tokenizer, *, bos: bool | None = None, eos: bool | None = None
    ) -> Corpus:
        """Tokenise one text as one document (see :meth:`from_documents`)."""
        return cls.from_documents([Document(text, "text")], tokenizer, bos=bos, eos=eos)

    def document(self, index: int) -> NDArray[Any]:
        """The ids of one document, marks included."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index}: there are {self.num_documents}")
        last = index + 1 == self.num_documents
        stop = self.num_tokens if last else int(self.document_starts[index + 1])
        return self.tokens[int(self.document_starts[index]) : stop]

    def byte_lengths(
        self, tokenizer: Tokenizer, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int32]:
        """How many bytes of text each token of a stretch stands for; 0 at BOS and EOS.

        Args:
            tokenizer: the one that made this corpus.
            start: the first position.
            stop: the position after the last; None for the end.

        Returns:
            (stop - start,) int32; over the whole corpus they sum to :attr:`num_bytes` where
            :attr:`inexact_documents` is 0.

        Raises:
            CorpusError: another tokenizer.
            IndexError: a stretch outside the corpus.
        """
        if tokenizer.fingerprint() != self.tokenizer_fingerprint:
            raise CorpusError(
                None,
                f"tokenizer {tokenizer.name!r} is not the one that made this corpus",
                f"pass the one with fingerprint {self.tokenizer_fingerprint}",
            )
        stop = self.num_tokens if stop is None else stop
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"[{start}, {stop}) is outside a corpus of {counted(self.num_tokens, 'token')}"
            )
        before = max(start - 1, 0)  # the token before decides whether this one starts a text
        low, high = np.searchsorted(self.document_starts, [before, stop])
        starts = self.document_starts[low:high] - before
        lengths = tokenizer.byte_lengths(self.tokens[before:stop], starts=starts)
        return lengths[start - before :]


def load_corpus(
    paths: str | Path | Iterable[str | Path],
    tokenizer: Tokenizer,
    *,
    field: str = "text",
    prepare: str = "none",
    bos: bool | None = None,
    eos: bool | None = None,
) -> Corpus:
    """Read and tokenise files: :func:`read_documents`, then :meth:`Corpus.from_documents`.

    Raises:
        CorpusError, ValueError: as these.
    """
    documents = read_documents(paths, field=field)
    return Corpus.from_documents(documents, tokenizer, bos=bos, eos=eos, prepare=prepare)
