"""The files of an experiment: that they are there, what they are, and whether they are the paper's.

The hash of a file is its sha256, that of a folder the sha256 over the names and hashes in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError
from palimpsest.reproduce.table import DataSource
from palimpsest.text import is_stream

__all__ = ["check_folder", "describe_files", "hash_path", "require_files"]

CHUNK = 1 << 20


def check_folder(path: Path) -> None:
    """Refuse a folder of results that cannot be one, before anything is measured.

    Raises:
        InputError: it, or what should hold it, is a file.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"--out {path}: {place} is a file; name a folder, new or of such runs")


def require_files(
    given: Mapping[str, Path | None], needed: Mapping[str, DataSource], names: tuple[str, ...]
) -> dict[str, Path]:
    """The files that an experiment reads.

    Args:
        given: path by flag; None where the user gave none.
        needed: what each is and where it comes from.
        names: the flags that must be given.

    Returns:
        The given paths, all of which exist.

    Raises:
        InputError: one is missing; the message says where to get it and what to expect. Or the
            validation text is the training text.
    """
    for name, path in given.items():
        if path is not None and is_stream(path):
            raise InputError(
                f"--{name} {path}: is a pipe, which can be read only once, and this reads it "
                "several times; write it to a file"
            )
    for name in names:
        source = needed.get(name)
        remedy = "" if source is None else f"; {source.remedy()}"
        path = given.get(name)
        if path is None:
            raise InputError(f"--{name} is not given{remedy}")
        if not path.exists():
            raise InputError(f"--{name} {path}: no such file{remedy}")
    for name, path in given.items():
        if path is not None and not path.exists():
            raise InputError(
                f"--{name} {path}: no such file; name one that exists, or leave it out"
            )
    train, valid = given.get("train"), given.get("valid")
    if train is not None and valid is not None and _equal(train, valid):
        raise InputError(
            f"--valid {valid}: is the text of --train {train}, so that nothing would be held out; "
            "give another text"
        )
    return {name: path for name, path in given.items() if path is not None}


def _equal(first: Path, second: Path) -> bool:
    """Whether two paths are one, or two files hold the same."""
    if first.resolve() == second.resolve():
        return True
    if not (first.is_file() and second.is_file()):
        return False
    same_size = first.stat().st_size == second.stat().st_size
    return same_size and _hash_file(first) == _hash_file(second)


def describe_files(
    paths: Mapping[str, Path], needed: Mapping[str, DataSource]
) -> dict[str, dict[str, Any]]:
    """Name, size and hash of each file, and whether it is the one that the paper used.

    Returns:
        By flag: "file", "bytes", "sha256", "expected" (True, False, or None where it is not known)
        and "what".
    """
    described: dict[str, dict[str, Any]] = {}
    for name, path in paths.items():
        digest, size = hash_path(path)
        source = needed.get(name)
        described[name] = {
            "file": path.name or str(path),
            "bytes": size,
            "sha256": digest,
            "expected": None if source is None else source.matches(size, digest),
            "what": "" if source is None else source.what,
        }
    return described


def hash_path(path: Path) -> tuple[str, int]:
    """The sha256 and the bytes of a file or of all files in a folder."""
    if path.is_file():
        return _hash_file(path), path.stat().st_size
    digest, total = hashlib.sha256(), 0
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()} {_hash_file(file)}\n".encode())
        total += file.stat().st_size
    return digest.hexdigest(), total


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
