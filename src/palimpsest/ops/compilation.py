"""Reports that numba compiles kernels, which is otherwise several silent seconds.

numba announces each compilation that its cache on disk does not save; the first one of a process is
reported, in one line, to the innermost :func:`report_compilation`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "NOTICE",
    "NOTICE_WITHOUT_CACHE",
    "report_compilation",
    "report_no_cache",
    "watch_compilation",
]

NOTICE = (
    "compiling the recurrence for this processor; this takes 10 to 60 seconds, and the result is "
    "kept for later runs"
)
NOTICE_WITHOUT_CACHE = (
    "compiling the recurrence for this processor; this takes 10 to 60 seconds in every process, "
    "because compiled code cannot be kept ({reason})"
)
NOT_KEPT = "compiled code cannot be kept, every process compiles again ({reason})"

_reporters: list[Callable[[str], None]] = []
_lock = threading.Lock()
_watching = _reported = False
_no_cache: str | None = None  # why compiled code cannot be kept
_no_cache_reported = False


@contextmanager
def report_compilation(say: Callable[[str], None]) -> Iterator[None]:
    """Report the first compilation inside a ``with`` block.

    Args:
        say: called with :data:`NOTICE`, at most once per process, before the kernel is compiled.
    """
    _reporters.append(say)
    try:
        yield
    finally:
        _reporters.remove(say)


def watch_compilation() -> None:
    """Listen to numba's compilations; called by the modules that have kernels."""
    global _watching
    with _lock:
        if _watching:
            return
        _watching = True
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            _report()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())


def _report() -> None:
    global _reported, _no_cache_reported
    with _lock:
        reason = None if _no_cache_reported else _no_cache
        if _reported and reason is None:
            return
        if not _reporters and reason is None:
            return
        first, _reported = not _reported, True
        _no_cache_reported = _no_cache_reported or reason is not None
        say = _reporters[-1] if _reporters else logging.getLogger("palimpsest").warning
    if reason is None:
        say(NOTICE)
    else:
        say((NOTICE_WITHOUT_CACHE if first else NOT_KEPT).format(reason=reason))


def report_no_cache(reason: str) -> None:
    """Report once per process that compiled code cannot be kept.

    The report goes to the innermost :func:`report_compilation`, otherwise to the log "palimpsest".
    If nothing has been compiled yet, it is part of the notice of the first compilation.

    Args:
        reason: what failed, in a few words.
    """
    global _no_cache
    with _lock:
        _no_cache = _no_cache or reason
        started = _reported
    if started:
        _report()
