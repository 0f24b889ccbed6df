"""The metrics of a run, one JSON object per line.

Rows of training: ``kind`` "train", ``step`` (optimizer steps done), ``tokens`` (read so far),
``loss`` (nats per target, of this step), ``grad_norm`` (before clipping), ``lr`` (peak group's),
``tokens_per_s`` (since the row before), ``elapsed`` (seconds of training, all sessions).
Rows of validation: ``kind`` "validation", ``step``, ``tokens``, ``loss``, and as the data allows
``bits_per_byte``, or ``accuracy``, ``chance`` (of a guess among all answers), ``trials`` and
``accuracy_by_pairs``; ``elapsed``.

Each line ends with ``crc32``, the checksum of the row without it. A checkpoint, and ``run.json`` at
the end of a session, record the length and the sha256 of the file: a missing row is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError, StorageError
from palimpsest.files import atomic_path, parse_json, read_json
from palimpsest.training.checkpoint import latest_checkpoint

__all__ = ["METRICS", "MetricsLog", "check_metrics", "read_metrics"]

METRICS = "metrics.jsonl"
SET_ASIDE = "metrics-damaged.jsonl"  # the name a user gives to damaged metrics, to resume without
CRC = re.compile(rb', "crc32": "([0-9a-f]{8})"\}$')


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The rows of a run; a last line that was cut short is left out.

    Raises:
        InputError: no metrics there, a damaged line, or rows that are missing.
    """
    return [row for _, row in _read(Path(run))]


def check_metrics(run: Path) -> None:
    """Refuse metrics that are damaged, or of which rows are missing.

    Raises:
        InputError: they are; the message names the remedy.
    """
    if (run / METRICS).exists() or _recorded(run).get("bytes"):
        _read(run)


def _read(run: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The lines of a run and their rows."""
    path = run / METRICS
    aside = (
        f"restore it from a copy, or name it {SET_ASIDE} to resume the run without its rows so far"
    )
    recorded = _recorded(run)
    try:
        data = path.read_bytes()
    except OSError as failure:
        remedy = "name a run's folder"
        if recorded.get("bytes"):
            remedy = f"restore it, or make an empty file {SET_ASIDE} to resume without its rows"
        raise InputError(f"{path}: cannot be read ({failure.strerror}); {remedy}") from None
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        if b"}" in lines[-1] and not _is_beginning(lines[-1]):
            raise InputError(f"{path}:{len(lines)}: has more than a row of metrics; {aside}")
        lines.pop()
    rows = []
    with_crc = False
    for number, line in enumerate(lines, start=1):
        found = CRC.search(line[:-1])
        try:
            row = parse_json(line.decode("utf-8"))
            row["step"], row["kind"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}:{number}: is not a row of metrics; {aside}") from None
        right = found is not None and int(found[1], 16) == _crc(line[: found.start()] + b"}")
        if not right and (with_crc or found is not None or "crc32" in row):
            raise InputError(f"{path}:{number}: is damaged (its crc32 differs); {aside}")
        with_crc = right
        row.pop("crc32", None)
        rows.append((line, row))
    start = data[: recorded.get("bytes", 0)]
    if recorded and hashlib.sha256(start).hexdigest() != recorded["sha256"]:
        what = "is cut short" if len(start) < recorded["bytes"] else "was damaged or edited"
        raise InputError(
            f"{path}: {what} (the first {recorded['bytes']} bytes do not match the sha256 that the "
            f"run recorded); {aside}"
        )
    return rows


def _recorded(run: Path) -> dict[str, Any]:
    """Bytes and sha256 of the metrics, as the last session left them, or else a checkpoint."""
    if (run / SET_ASIDE).exists() or not (run / "run.json").is_file():
        return {}
    meta = read_json(run / "run.json", InputError)
    sessions = meta.get("sessions") if isinstance(meta, dict) else None
    last = sessions[-1] if isinstance(sessions, list) and sessions else None
    found = last.get("metrics") if isinstance(last, dict) else None
    if not found:
        latest = latest_checkpoint(run)
        if latest is None or not (latest / "checkpoint.json").is_file():
            return {}
        header = read_json(latest / "checkpoint.json", InputError)
        found = header.get("metrics") if isinstance(header, dict) else None
    return found if isinstance(found, dict) and {"bytes", "sha256"} <= found.keys() else {}


def _is_beginning(line: bytes) -> bool:
    """Whether bytes may be a row that an interrupted write cut short."""
    try:
        _, end = json.JSONDecoder().raw_decode(line.decode("utf-8"))
    except ValueError:
        return True
    return not line[end:].strip(b"\0")


def _crc(body: bytes) -> int:
    return zlib.crc32(body)


class MetricsLog:
    """Appends rows; on resuming, first drops those past the checkpoint.

    Args:
        run: the run's folder.
        step: the checkpoint's step; later rows belong to steps that are now done again.
    """

    def __init__(self, run: Path, step: int = 0) -> None:
        self._path = run / METRICS
        self.validated: dict[int, float] = {}  # step: loss
        content = b""
        if self._path.exists():
            kept = [(line, row) for line, row in _read(run) if row["step"] <= step]
            content = b"".join(line for line, _ in kept)
            with atomic_path(self._path) as temporary:
                temporary.write_bytes(content)
            self.validated = {
                row["step"]: row["loss"] for _, row in kept if row["kind"] == "validation"
            }
        self._bytes, self._sha256 = len(content), hashlib.sha256(content)
        self._file = open(self._path, "ab")  # noqa: SIM115 (closed by close)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row.

        Raises:
            StorageError: it cannot be written (a full disk).
        """
        line = _line(row)
        with self._reported():
            self._file.write(line)
            self._file.flush()
        self._bytes += len(line)
        self._sha256.update(line)
        if row["kind"] == "validation":
            self.validated[row["step"]] = row["loss"]

    def lowest_before(self, step: int) -> float:
        """The lowest validation loss of earlier steps; infinity if there is none."""
        return min((v for s, v in self.validated.items() if s < step), default=math.inf)

    def digest(self) -> dict[str, Any]:
        """ "bytes" and "sha256" of all rows so far."""
        return {"bytes": self._bytes, "sha256": self._sha256.hexdigest()}

    def sync(self) -> None:
        """Flush to the disk; before a checkpoint that relies on these rows.

        Raises:
            PalimpsestError: as for :meth:`add`.
        """
        with self._reported():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what could not be written has been reported by add
            self._file.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            raise StorageError(
                f"{self._path}: could not be written ({failure.strerror}); make room, then resume "
                "the run, which goes on from its last checkpoint"
            ) from failure


def _line(row: dict[str, Any]) -> bytes:
    body = json.dumps(row, allow_nan=False).encode("ascii")
    return body[:-1] + b', "crc32": "%08x"}\n' % _crc(body)
