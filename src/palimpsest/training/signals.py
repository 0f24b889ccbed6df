"""Stopping at a step's end when the terminal or the scheduler asks."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals"]

HANDLED = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Inside the block, the first SIGINT or SIGTERM is noted; a second one acts as usual.

    Outside the main thread, where Python allows no handlers, nothing is noted.

    Attributes:
        received: the number of the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in HANDLED}
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
