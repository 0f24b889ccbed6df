"""Writing files so that an interruption or a full disk never leaves half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palimpsest.errors import PalimpsestError, StorageError

__all__ = [
    "atomic_path",
    "parse_json",
    "read_json",
    "read_safetensors",
    "write_json",
    "write_safetensors",
    "write_text",
]


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; rename it to ``path`` when the block succeeds.

    When the block fails (a full disk, a signal), the temporary file is removed and an older file
    of that name is left as it was.

    Raises:
        StorageError: the file cannot be written; errors about other files pass unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as failure:
        ours = (None, *(str(p) for p in (temporary, path, *path.parents)))
        named = None if failure.filename is None else str(failure.filename)
        if isinstance(failure, PalimpsestError) or named not in ours:
            raise
        raise StorageError(
            f"{path}: cannot be written ({failure.strerror or failure}); "
            "an older file of that name is unchanged"
        ) from failure
    finally:
        with suppress(OSError):  # must not hide the failure that brought us here
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name, then rename."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON under a temporary name, then rename."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_safetensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """Write tensors under a temporary name, then rename.

    Args:
        path: the file.
        tensors: by name; they may share memory or lie on another device.
        metadata: with one key at most the same tensors give the same bytes; several are written
            in an order that differs from run to run.

    Raises:
        StorageError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    apart: dict[str, Any] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in storages else tensor  # safetensors needs it
        storages.add(storage)
    with atomic_path(path) as temporary:
        try:
            save_file(apart, str(temporary), metadata=metadata)
        except SafetensorError as failure:  # how a full disk is reported there
            raise OSError(str(failure)) from failure


def parse_json(text: str) -> Any:
    """JSON text as a value; a byte order mark before it is skipped.

    Raises:
        ValueError: not JSON, a number with too many digits, or nested too deeply to be read.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, error: type[PalimpsestError]) -> Any:
    """Read JSON.

    Raises:
        error: missing, unreadable or not JSON; the message names the file.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as failure:
        raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    except ValueError as failure:
        raise error(f"{path}: is not valid JSON, or was cut short ({failure})") from None


def read_safetensors(
    path: Path, error: type[PalimpsestError]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read all tensors and the metadata of a safetensors file.

    Raises:
        error: missing, truncated or another format; the message names the file.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise error(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as failure:
        raise error(
            f"{path}: is not a complete safetensors file ({failure}); it may have been cut short"
        ) from None
