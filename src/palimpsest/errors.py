"""The errors a user can cause. Each names the argument, its value and the remedy.

The command line prints these as one line without a traceback; anything else is a bug of ours.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InputError",
    "PalimpsestError",
    "StateError",
    "StorageError",
    "out_of_memory",
]


def out_of_memory(failure: BaseException) -> bool:
    """Whether memory has run out, which torch on a CPU reports like any other failure."""
    if isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError":
        return True
    return isinstance(failure, RuntimeError) and "can't allocate memory" in str(failure)


class PalimpsestError(Exception):
    """Base of all errors that name a mistake in the input, not in the library."""


class ConfigError(PalimpsestError, ValueError):
    """A configuration with unknown, missing or contradictory fields."""


class InputError(PalimpsestError, ValueError):
    """Tensors, ids, texts or paths that the call cannot take."""


class StateError(PalimpsestError, ValueError):
    """A state of another model, batch size or version."""


class CheckpointError(PalimpsestError, ValueError):
    """A checkpoint that is truncated, of another version or not ours."""


class StorageError(PalimpsestError, OSError):
    """A file that cannot be written (a full disk, no permission); nothing is half-written."""
