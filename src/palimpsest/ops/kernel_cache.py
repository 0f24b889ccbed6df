"""Compiling with numba, with the machine code kept on disk where that is possible.

numba's own cache stops a program if it finds no folder to write to, if the disk is full or if one
of its files is damaged. Here a kernel is compiled anew in all these cases, and one line says so if
the result cannot be kept. Every file carries its SHA-256, because changed machine code computes
other numbers. A kernel contains what it calls from other files, so its key covers all of them.

Only loaded where numba is installed.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from palimpsest.ops.compilation import report_no_cache, watch_compilation

__all__ = ["compile_function"]

DIGEST = hashlib.sha256().digest_size
# What a file with code for numba imports.
MARKS = ("palimpsest.ops.simd", "palimpsest.ops.vectors", "import compiled", "llvmlite")

# Whether numba's classes are typed depends on its release; as Any, mypy sees them alike.
_FunctionCache: Any = caching.FunctionCache
_IndexDataCacheFile: Any = caching.IndexDataCacheFile


def compile_function(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A function that numba compiles on first use.

    Args:
        function: in the subset of Python that numba knows.
        options: of ``numba.njit``, without ``cache``.
    """
    watch_compilation()
    kernel = numba.njit(**options)(function)
    try:
        kernel._cache = _Cache(function)
    except Exception as failure:  # no folder can be written; numba raises RuntimeError
        report_no_cache(_reason(failure))
    return kernel


@functools.cache
def _sources_digest() -> str:
    """Of every file whose code may be part of a kernel."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.rglob("*.py")):
        content = path.read_bytes()
        if any(mark.encode() in content for mark in MARKS):
            digest.update(content)
    return digest.hexdigest()


class _CheckedFiles(_IndexDataCacheFile):  # type: ignore[misc]
    """Index and machine code of one function; code is preceded by its digest."""

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except Exception:  # damaged; it is written anew
            return {}

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
            return None  # damaged, or written by another version
        return pickle.loads(content[DIGEST:])


class _Cache(_FunctionCache):  # type: ignore[misc]
    """numba's cache, which never raises."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = (self._impl.locator.get_source_stamp(), _sources_digest())
        self._cache_file = _CheckedFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unreadable: compiled anew
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as failure:
            report_no_cache(_reason(failure))


def _reason(failure: Exception) -> str:
    if isinstance(failure, OSError):
        where = f": {failure.filename}" if failure.filename else ""
        return f"{failure.strerror or failure}{where}"
    return "no folder for compiled code can be written; NUMBA_CACHE_DIR names one"
