"""The errors a user can cause. Each names the argument, its value and the remedy.

The command line prints these as one line without a traceback; anything else is a bug of ours.
"""

from __future__ import annotations

import errno

__all__ = [
    "CheckpointError",
    "ConfigError",
    "GradientError",
    "InputError",
    "PalimpsestError",
    "StateError",
    "StorageError",
    "WorkError",
    "counted",
    "out_of_memory",
    "work_failed",
]

# OSErrors that a path or a permission causes, and not the machine
_PATH_ERRORS = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EROFS,
    errno.ELOOP,
    errno.EINVAL,
}
# OSErrors that the machine causes, even if a message that names a file reports them
_MACHINE_ERRORS = {
    errno.ENOSPC,
    getattr(errno, "EDQUOT", errno.ENOSPC),  # Windows has no quota
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 document", "2,000 documents"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def out_of_memory(failure: BaseException) -> bool:
    """Whether memory has run out, which torch on a CPU reports like any other failure."""
    if isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError":
        return True
    return isinstance(failure, RuntimeError) and "can't allocate memory" in str(failure)


def work_failed(failure: BaseException) -> bool:
    """Whether the work failed, rather than the arguments being wrong.

    True for a loss that is not finite, too little memory, and everything that the machine caused
    (a full disk, an error of the device), whatever the class of the error that reports it.
    """
    if isinstance(failure, PalimpsestError) and isinstance(failure, ArithmeticError | WorkError):
        return True
    if isinstance(failure, OSError) and not isinstance(failure, PalimpsestError):
        return failure.errno not in _PATH_ERRORS
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, StorageError) or out_of_memory(cause):
            return True
        if isinstance(cause, OSError) and cause.errno in _MACHINE_ERRORS:
            return True
        cause = cause.__cause__
    return False


class PalimpsestError(Exception):
    """Base of all errors that name a mistake in the input, not in the library."""


class ConfigError(PalimpsestError, ValueError):
    """A configuration with unknown, missing or contradictory fields."""


class InputError(PalimpsestError, ValueError):
    """Tensors, ids, texts or paths that the call cannot take."""


class StateError(PalimpsestError, ValueError):
    """A state of another model, batch size or version."""


class GradientError(PalimpsestError, RuntimeError):
    """A derivative that the chosen backend cannot give."""


class CheckpointError(PalimpsestError, ValueError):
    """A checkpoint that is truncated, of another version or not ours."""


class StorageError(PalimpsestError, OSError):
    """A file that cannot be written (a full disk, no permission); nothing is half-written."""


class WorkError(PalimpsestError, RuntimeError):
    """The work failed although the arguments are right: a process that was killed, for example."""
