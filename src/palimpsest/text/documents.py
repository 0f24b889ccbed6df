"""Reading text: documents from files and folders, and the rules that prepare and split them.

Files: ``.txt`` (also ``.text``, ``.raw``, ``.tokens``: one document each), ``.jsonl`` (one JSON
object per line) and ``.json`` (one array of objects), each also as ``.gz``. Everything is strict
UTF-8, and nothing about the text is changed: line ends, NUL bytes, a byte order mark and white
space stay. In JSON, a byte order mark at the start of the file is not part of any text and is
skipped.

A pipe is read once, into memory. Without one of the suffixes in its name, it is jsonl if its first
line is a JSON object, json if all of it is one array of objects, and otherwise one text; gzip is
recognised by its first two bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import counted
from palimpsest.files import parse_json
from palimpsest.text.errors import CorpusError
from palimpsest.text.reading import is_stream, open_text, read_pipe, text_files

__all__ = [
    "Document",
    "is_validation_by_hash",
    "prepare_wikitext",
    "read_documents",
    "read_hashed",
    "split_documents",
]

# "Many" documents, for the automatic split: at least this many are expected in the validation
# part, so that a hash leaves it empty with probability e^-20 only.
MANY = 20
PIECE = 1 << 20  # bytes decoded at once
BOM = b"\xef\xbb\xbf"


class Document:
    """One text and where it came from; read-only.

    A text from a file is kept as its UTF-8 bytes, so that a long one takes its size in memory and
    no more; ``text`` decodes them each time.

    Args:
        text: the text, unchanged: a str, or valid UTF-8.
        source: its file, with ``:line`` (jsonl) or ``[index]`` (json) where the file has several.
    """

    __slots__ = ("_source", "_text")

    def __init__(self, text: str | bytes | memoryview, source: str) -> None:
        self._text = text
        self._source = source

    @property
    def text(self) -> str:
        """The text."""
        return self._text if isinstance(self._text, str) else str(self._text, "utf-8")

    @property
    def source(self) -> str:
        """Where the text came from."""
        return self._source

    @property
    def utf8(self) -> bytes | memoryview:
        """The text in UTF-8.

        Raises:
            CorpusError: a text that UTF-8 cannot write (half of a surrogate pair).
        """
        if not isinstance(self._text, str):
            return self._text
        try:
            return self._text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise CorpusError(
                self._source, f"the text is not valid Unicode ({error})", "repair the document"
            ) from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Document):
            return NotImplemented
        return (self.text, self.source) == (other.text, other.source)

    def __hash__(self) -> int:
        return hash((self.text, self.source))

    def __repr__(self) -> str:
        return f"Document(text={self.text!r}, source={self.source!r})"


def read_documents(
    paths: str | Path | Iterable[str | Path], *, field: str = "text"
) -> Iterator[Document]:
    """The documents of some files and folders, one at a time.

    Args:
        paths: one path or several, read in the order given. A folder is read with all that lies
            below it, links followed, in the sorted order of the relative paths; names that start
            with a dot are not read, any other file must have a known suffix. A path may be a pipe
            (``/dev/stdin``, a FIFO, the shell's ``<(…)``).
        field: which field of a JSON object holds the text. White space between the lines of a
            jsonl file is allowed.

    Raises:
        CorpusError: a path that does not exist, an empty file or folder, text that is not UTF-8
            (the byte offset is named), a JSON object without the field (the line is named), an
            unknown suffix, a damaged .gz or one that decompresses to more than any text would, JSON
            nested too deeply, a socket or a device. Raised when the document is reached, except for
            what the paths alone show, which is found before the first document.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise CorpusError(None, "paths is empty", "name at least one file or folder")
    files = [file for path in listed for file in text_files(Path(path))]
    return (document for file in files for document in _read(file, field))


def read_hashed(path: str | Path, *, field: str = "text") -> tuple[Iterator[Document], str]:
    """:func:`read_documents` of one file or pipe, and the sha256 of its bytes, in hex.

    Raises:
        CorpusError: as read_documents, and for a folder.
    """
    file = Path(path)
    if text_files(file) != [file]:
        raise CorpusError(file, "is a folder", "name a file")
    data = read_pipe(file) if is_stream(file) else None
    digest = hashlib.sha256()
    if data is not None:
        digest.update(data)
    else:
        with file.open("rb") as stream:
            while block := stream.read(PIECE):
                digest.update(block)
    return _read(file, field, data), digest.hexdigest()


def prepare_wikitext(documents: Iterable[Document]) -> Document:
    """WikiText's rule: one document of the split's non-empty lines.

    The lines (of all the documents, in order) that are not white space, each stripped, joined by
    one line feed. Tokenised with both marks, it lies between one BOS and one EOS.

    Raises:
        CorpusError: no line is left.

    Source: Xiao, arXiv 2606.05175 (the WikiText-2 byte protocol).
    """
    joined = bytearray()
    sources: list[str] = []
    for document in documents:
        for line in _lines(bytes(document.utf8)):
            if kept := line.decode("utf-8").strip():
                joined += kept.encode("utf-8") + b"\n"
        sources.append(document.source)
    if not joined:
        raise CorpusError(", ".join(sources) or None, "no line holds any text", "pass some text")
    del joined[-1:]
    return Document(memoryview(joined).toreadonly(), ", ".join(sources))


def is_validation_by_hash(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation part, by its text alone.

    The first 8 bytes of the text's sha256, as a fraction of 2^64, are below ``fraction``. So the
    answer never depends on the other documents: more data moves no document to the other side,
    and two equal texts are on the same side.
    """
    return _hash_chooses(text.encode("utf-8"), fraction)


def _hash_chooses(utf8: bytes | memoryview, fraction: float) -> bool:
    digest = hashlib.sha256(utf8).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64


def split_documents(
    documents: Sequence[Document], fraction: float, *, rule: str = "auto"
) -> tuple[list[Document], list[Document]]:
    """Cut documents into a training and a validation part; no document is in both.

    Args:
        documents: at least one.
        fraction: the validation share, above 0 and below 1.
        rule: ``"hash"``: a document goes by its text alone (:func:`is_validation_by_hash`);
            ``"last"``: the last ``fraction`` of the documents, at least one, and any earlier
            document with the same text as one of these; ``"cut"``: the one document is cut where
            its last ``fraction`` (in bytes) begins, at the next line boundary (the next space in a
            text of one line); ``"auto"``: "cut" for one document, "hash" where it is expected to
            choose 20 or more, else "last".

    Returns:
        (training, validation), each in the given order.

    Raises:
        CorpusError: a part would be empty, a text to cut has one line, "cut" of several documents.
        ValueError: ``fraction`` or ``rule`` is none of these.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction={fraction}: must be above 0 and below 1")
    if not documents:
        raise CorpusError(None, "there are no documents to split", "pass at least one")
    count = len(documents)
    if rule == "auto":
        many = "hash" if count * fraction >= MANY else "last"
        rule = "cut" if count == 1 else many
    if rule == "cut":
        if count != 1:
            raise CorpusError(
                documents[0].source,
                f"rule='cut' has {counted(count, 'document')}",
                "use 'last' or 'hash'",
            )
        return _cut(documents[0], fraction)
    if rule == "last":
        held = {d.text for d in documents[count - max(1, round(count * fraction)) :]}
        chosen = [d.text in held for d in documents]
    elif rule == "hash":
        chosen = [_hash_chooses(d.utf8, fraction) for d in documents]
    else:
        raise ValueError(f"rule={rule!r}: choose 'auto', 'hash', 'last' or 'cut'")
    training = [d for d, c in zip(documents, chosen, strict=True) if not c]
    validation = [d for d, c in zip(documents, chosen, strict=True) if c]
    if not training or not validation:
        raise CorpusError(
            documents[0].source,
            f"rule={rule!r} with fraction={fraction} puts {len(training)} of "
            f"{counted(count, 'document')} "
            f"into training and {len(validation)} into validation",
            "choose another fraction or rule, or name a validation file",
        )
    return training, validation


def _cut(document: Document, fraction: float) -> tuple[list[Document], list[Document]]:
    data = bytes(document.utf8)
    target = int(len(data) * (1.0 - fraction))
    at = 0
    for boundary in (b"\n", b" "):  # a text of one line is cut between two words
        at = data.find(boundary, max(target - 1, 0)) + 1
        if at in (0, len(data)):  # no later one: the boundary before
            at = data.rfind(boundary, 0, target) + 1
        if at:
            break
    if at == 0:
        raise CorpusError(
            document.source,
            f"one document of {len(data)} bytes without a line break or a space cannot be cut",
            "name a validation file, or pass several documents",
        )
    view = memoryview(data)  # the two parts share the memory of the whole
    return [Document(view[:at], document.source)], [Document(view[at:], document.source)]


def _lines(data: bytes) -> Iterator[bytes]:
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        yield data[at:end]
        at = end + 1
    yield data[at:]


def _read(file: Path, field: str, piped: bytes | None = None) -> Iterator[Document]:
    empty = True
    try:
        with open_text(file, piped) as (stream, suffix):
            if not suffix:
                data = stream.read()
                suffix, stream = _sniff(data), io.BytesIO(data)
            if suffix == ".jsonl":
                offset = 0
                for number, line in enumerate(stream, start=1):
                    if line.strip() not in (b"", BOM):
                        empty = False
                        where = f"{file}:{number}"
                        record = _json(_utf8(line, offset, where), where)
                        yield Document(_field(record, field, where), where)
                    offset += len(line)
            elif data := stream.read():
                empty = False
                if suffix == ".json":
                    yield from _array(file, _utf8(data, 0, str(file)), field)
                else:
                    _check_utf8(data, str(file))
                    yield Document(data, str(file))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(file, f"damaged .gz file ({error})", "write or fetch it again") from error
    if empty and is_stream(file):
        raise CorpusError(file, "no text arrived through it", "a pipe can be read only once")
    if empty:
        raise CorpusError(file, "the file is empty", "remove it, or put text into it")


def _sniff(data: bytes) -> str:
    """The format of a pipe: see the head of this file."""
    start = data.removeprefix(BOM).lstrip()
    line = start.partition(b"\n")[0] if start[:1] == b"{" else b""
    try:
        if line and isinstance(parse_json(line.decode("utf-8")), dict):
            return ".jsonl"
        if start[:1] == b"[" and start[1:].lstrip()[:1] == b"{":
            records = parse_json(data.decode("utf-8"))
            if isinstance(records, list) and all(isinstance(r, dict) for r in records):
                return ".json"
    except ValueError:
        pass
    return ".txt"


def _array(file: Path, text: str, field: str) -> Iterator[Document]:
    records = _json(text, str(file))
    if not isinstance(records, list) or not records:
        raise CorpusError(file, "not a JSON array of objects", "one object per line is .jsonl")
    for index, record in enumerate(records):
        where = f"{file}[{index}]"
        yield Document(_field(record, field, where), where)


def _check_utf8(data: bytes, where: str) -> None:
    """Decode piece by piece, so that a long text is never held twice."""
    at = 0
    while at < len(data):
        end = min(at + PIECE, len(data))
        while end < len(data) and end > at + PIECE - 4 and data[end] & 0xC0 == 0x80:
            end -= 1  # not inside a character
        _utf8(data[at:end], at, where)
        at = end


def _utf8(data: bytes, offset: int, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        utf16 = offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise CorpusError(
            where,
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {at} ({error.reason})",
            "convert the file from UTF-16 to UTF-8" if utf16 else "convert the file to UTF-8",
        ) from error


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise CorpusError(where, f"not JSON ({error})", "repair the file") from error


def _field(record: Any, field: str, where: str) -> str:
    found = record.get(field) if isinstance(record, dict) else None
    if not isinstance(found, str):
        if not isinstance(record, dict):
            raise CorpusError(where, "is no object with fields", "write one object a line")
        if field in record:
            kind = type(found).__name__
            raise CorpusError(where, f"the field {field!r} is no text ({kind})", "repair the file")
        there = ", ".join(map(repr, record))
        raise CorpusError(
            where, f"has no field {field!r} (there: {there})", "name the one with the text (field)"
        )
    try:
        found.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair
        raise CorpusError(
            where, f"the text is not valid Unicode ({error})", "repair the document"
        ) from error
    return found
