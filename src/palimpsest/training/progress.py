"""What a person watching a run sees: a bar in a terminal, otherwise a line every few seconds.

A standard error that is closed or cannot be written never ends a run: its lines are dropped.
"""

from __future__ import annotations

import time
from typing import Any

from palimpsest.streams import plain, safe_stderr

__all__ = ["TrainingProgress"]

BAR_SECONDS = 0.2
LINE_SECONDS = 5.0


class TrainingProgress:
    """Progress on standard error.

    Args:
        steps: optimizer steps in all.
        done: steps done before this session.
        show: False shows nothing at all.
    """

    def __init__(self, steps: int, done: int, *, show: bool) -> None:
        self._steps = steps
        self._first: int | None = None
        self._show = show
        self._start = self._last = 0.0
        self._bar: Any = None
        self._stream = safe_stderr()
        if show and self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=Console(file=self._stream),
                transient=True,
            )
            self._task = self._bar.add_task("", total=steps, completed=done)
            self._bar.start()

    def update(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show where the run is; costs nothing between two refreshes."""
        if not self._show:
            return
        now = time.monotonic()
        if self._first is None:  # the clock starts after the first step, which also compiles
            self._first, self._start, self._last = step, now, now
            return
        if now - self._last < (LINE_SECONDS if self._bar is None else BAR_SECONDS):
            return
        self._last = now
        text = f"loss {loss:.3f}  {tokens_per_s:,.0f} tok/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
            return
        left = (now - self._start) / (step - self._first) * (self._steps - step)
        minutes, seconds = divmod(round(left), 60)
        self._line(f"step {step}/{self._steps}  {text}  {minutes}:{seconds:02d} left")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if not self._show:
            return
        if self._bar is not None:
            self._bar.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
        else:
            self._line(plain(text))

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
