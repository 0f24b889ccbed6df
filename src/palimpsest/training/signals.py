"""Stopping at the end of a step on Ctrl-C, on a scheduler's signal, or when the terminal closes."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals"]

HANDLED = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)  # a closed terminal; Windows has no such signal


class StopSignals:
    """Inside the block, the first SIGINT, SIGTERM or SIGHUP is noted; a second one acts as usual.

    A process started with SIGHUP ignored (``nohup``) goes on ignoring it. Outside the main thread,
    where Python allows no handlers, nothing is noted.

    Attributes:
        received: the number of the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            numbers = list(HANDLED)
            if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
                numbers.append(HANGUP)
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
