"""The standard streams of a command: failures are remembered, and reported after the work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from palimpsest.streams import SafeStream, plain

__all__ = ["lost_output", "reader_gone", "safe_streams", "say"]


@contextlib.contextmanager
def safe_streams() -> Iterator[tuple[SafeStream, SafeStream]]:
    """Inside the block ``sys.stdout`` and ``sys.stderr`` never raise; yields both.

    A stream that has failed is led to the null device at the end, so that the interpreter's last
    flush of it does not change the exit code.
    """
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    out, err = SafeStream(before[0]), SafeStream(before[1])
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = before
        for stream in (out, err):
            stream.flush()
            if stream.failure is not None:
                _lead_to_null(stream)


def lost_output(out: SafeStream) -> str:
    """Why standard output is incomplete, in words; "" if it is complete or its reader has left."""
    if out.failure is None or isinstance(out.failure, BrokenPipeError):
        return ""
    reason = getattr(out.failure, "strerror", None) or out.failure
    return f"standard output could not be written ({reason}); everything else was finished"


def reader_gone() -> bool:
    """Whether standard output has failed, so that nothing more can be shown."""
    return getattr(sys.stdout, "failure", None) is not None


def say(text: str) -> None:
    """Print a line that may hold a file name."""
    print(plain(text))


def _occupy_standard_descriptors() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next file that is opened, a checkpoint for example, gets the descriptor of
    standard error, and messages of C libraries go into it.
    """
    for number, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        if stream is None:
            try:
                os.fstat(number)
            except OSError:
                null = os.open(os.devnull, os.O_RDWR)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)


def _lead_to_null(stream: SafeStream) -> None:
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
