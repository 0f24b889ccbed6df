"""Where recorded pieces go: kept in memory, reduced, or written to a folder in chunks.

A folder holds ``index.json`` and, for each tap, numbered ``.npy`` files in the order of the text.
The index is written last, under a temporary name, after each chunk: what it lists is whole. It
holds a sha256 of each chunk, which is checked when the chunk is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from palimpsest.analysis.reducers import Reducer
from palimpsest.digests import file_digest
from palimpsest.errors import InputError
from palimpsest.files import atomic_path, read_json, write_json
from palimpsest.taps import Tap

__all__ = ["Folder", "Kept", "Reduced", "Sink", "read_index"]

FORMAT, VERSION, INDEX = "palimpsest-tape", 1, "index.json"
CHUNK_BYTES = 32 << 20


class Sink(Protocol):
    """Takes the pieces of one tap."""

    def add(self, piece: Tensor, places: Tensor) -> None:
        """A piece (B,n,…), or (N,…) under a mask, and row and position of each of its entries."""


class Kept:
    """In memory."""

    def __init__(self) -> None:
        self.pieces: list[Tensor] = []

    def add(self, piece: Tensor, places: Tensor) -> None:
        self.pieces.append(piece)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.pieces)


class Reduced:
    """Into a reducer; the values are gone."""

    def __init__(self, reducer: Reducer, masked: bool) -> None:
        self.reducer, self.masked = reducer, masked

    def add(self, piece: Tensor, places: Tensor) -> None:
        # as time runs, so that the order does not depend on how the text was cut into calls
        flat = piece if self.masked else piece.transpose(0, 1).flatten(0, 1)
        self.reducer.update(flat, places)


class Folder:
    """A folder that chunks are written to.

    Args:
        path: made where it is missing.
        about: the taps that will be written.
        masked: whether pieces are (N,…).

    Raises:
        InputError: a folder that already holds a tape.
        StorageError: it cannot be written.
    """

    def __init__(self, path: Path, about: dict[str, Tap], masked: bool) -> None:
        if (path / INDEX).exists():
            raise InputError(f"to={path}: holds a tape already; name another folder")
        self.path = path
        self.index: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "complete": False,
            "masked": masked,
            "taps": {
                name: {
                    "shape": tap.shape,
                    "doc": tap.doc,
                    "dtype": None,
                    "chunks": [],
                    "sha256": [],
                }
                for name, tap in about.items()
            },
        }
        self.sinks = {name: _FolderSink(self, name) for name in about}
        self.write_index()

    def write_index(self) -> None:
        write_json(self.path / INDEX, self.index)

    def close(self) -> None:
        """Write what is left, and that the tape is complete."""
        for sink in self.sinks.values():
            sink.flush()
        self.index["complete"] = True
        self.write_index()


class _FolderSink:
    """One tap's chunks."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.entry, self.name = folder, folder.index["taps"][name], name
        self.waiting: list[Tensor] = []

    def add(self, piece: Tensor, places: Tensor) -> None:
        axis = 0 if self.folder.index["masked"] else 1
        if self.waiting and axis and self.waiting[0].shape[0] != piece.shape[0]:
            self.flush()
        self.waiting.append(piece.to("cpu"))
        if sum(t.numel() * t.element_size() for t in self.waiting) >= CHUNK_BYTES:
            self.flush()

    def __iter__(self) -> Iterator[Tensor]:
        yield from _read_chunks(self.folder.path, self.entry)
        yield from self.waiting

    def flush(self) -> None:
        if not self.waiting:
            return
        chunk = torch.cat(self.waiting, 0 if self.folder.index["masked"] else 1)
        self.waiting = []
        self.entry["dtype"] = str(chunk.dtype).removeprefix("torch.")
        if chunk.dtype == torch.bfloat16:  # numpy has none; fp32 holds every bf16 exactly
            chunk = chunk.float()
        file = f"{self.name}.{len(self.entry['chunks']):05d}.npy"
        with atomic_path(self.folder.path / file) as temporary, open(temporary, "wb") as out:
            np.save(out, chunk.numpy(), allow_pickle=False)
        self.entry["chunks"].append(file)
        self.entry["sha256"].append(file_digest(self.folder.path / file))
        self.folder.write_index()


def _read_chunks(path: Path, entry: dict[str, Any]) -> Iterator[Tensor]:
    digests = entry.get("sha256") or [None] * len(entry["chunks"])  # None in an older tape
    for file, digest in zip(entry["chunks"], digests, strict=True):
        try:
            if digest is not None and file_digest(path / file) != digest:
                raise ValueError(f"its sha256 is not the one in {INDEX}; record it again")
            array = np.load(path / file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as failure:
            raise InputError(f"{path / file}: cannot be read ({failure})") from None
        yield torch.from_numpy(array).to(getattr(torch, entry["dtype"]))


class Chunks:
    """One tap of a folder, read chunk by chunk whenever it is walked through."""

    def __init__(self, path: Path, entry: dict[str, Any]) -> None:
        self.path, self.entry = path, entry

    def __iter__(self) -> Iterator[Tensor]:
        return _read_chunks(self.path, self.entry)


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, Chunks]]:
    """The index of a folder, and its taps.

    Raises:
        InputError: not a tape, or of another version.
    """
    index = read_json(path / INDEX, InputError)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{path}: is not a tape; write one with record(model, to=folder)")
    if index.get("version") != VERSION:
        raise InputError(
            f"{path}: a tape of version {index.get('version')!r}, this palimpsest reads {VERSION}"
        )
    return index, {name: Chunks(path, entry) for name, entry in index["taps"].items()}
