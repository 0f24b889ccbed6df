"""Calling compiled kernels with their arrays at chosen distances inside one block of memory.

:func:`record` collects the kernel calls of an op with copies of their arguments; :func:`replay`
repeats one of them with every array at a new place, and returns what the call left in them.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palimpsest.ops
from palimpsest.ops.grounded_loop.compiled import NumbaEngine

__all__ = ["Call", "called_names", "compiled_functions", "layouts", "record", "replay"]

PAGE = 4096


@dataclass(frozen=True)
class Call:
    """One call of a kernel: its arguments as they were before it."""

    kernel: Any
    arguments: tuple[Any, ...]

    @property
    def name(self) -> tuple[str, str]:
        """Module and function."""
        return self.kernel.py_func.__module__, self.kernel.py_func.__name__

    def arrays(self) -> list[np.ndarray]:
        """The arrays among the arguments."""
        return [x for x in self.arguments if isinstance(x, np.ndarray)]


class _Recorder:
    """A module of kernels whose calls are recorded."""

    def __init__(self, module: Any, calls: list[Call]) -> None:
        self._module, self._calls = module, calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        kernel = getattr(self._module, name)

        def call(*arguments: Any) -> None:
            self._calls.append(_copied(kernel, arguments))
            kernel(*arguments)

        return call


def _copied(kernel: Any, arguments: tuple[Any, ...]) -> Call:
    for array in arguments:
        if isinstance(array, np.ndarray):
            assert array.flags.c_contiguous, f"{kernel}: an argument is not contiguous"
    return Call(kernel, tuple(x.copy() if isinstance(x, np.ndarray) else x for x in arguments))


def _ops_modules() -> Iterator[Any]:
    path = palimpsest.ops.__path__
    for found in pkgutil.walk_packages(path, "palimpsest.ops."):
        yield importlib.import_module(found.name)


@contextmanager
def record() -> Iterator[list[Call]]:
    """Record all kernel calls of a block of code, in order."""
    calls: list[Call] = []

    def rows(kernel: Any, arguments: tuple[Any, ...], count: int, work: int) -> None:
        if hasattr(kernel, "py_func"):  # otherwise a recorder already
            calls.append(_copied(kernel, (*arguments, 0, count)))
        kernel(*arguments, 0, count)

    make = NumbaEngine.__init__

    def engine(self: NumbaEngine, *given: Any) -> None:
        make(self, *given)
        for name in ("forward", "back", "mem"):
            setattr(self, name, _Recorder(getattr(self, name), calls))

    with pytest.MonkeyPatch.context() as patch:
        for module in _ops_modules():
            if hasattr(module, "run_rows"):
                patch.setattr(module, "run_rows", rows)
        patch.setattr(NumbaEngine, "__init__", engine)
        yield calls


def replay(call: Call, order: list[int], gaps: list[int], start: int) -> list[bytes]:
    """Repeat a call with its arrays one after the other in memory.

    Args:
        order: which array comes first, second, and so on.
        gaps: bytes between each array and the one before it; rounded up to the array's entries.
        start: offset of the first array from a page's start.

    Returns:
        the bytes of every array after the call, in the order of the arguments.
    """
    arrays = call.arrays()
    size = sum(x.nbytes for x in arrays) + sum(gaps) + 16 * len(arrays) + start
    arena = np.zeros(size + PAGE, dtype=np.uint8)
    at = -arena.ctypes.data % PAGE + start
    placed: dict[int, np.ndarray] = {}
    for index, gap in zip(order, gaps, strict=True):
        array = arrays[index]
        at += gap
        at += -(arena.ctypes.data + at) % max(array.itemsize, 1)
        view = arena[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        placed[index] = view
        at += array.nbytes
    found = iter(range(len(arrays)))
    call.kernel(*(placed[next(found)] if isinstance(x, np.ndarray) else x for x in call.arguments))
    return [placed[index].tobytes() for index in range(len(arrays))]


def layouts(count: int, seed: int, tries: int) -> Iterator[tuple[list[int], list[int], int]]:
    """Orders, gaps of 0 to 512 bytes and starts for so many arrays, from a seed."""
    random = np.random.default_rng(seed)
    for _ in range(tries):
        order = random.permutation(count).tolist()
        gaps = (2 * random.integers(0, 257, count)).tolist()
        if random.random() < 0.5:  # most arrays are small: keep many of them near each other
            gaps = [gap % 64 for gap in gaps]
        yield order, gaps, int(2 * random.integers(0, 64))


def compiled_functions() -> dict[tuple[str, str], ast.FunctionDef]:
    """Source of every function that the ops compile, by module and name.

    These are the functions under ``@jit``, and those given to ``compiled``.
    """
    found: dict[tuple[str, str], ast.FunctionDef] = {}
    folder = Path(palimpsest.ops.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = path.relative_to(folder).with_suffix("").parts
        module = ".".join(("palimpsest.ops", *parts))
        given = {
            node.args[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "compiled"
            and isinstance(node.args[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (
                node.name in given
                or any(isinstance(d, ast.Name) and d.id == "jit" for d in node.decorator_list)
            ):
                found[module, node.name] = node
    return found


def called_names(node: ast.AST) -> set[str]:
    """Names of the functions that some code calls."""
    return {
        inner.func.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
    }
