"""A corpus on disk, tokenised once and memory-mapped afterwards.

A folder holds ``tokens.bin`` (the ids, little-endian uint16 or uint32), ``documents.bin`` (two
little-endian int64 per document: its first position, its bytes of text), the tokenizer, and the
header ``shards.json``. All ids are in one file: a memory map is one address range, so every reader
gets a plain array, whatever the size. Writing holds one document in memory at a time, and the
folder gets its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest.digests import file_digest, seal, unseal
from palimpsest.files import parse_json
from palimpsest.text.corpus import Corpus, TextHash, encode_documents, joining, token_dtype
from palimpsest.text.documents import Document
from palimpsest.text.errors import ShardError
from palimpsest.text.tokenizer import Tokenizer

__all__ = ["open_shards", "write_shards"]

FORMAT = "palimpsest-token-shards"
VERSION = 1
HEADER = "shards.json"
TOKENS = "tokens.bin"
DOCUMENTS = "documents.bin"
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
FIELDS = {
    "dtype": str,
    "tokens": int,
    "documents": int,
    "bytes": int,
    "inexact_documents": int,
    "bos": bool,
    "eos": bool,
    "text_sha256": str,
    "tokens_sha256": str,
    "documents_sha256": str,
    "tokenizer_name": str,
    "tokenizer_fingerprint": str,
}


def write_shards(
    folder: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    *,
    bos: bool | None = None,
    eos: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Tokenise documents into a folder, one at a time.

    Args:
        folder: where; it must not exist yet. Until all is written, the files are in a folder
            beside it, ``<name>.part-<process>``, which goes away when something fails.
        documents: at least one; an iterator is read once.
        tokenizer: turns each into ids; it is saved in the folder.
        bos: start each document with BOS; None where the tokenizer has one.
        eos: end each document with EOS; None where the tokenizer has one.
        progress: called with the bytes of text that were tokenised since its last call.

    Returns:
        The corpus, as :func:`open_shards` gives it.

    Raises:
        ShardError: the folder exists, or there was nothing to write.
        CorpusError: a document cannot be read, a mark that the tokenizer has not.
    """
    folder = Path(folder)
    remedy = "choose another folder, or remove this one"
    if folder.exists():
        raise ShardError(folder, "it exists already", remedy)
    bos, eos = joining(tokenizer, bos, eos, folder)
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        header = _write(part, documents, tokenizer, bos, eos, progress)
        if not header["tokens"]:
            raise ShardError(folder, "the documents gave no token", "pass at least one")
        tokenizer.save(part)
        text = json.dumps(seal({"format": FORMAT, "version": VERSION, **header}), indent=2)
        (part / HEADER).write_text(text + "\n", encoding="utf-8")
        try:
            part.rename(folder)
        except OSError as error:
            raise ShardError(folder, f"it appeared while writing ({error})", remedy) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return open_shards(folder)


def _write(
    part: Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    bos: bool,
    eos: bool,
    progress: Callable[[int], None] | None,
) -> dict[str, Any]:
    dtype_name = token_dtype(tokenizer.vocab_size).name
    text_hash, tokens_hash, documents_hash = TextHash(), hashlib.sha256(), hashlib.sha256()
    count = num_bytes = num_tokens = inexact = 0
    with (part / TOKENS).open("wb") as tokens_file, (part / DOCUMENTS).open("wb") as documents_file:

        def take(ids: NDArray[Any], _: int) -> None:
            data = ids.astype(DTYPES[dtype_name]).tobytes()
            tokens_file.write(data)
            tokens_hash.update(data)

        for encoded in encode_documents(documents, tokenizer, bos, eos, text_hash, take, progress):
            row = np.array([num_tokens, encoded.num_bytes], dtype="<i8").tobytes()
            documents_file.write(row)
            documents_hash.update(row)
            count += 1
            num_tokens += encoded.num_tokens
            num_bytes += encoded.num_bytes
            inexact += not encoded.exact
    return {
        "dtype": dtype_name,
        "tokens": num_tokens,
        "documents": count,
        "bytes": num_bytes,
        "inexact_documents": inexact,
        "bos": bos,
        "eos": eos,
        "text_sha256": text_hash.hexdigest(),
        "tokens_sha256": tokens_hash.hexdigest(),
        "documents_sha256": documents_hash.hexdigest(),
        "tokenizer_name": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint(),
    }


def open_shards(
    folder: str | Path, *, tokenizer: Tokenizer | None = None, verify: bool = True
) -> Corpus:
    """Map a folder that :func:`write_shards` wrote.

    Args:
        folder: the folder; its tokenizer is ``load_tokenizer(folder)``.
        tokenizer: the one the ids are for, where the caller already has one; it must be the one
            that made them.
        verify: read all of it once and compare the hashes; False checks sizes and header only,
            which accepts a file whose bytes were changed.

    Returns:
        A corpus whose ``tokens`` are a read-only memory map.

    Raises:
        ShardError: no header or a foreign one, a file that is missing, truncated, too long or
            (with ``verify``) changed, another tokenizer.
    """
    folder = Path(folder)
    header = _header(folder)
    dtype = DTYPES[header["dtype"]]
    _check_size(folder / TOKENS, header["tokens"] * dtype.itemsize)
    _check_size(folder / DOCUMENTS, header["documents"] * 16)
    if verify:
        _check_hash(folder / TOKENS, header["tokens_sha256"])
        _check_hash(folder / DOCUMENTS, header["documents_sha256"])
    made_by = header["tokenizer_fingerprint"]
    if tokenizer is not None and tokenizer.fingerprint() != made_by:
        raise ShardError(
            folder,
            f"its ids come from tokenizer {header['tokenizer_name']!r} ({made_by[:12]}…), "
            f"not from {tokenizer.name!r} ({tokenizer.fingerprint()[:12]}…)",
            "write the shards again, or use load_tokenizer(folder)",
        )
    rows: NDArray[np.int64] = np.fromfile(folder / DOCUMENTS, dtype="<i8").reshape(-1, 2)
    return Corpus(
        tokens=np.memmap(folder / TOKENS, dtype=dtype, mode="r"),
        document_starts=np.ascontiguousarray(rows[:, 0]),
        document_bytes=np.ascontiguousarray(rows[:, 1]),
        text_sha256=header["text_sha256"],
        tokenizer_fingerprint=made_by,
        bos=header["bos"],
        eos=header["eos"],
        inexact_documents=header["inexact_documents"],
    )


def _header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    remedy = f"expected a folder that write_shards wrote ({FORMAT!r} version {VERSION})"
    if not path.is_file():
        raise ShardError(path, "no such header", remedy)
    try:
        header = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ShardError(path, f"not JSON ({error})", remedy) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ShardError(path, "a foreign header", remedy)
    if header.get("version") != VERSION:
        raise ShardError(path, f"version {header.get('version')!r}", remedy)
    content, right = unseal(header)
    if not right:
        raise ShardError(path, "its content does not match its sha256", "write the shards again")
    fields = {key: value for key, value in content.items() if key not in ("format", "version")}
    wrong = [key for key, kind in FIELDS.items() if type(fields.get(key)) is not kind]
    wrong += [key for key in fields if key not in FIELDS]
    if not wrong and fields["dtype"] not in DTYPES:
        wrong = ["dtype"]
    if wrong:
        raise ShardError(path, f"missing, unknown or wrong fields: {', '.join(wrong)}", remedy)
    return fields


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise ShardError(path, "no such file", "write the shards again")
    found = path.stat().st_size
    if found != expected:
        state = "truncated" if found < expected else "too long"
        raise ShardError(
            path, f"{state}: {found} bytes, the header says {expected}", "write the shards again"
        )


def _check_hash(path: Path, expected: str) -> None:
    if file_digest(path) != expected:
        raise ShardError(path, "its sha256 is not the header's", "write the shards again")
