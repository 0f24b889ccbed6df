"""What a job keeps on the way to its result: to whom it belongs, and that one process is at it.

FOLDER/
    KEY/            what the job writes, to go on from after an interruption
    KEY.owner.json  the job's fingerprint and the paths of its data
    KEY.lock        locked while a process works on the job (see palimpsest.locks)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError
from palimpsest.files import write_text
from palimpsest.locks import LockedError, exclusive

__all__ = ["claimed", "discard"]


@contextmanager
def claimed(folder: Path, key: str, owner: Mapping[str, Any]) -> Iterator[Path]:
    """The place of a job's work inside the block, emptied first where it is another job's.

    Args:
        folder: of all work.
        key: the job's name.
        owner: what says whose work it is, as plain values.

    Raises:
        InputError: another process is at it.
    """
    work, mark = folder / key, _mark(folder, key)
    text = json.dumps(owner, sort_keys=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(_lock(folder, key)):
            if work.exists() and not (mark.is_file() and mark.read_text(encoding="utf-8") == text):
                shutil.rmtree(work)
            write_text(mark, text)
            yield work
    except LockedError as failure:
        raise InputError(
            f"{work}: another process is at this; wait for it, or name another --out"
        ) from failure


def discard(folder: Path, key: str) -> None:
    """Remove what a job has left, once its result is written; not what another process is at."""
    if not (folder / key).exists() and not _mark(folder, key).exists():
        return
    try:
        with exclusive(_lock(folder, key)):
            shutil.rmtree(folder / key, ignore_errors=True)
            _mark(folder, key).unlink(missing_ok=True)
    except LockedError:
        return
    _lock(folder, key).unlink(missing_ok=True)


def _mark(folder: Path, key: str) -> Path:
    return folder / f"{key}.owner.json"


def _lock(folder: Path, key: str) -> Path:
    return folder / f"{key}.lock"
