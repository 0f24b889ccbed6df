"""Opening text: which files a path stands for, pipes, and what a compressed file may grow to.

A pipe (``/dev/stdin``, ``/dev/fd/63`` as the shell's ``<(…)`` makes it, a named FIFO) can be read
only once, so all of it is read into memory first. Any other special file is refused.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from palimpsest.text.errors import CorpusError

__all__ = ["is_stream", "open_text", "read_pipe", "text_files"]

TEXT_SUFFIXES = (".txt", ".text", ".raw", ".tokens")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".json")
SUFFIX_REMEDY = f"known are {', '.join(SUFFIXES)}, each also with .gz"

# A compressed text may grow to GZIP_RATIO times its size, and to GZIP_FREE bytes in any case: text
# shrinks to a half or a tenth, and 1,030 to 1 is the most that the format can do.
GZIP_FREE = 64 << 20
GZIP_RATIO = 100
GZIP_MAGIC = b"\x1f\x8b"
READ_BYTES = 1 << 20
DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")


def is_stream(path: str | Path) -> bool:
    """Whether a path is a pipe, a terminal or an open descriptor, which can be read only once."""
    if DESCRIPTOR.fullmatch(str(path)):
        return True
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def suffix_of(file: Path) -> str:
    """The suffix that names the format, without ``.gz``."""
    return (file.with_suffix("") if file.suffix == ".gz" else file).suffix


def text_files(path: Path) -> list[Path]:
    """The files of one path, in the order of :func:`palimpsest.text.read_documents`.

    Args:
        path: a file, a pipe or a folder. Links inside a folder are followed.

    Raises:
        CorpusError: nothing there, an unknown suffix, a folder without files, a socket or a device,
            a link to nothing, a link that leads back to a folder above it.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        if DESCRIPTOR.fullmatch(str(path)):
            remedy = "pipe the text in again, or write it to a file and name that"
            raise CorpusError(path, "no pipe is open here", remedy) from None
        raise CorpusError(path, "no such file or folder", "name one that exists") from None
    except OSError as failure:
        raise _unreadable(path, failure) from failure
    if stat.S_ISDIR(mode):
        files = sorted(_below(path), key=lambda file: file.relative_to(path).as_posix())
        if not files:
            raise CorpusError(path, "the folder holds no file", SUFFIX_REMEDY)
    elif is_stream(path):
        if stat.S_ISCHR(mode) and not _terminal_or_null(path):
            raise CorpusError(path, "is a device, not a text", "name a file, a folder or a pipe")
        return [path]
    elif stat.S_ISREG(mode):
        files = [path]
    else:
        kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise CorpusError(path, f"is {kind}, not a text", "name a file, a folder or a pipe")
    for file in files:
        if suffix_of(file) not in SUFFIXES:
            raise CorpusError(file, f"suffix {suffix_of(file)!r} is not supported", SUFFIX_REMEDY)
    return files


def _below(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Every file below a folder; names that start with a dot are left out."""
    try:
        about = folder.stat()
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as failure:
        raise _unreadable(folder, failure) from failure
    here = (about.st_dev, about.st_ino)
    if here in above:
        raise CorpusError(folder, "is a link to a folder above it", "remove the link")
    for entry in entries:
        try:
            mode = entry.stat().st_mode
        except FileNotFoundError:
            raise CorpusError(entry, "is a link to nothing", "remove or repair it") from None
        except OSError as failure:
            raise _unreadable(entry, failure) from failure
        if stat.S_ISDIR(mode):
            yield from _below(entry, (*above, here))
        elif stat.S_ISREG(mode):
            yield entry
        else:
            raise CorpusError(entry, "is a pipe, a socket or a device inside a folder", "remove it")


def _terminal_or_null(path: Path) -> bool:
    if path.resolve() == Path(os.devnull):
        return True
    with suppress(OSError), path.open("rb", buffering=0) as stream:
        return stream.isatty()
    return False


@contextmanager
def open_text(file: Path, piped: bytes | None = None) -> Iterator[tuple[BinaryIO, str]]:
    """Open one of :func:`text_files`, decompressed.

    Args:
        file: the file or pipe.
        piped: what :func:`read_pipe` gave, if the pipe was read before.

    Yields:
        The stream, and the suffix that names its format: "" where the name does not say it.

    Raises:
        CorpusError: it cannot be read, does not fit into memory, or is a ``.gz`` file that grows
            beyond every text.
    """
    suffix = suffix_of(file)
    try:
        if is_stream(file):
            data = read_pipe(file) if piped is None else piped
            stream: BinaryIO = io.BytesIO(data)
            if data[:2] == GZIP_MAGIC:
                stream = _unpacked(stream, file, len(data))
            with stream:
                yield stream, suffix if suffix in SUFFIXES else ""
            return
        size = file.stat().st_size
        with file.open("rb") as plain:
            if file.suffix == ".gz":
                with _unpacked(plain, file, size) as stream:
                    yield stream, suffix
                return
            if suffix != ".jsonl":
                check_memory(file, size)
            yield plain, suffix
    except MemoryError as failure:
        raise CorpusError(file, "does not fit into memory", BIG_REMEDY) from failure
    except OSError as failure:
        if isinstance(failure, gzip.BadGzipFile):
            raise
        raise _unreadable(file, failure) from failure


BIG_REMEDY = (
    "cut it into several files and make token shards of them (palimpsest data prepare), "
    "which are read from disk"
)


def check_memory(where: str | Path, size: int) -> None:
    """Refuse a text that is held in memory as a whole and takes more than half of it.

    Raises:
        CorpusError: larger than half of the machine's memory.
    """
    limit = memory_bytes() // 2
    if size > limit:
        raise CorpusError(
            where,
            f"a text of {size:,} bytes or more is over half of this machine's memory "
            f"({limit:,} bytes)",
            BIG_REMEDY,
        )


def memory_bytes() -> int:
    """The machine's memory in bytes; very much where the system does not say it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def read_pipe(file: Path) -> bytes:
    """All of a pipe.

    Raises:
        CorpusError: more than half of this machine's memory.
    """
    data = bytearray()
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(READ_BYTES):
            data += block
            check_memory(file, len(data))
    return bytes(data)


class _Unpacked(io.RawIOBase):
    """The bytes of a .gz file, up to a limit."""

    def __init__(self, packed: BinaryIO, file: Path, size: int) -> None:
        super().__init__()
        self._stream = gzip.GzipFile(fileobj=packed)
        self._file = file
        self._size = size
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._stream.readinto(buffer)
        self._count += count
        if self._count > max(GZIP_FREE, GZIP_RATIO * self._size):
            raise CorpusError(
                self._file,
                f"its {self._size:,} bytes decompress to more than {self._count - count:,}; the "
                f"limit is {GZIP_RATIO} times the size and at least {GZIP_FREE:,} bytes",
                "if it is a text, decompress it (gunzip) and name the result",
            )
        check_memory(self._file, self._count)
        return count


def _unpacked(packed: BinaryIO, file: Path, size: int) -> BinaryIO:
    return io.BufferedReader(_Unpacked(packed, file, size), READ_BYTES)


def _unreadable(path: Path, failure: OSError) -> CorpusError:
    reason = failure.strerror or str(failure)
    if failure.errno == errno.ELOOP:
        reason = "a link that leads to itself"
    return CorpusError(path, f"cannot be read ({reason})", "repair it or name another")
