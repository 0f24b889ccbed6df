"""Reports that numba compiles kernels, which is otherwise several silent seconds.

numba announces each compilation that its cache on disk does not save; the first one of a process is
reported, in one line, to the innermost :func:`report_compilation`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["NOTICE", "report_compilation", "watch_compilation"]

NOTICE = (
    "compiling the recurrence for this processor; this takes 10 to 60 seconds, and the result is "
    "kept for later runs"
)

_reporters: list[Callable[[str], None]] = []
_lock = threading.Lock()
_watching = _reported = False


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
    global _reported
    with _lock:
        if _reported or not _reporters:
            return
        _reported = True
        say = _reporters[-1]
    say(NOTICE)
