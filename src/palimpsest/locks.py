"""One process at a time in a folder: a lock that the operating system releases with its holder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["LockedError", "exclusive"]


class LockedError(Exception):
    """Another process, or another part of this one, holds the lock."""


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file inside the block.

    The file is made if it is missing, and stays. It says nothing by itself: the lock ends with the
    process that holds it, also if that process is killed. A file system without locks gives none,
    and the block runs without one.

    Raises:
        LockedError: it is held already; raised at once.
        OSError: the file cannot be made.
    """
    path.open("a").close()  # FileLock takes a folder without permission for a lock that is held
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(str(path)) from None
    except NotImplementedError:  # the file system has no locks
        yield
        return
    try:
        yield
    finally:
        lock.release()
