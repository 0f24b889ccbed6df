"""Reading text: documents from files and folders, and the rules that prepare and split them.

Files: ``.txt`` (also ``.text``, ``.raw``, ``.tokens``: one document each), ``.jsonl`` (one JSON
object per line) and ``.json`` (one array of objects), each also as ``.gz``. Everything is strict
UTF-8, and nothing about the text is changed: line ends, a byte order mark and white space stay.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.text.errors import CorpusError

__all__ = [
    "Document",
    "is_validation_by_hash",
    "prepare_wikitext",
    "read_documents",
    "split_documents",
]

TEXT_SUFFIXES = (".txt", ".text", ".raw", ".tokens")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".json")
SUFFIX_REMEDY = f"known are {', '.join(SUFFIXES)}, each also with .gz"

# "Many" documents, for the automatic split: at least this many are expected in the validation
# part, so that a hash leaves it empty with probability e^-20 only.
MANY = 20


@dataclass(frozen=True)
class Document:
    """One text and where it came from.

    Args:
        text: the text, unchanged.
        source: its file, with ``:line`` (jsonl) or ``[index]`` (json) where the file has several.
    """

    text: str
    source: str


def read_documents(
    paths: str | Path | Iterable[str | Path], *, field: str = "text"
) -> Iterator[Document]:
    """The documents of some files and folders, one at a time.

    Args:
        paths: one path or several, read in the order given. A folder is read with all that lies
            below it, in the sorted order of the relative paths; names that start with a dot are
            not read, any other file must have a known suffix.
        field: which field of a JSON object holds the text. White space between the lines of a
            jsonl file is allowed.

    Raises:
        CorpusError: a path that does not exist, an empty file or folder, text that is not UTF-8
            (the byte offset is named), a JSON object without the field (the line is named), an
            unknown suffix, a damaged .gz. Raised when the document is reached, except for missing
            paths and unknown suffixes, which are found before the first document.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise CorpusError(None, "paths is empty", "name at least one file or folder")
    files = [file for path in listed for file in _files(Path(path))]
    return (document for file in files for document in _read(file, field))


def prepare_wikitext(documents: Iterable[Document]) -> Document:
    """WikiText's rule: one document of the split's non-empty lines.

    The lines (of all the documents, in order) that are not white space, each stripped, joined by
    one line feed. Tokenised with both marks, it lies between one BOS and one EOS.

    Raises:
        CorpusError: no line is left.

    Source: Xiao, arXiv 2606.05175 (the WikiText-2 byte protocol).
    """
    lines: list[str] = []
    sources: list[str] = []
    for document in documents:
        lines += [line.strip() for line in document.text.split("\n") if line.strip()]
        sources.append(document.source)
    if not lines:
        raise CorpusError(", ".join(sources) or None, "no line holds any text", "pass some text")
    return Document("\n".join(lines), ", ".join(sources))


def is_validation_by_hash(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation part, by its text alone.

    The first 8 bytes of the text's sha256, as a fraction of 2^64, are below ``fraction``. So the
    answer never depends on the other documents: more data moves no document to the other side,
    and two equal texts are on the same side.
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
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
                documents[0].source, f"rule='cut' has {count} documents", "use 'last' or 'hash'"
            )
        return _cut(documents[0], fraction)
    if rule == "last":
        held = {d.text for d in documents[count - max(1, round(count * fraction)) :]}
        chosen = [d.text in held for d in documents]
    elif rule == "hash":
        chosen = [is_validation_by_hash(d.text, fraction) for d in documents]
    else:
        raise ValueError(f"rule={rule!r}: choose 'auto', 'hash', 'last' or 'cut'")
    training = [d for d, c in zip(documents, chosen, strict=True) if not c]
    validation = [d for d, c in zip(documents, chosen, strict=True) if c]
    if not training or not validation:
        raise CorpusError(
            documents[0].source,
            f"rule={rule!r} with fraction={fraction} puts {len(training)} of {count} documents "
            f"into training and {len(validation)} into validation",
            "choose another fraction or rule, or name a validation file",
        )
    return training, validation


def _cut(document: Document, fraction: float) -> tuple[list[Document], list[Document]]:
    data = document.text.encode("utf-8")
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
    parts = (data[:at].decode("utf-8"), data[at:].decode("utf-8"))
    return [Document(parts[0], document.source)], [Document(parts[1], document.source)]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise CorpusError(path, "no such file or folder", "name one that exists")
    if path.is_file():
        files = [path]
    else:
        below = [(file.relative_to(path), file) for file in path.rglob("*") if file.is_file()]
        shown = [(rel, f) for rel, f in below if not any(p.startswith(".") for p in rel.parts)]
        files = [file for _, file in sorted(shown, key=lambda pair: pair[0].as_posix())]
        if not files:
            raise CorpusError(path, "the folder holds no file", SUFFIX_REMEDY)
    for file in files:
        if _kind(file) not in SUFFIXES:
            raise CorpusError(file, f"suffix {_kind(file)!r} is not supported", SUFFIX_REMEDY)
    return files


def _kind(file: Path) -> str:
    return (file.with_suffix("") if file.suffix == ".gz" else file).suffix


def _read(file: Path, field: str) -> Iterator[Document]:
    empty = True
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            if _kind(file) == ".jsonl":
                offset = 0
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        empty = False
                        where = f"{file}:{number}"
                        record = _json(_utf8(line, offset, where), where)
                        yield Document(_field(record, field, where), where)
                    offset += len(line)
            else:
                data = stream.read()
                if data:
                    empty = False
                    yield from _whole(file, _utf8(data, 0, str(file)), field)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(file, f"damaged .gz file ({error})", "write or fetch it again") from error
    if empty:
        raise CorpusError(file, "the file is empty", "remove it, or put text into it")


def _whole(file: Path, text: str, field: str) -> Iterator[Document]:
    if _kind(file) != ".json":
        yield Document(text, str(file))
        return
    records = _json(text, str(file))
    if not isinstance(records, list) or not records:
        raise CorpusError(file, "not a JSON array of objects", "one object per line is .jsonl")
    for index, record in enumerate(records):
        where = f"{file}[{index}]"
        yield Document(_field(record, field, where), where)


def _utf8(data: bytes, offset: int, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise CorpusError(
            where,
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {at} ({error.reason})",
            "convert the file to UTF-8",
        ) from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
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
