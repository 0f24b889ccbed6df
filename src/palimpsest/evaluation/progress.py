"""How far a long evaluation is: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from palimpsest.streams import safe_stderr

__all__ = ["track"]

PLAIN_SECONDS = 5.0  # a log file gets a line this often, and none for work shorter than this


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="cyan")


@contextmanager
def track(
    label: str, total: int, *, unit: str = "tok", console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Show the progress of a block.

    Args:
        label: what is being done.
        total: units of the whole work.
        unit: what is counted.
        console: where to show it; by default standard error, so that output can be piped.

    Yields:
        A function to call with the number of units done since the last call.
    """
    console = console or Console(file=safe_stderr())
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rate(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(label, total=total)
            yield lambda n: progress.advance(bar, n)
        return
    start = last = time.monotonic()
    done = 0

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS and done < total:
            last = now
            rate = done / (now - start)
            console.print(
                f"{label}: {done:,}/{total:,} {unit} ({100 * done / total:.0f} %), "
                f"{rate:,.0f} {unit}/s, {(total - done) / rate:,.0f} s left",
                highlight=False,
                soft_wrap=True,  # one line, as wide as it is
            )

    yield advance
