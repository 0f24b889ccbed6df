"""Writing files whole or not at all, and reading them with their digests checked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palimpsest.digests import DIGEST, seal, tensors_digest, unseal
from palimpsest.errors import PalimpsestError, StorageError
from palimpsest.streams import require_unicode

__all__ = [
    "atomic_path",
    "json_text",
    "parse_json",
    "read_json",
    "read_safetensors",
    "save_tensors",
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
        InputError: the name of the path is not UTF-8, so that safetensors could not read it.
    """
    require_unicode(str(path), "")
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
    """Write UTF-8 text under a temporary name, then rename.

    Raises:
        StorageError: the file cannot be written, or the text is not valid Unicode.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as failure:
        around = text[max(failure.start - 20, 0) : failure.end + 20]
        raise StorageError(
            f"{path}: cannot be written, because {around!a} is not valid Unicode (a file name "
            "that is not UTF-8?); rename it"
        ) from None
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def json_text(value: Any) -> str:
    """Indented JSON; an object gets the digest of its content as its first key, "sha256"."""
    sealed = seal(value) if isinstance(value, dict) else value
    return json.dumps(sealed, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write :func:`json_text` under a temporary name, then rename.

    Raises:
        StorageError: as for :func:`write_text`.
    """
    write_text(path, json_text(value))


def write_safetensors(path: Path, tensors: dict[str, Any], kind: str, about: Any) -> str:
    """Write tensors under a temporary name, then rename.

    Args:
        path: the file.
        tensors: by name; they may share memory or lie on another device.
        kind: what the file is, the one key of its metadata.
        about: a JSON object, written under that key with a digest of it and of the tensors.

    Returns:
        The digest of the tensors alone.

    Raises:
        StorageError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        return save_tensors(temporary, tensors, kind, about)


def save_tensors(path: Path, tensors: dict[str, Any], kind: str, about: Any) -> str:
    """:func:`write_safetensors` without the temporary name, for a caller that has one.

    Raises:
        OSError: the file cannot be written.
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
    digest = tensors_digest(apart)
    # one key only: safetensors writes several in an order that differs from run to run
    metadata = {kind: json.dumps(seal(about, digest))}
    try:
        save_file(apart, str(path), metadata=metadata)
    except SafetensorError as failure:  # how a full disk is reported there
        raise OSError(str(failure)) from failure
    return digest


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
    """Read JSON; the digest that :func:`write_json` added is checked and left out.

    Raises:
        error: missing, unreadable, not JSON, or changed since it was written; the message names
            the file.
    """
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as failure:
        raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    except ValueError as failure:
        raise error(f"{path}: is not valid JSON, or was cut short ({failure})") from None
    if not isinstance(value, dict):
        return value
    content, right = unseal(value)
    if not right:
        raise error(
            f"{path}: its content does not match its sha256, so it was damaged or edited; restore "
            f'it from a copy or make it again, or, if the edit is yours, delete its "{DIGEST}" line'
        )
    return content


def read_safetensors(
    path: Path, error: type[PalimpsestError], kind: str
) -> tuple[dict[str, Any], Any, str]:
    """Read all tensors of a safetensors file and check their digest.

    Args:
        path: the file.
        error: what to raise.
        kind: the key of :func:`write_safetensors`.

    Returns:
        The tensors; the description under ``kind`` without its digest, or None if the file has
        none that is a JSON object; the digest of the tensors.

    Raises:
        error: missing, truncated, another format, or changed since it was written; the message
            names the file.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise error(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as failure:
        raise error(
            f"{path}: is not a complete safetensors file ({failure}); it may have been cut short"
        ) from None
    digest = tensors_digest(tensors)
    if kind not in metadata:
        return tensors, None, digest
    try:
        about = parse_json(metadata[kind])
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise error(f"{path}: its description is damaged; restore it from a copy")
    content, right = unseal(about, digest)
    if not right:
        raise error(
            f"{path}: its content does not match its sha256, so the file is damaged; restore it "
            "from a copy or write it again"
        )
    return tensors, content, digest
