"""Reading a pickle without running anything in it.

A pickle is a program: it may import any function and call it. Here the program is looked through
first (only the instructions that arrays and plain containers need are let in) and then run with
stand-ins of our own for the few names that numpy's arrays use. Nothing that the file names is ever
imported, and numpy itself only sees bytes, a simple dtype and a shape that agree with one another.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.errors import CheckpointError
from palimpsest.interop.published.pickle_limits import Budget, LimitError, Outline

__all__ = ["read_published_pickle"]

PLAIN_KINDS = "biufcSU"  # booleans, numbers, text; no objects, no records
FORBIDDEN_OPCODES = frozenset(
    ("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX")
)
_OPEN = object()
_BUDGET: ContextVar[Budget] = ContextVar("budget")  # of the file being read
MEMO_WRITES = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))


def read_published_pickle(path: str | Path) -> Any:
    """Read a published checkpoint that is a Python pickle.

    Args:
        path: the file.

    Returns:
        What it holds: numpy arrays, numbers, text, bytes, None, and lists, tuples, sets and dicts
        of them (an OrderedDict comes back as a dict, a numpy scalar as a Python number).

    Raises:
        CheckpointError: missing, cut short, holding anything else, which is named, or asking for
            more depth, work or memory than its size allows; nothing of such a file is run.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as failure:
        raise CheckpointError(f"{path}: cannot be read ({failure.strerror})") from None
    _BUDGET.set(Budget(len(data)))
    try:
        _look_through(data)
        return _plain(_Unpickler(io.BytesIO(data)).load(), {})
    except _RefusedError as refusal:
        raise CheckpointError(
            f"{path}: holds {refusal}, and only numpy arrays and plain containers are read from a "
            "pickle; nothing in it was run. Save the parameters as numpy arrays, or as .npz"
        ) from None
    except LimitError as limit:
        raise CheckpointError(
            f"{path}: holds {limit}, which a checkpoint of {len(data):,} bytes does not need; it "
            "is not read. Save the parameters as numpy arrays, or as .npz"
        ) from None
    except Exception as failure:  # whatever a damaged program makes the unpickler stumble over
        raise CheckpointError(
            f"{path}: is not a complete pickle ({type(failure).__name__}: {failure}); it may have "
            "been cut short"
        ) from None


class _RefusedError(Exception):
    """Something that is neither an array nor a plain container."""


def _look_through(data: bytes) -> None:
    """Refuse unwanted instructions, and what would take too much depth, work or memory."""
    outline = Outline()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data)), 1):
        if opcode.name in FORBIDDEN_OPCODES:
            raise _RefusedError(f"the pickle instruction {opcode.name} ({argument!r})")
        if opcode.name in MEMO_WRITES and not 0 <= int(argument or 0) <= count:
            raise ValueError(f"memo position {argument} in a pickle of {count} instructions")
        outline.follow(opcode, argument)


class _StandIn:
    """What the unpickler gets instead of an imported name: it can be called, and nothing else."""

    __slots__ = ("_make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError(f"an attempt to change {self.name}")


class _DType:
    """A dtype while its pickle is being read: a code such as "f4", then its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code[:1] not in PLAIN_KINDS or not code[1:].isdigit():
            raise _RefusedError(f"an array of dtype {code!r}")
        self.code = code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "=", "|") or any(part is not None for part in state[2:5]):
            raise _RefusedError(f"an array of a structured dtype ({self.code!r})")
        self.order = order

    def array(self, shape: Any, data: Any, order: str = "C") -> np.ndarray:
        """The array, once its bytes, dtype and shape are seen to agree."""
        dtype = np.dtype(self.order.replace("|", "") + self.code)
        if isinstance(data, str):  # protocols 0 to 2 write bytes as text
            data = data.encode("latin1")
        if not isinstance(data, (bytes, bytearray)):
            raise _RefusedError(f"an array whose content is a {type(data).__name__}")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"array of shape {shape!r}")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"array of shape {shape} with {len(data)} bytes")
        _BUDGET.get().spend(len(data))
        # a copy, so that the array is writable and does not keep the file's bytes alive
        flat: np.ndarray = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
        shaped = flat.reshape(shape, order="F" if order == "F" else "C")
        return np.array(shaped, order="K")


class _Array:
    """An array while its pickle is being read: created empty, then given its state."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _checked(dtype).array(shape, data, "F" if fortran else "C")


def _checked(dtype: Any) -> _DType:
    if not isinstance(dtype, _DType):
        raise _RefusedError(f"an array whose dtype is a {type(dtype).__name__}")
    return dtype


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _Array:
    """Protocol 5; ``axes`` is how numpy ≥ 2.3 writes arrays whose axes are permuted."""
    array = _Array()
    if axes is None:
        array.value = _checked(dtype).array(shape, data, order)
    else:
        array.value = _checked(dtype).array(shape, data).transpose(axes)
    return array


def _scalar(dtype: Any, data: Any) -> Any:
    return _checked(dtype).array((), data).item()


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedError("a call of _codecs.encode that writes no bytes")
    _BUDGET.get().spend(len(text))
    return text.encode("latin1")


def _bytes(*content: Any) -> bytes:
    """How protocols 0 to 2 write empty bytes, and all but 5 a bytearray."""
    if len(content) == 2 and isinstance(content[0], str):
        return _encode(*content)
    if content and not (len(content) == 1 and isinstance(content[0], bytes)):
        raise _RefusedError("a call of bytes with what is not their content")
    return content[0] if content else b""


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise _RefusedError("a call of complex with what are not two numbers")
    return complex(real, imaginary)


def _set(items: Any) -> set[Any]:
    """How protocols below 4 write a set."""
    if type(items) is not list:
        raise _RefusedError("a call of set with what is not a list")
    _BUDGET.get().spend_items(items)
    return set(items)


def _ordered_dict(pairs: Any = ()) -> dict[Any, Any]:
    _BUDGET.get().spend_items(pairs)
    return dict(pairs)


def _not_called(*_: Any) -> Any:
    raise _RefusedError("a call of numpy.ndarray")


def _names() -> dict[tuple[str, str], _StandIn]:
    table: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): _not_called,
        ("numpy", "dtype"): _DType,
        ("_codecs", "encode"): _encode,
        ("collections", "OrderedDict"): _ordered_dict,
    }
    for builtin in ("builtins", "__builtin__"):  # the latter in protocols 0 to 2
        table[builtin, "bytes"] = table[builtin, "bytearray"] = _bytes
        table[builtin, "complex"] = _complex
        table[builtin, "set"] = _set
    for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
        table[f"{core}.multiarray", "_reconstruct"] = _Array
        table[f"{core}.multiarray", "scalar"] = _scalar
        table[f"{core}.numeric", "_frombuffer"] = _from_buffer
    return {key: _StandIn(".".join(key), make) for key, make in table.items()}


_NAMES = _names()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise _RefusedError(f"{module}.{name}")
        return found


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """The tree with arrays in their places; refuses what is not plain, and trees in a ring.

    Args:
        value: what the unpickler made.
        done: by identity, the containers already walked (a shared one is walked once, or a small
            file could ask for endless work), and those still open.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, _Array):
        if value.value is None:
            raise ValueError("an array without content")
        return value.value
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        name = value.name if isinstance(value, _StandIn) else type(value).__name__
        raise _RefusedError(f"a bare {name.strip('_')}")
    if id(value) not in done:
        done[id(value)] = _OPEN
        if isinstance(value, dict):
            done[id(value)] = {_plain(k, done): _plain(v, done) for k, v in value.items()}
        else:
            done[id(value)] = type(value)(_plain(item, done) for item in value)
    if done[id(value)] is _OPEN:
        raise _RefusedError("a container that contains itself")
    return done[id(value)]
