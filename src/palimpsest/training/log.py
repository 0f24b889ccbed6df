"""The metrics of a run, one JSON object per line.

Rows of training: ``kind`` "train", ``step`` (optimizer steps done), ``tokens`` (read so far),
``loss`` (nats per target, of this step), ``grad_norm`` (before clipping), ``lr`` (peak group's),
``tokens_per_s`` (since the row before), ``elapsed`` (seconds of training, all sessions).
Rows of validation: ``kind`` "validation", ``step``, ``tokens``, ``loss``, and as the data allows
``bits_per_byte``, or ``accuracy``, ``chance`` (of a guess among all answers), ``trials`` and
``accuracy_by_pairs``; ``elapsed``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError, StorageError
from palimpsest.files import parse_json, write_text

__all__ = ["METRICS", "MetricsLog", "read_metrics"]

METRICS = "metrics.jsonl"


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The rows of a run; a last line that was cut short is left out.

    Raises:
        InputError: no metrics there, or a line that is no row.
    """
    path = Path(run) / METRICS
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as failure:
        raise InputError(
            f"{path}: cannot be read ({failure.strerror}); name a run's folder"
        ) from None
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            row["step"], row["kind"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}:{number}: is not a row of metrics") from None
        rows.append(row)
    return rows


class MetricsLog:
    """Appends rows; on resuming, first drops those past the checkpoint.

    Args:
        run: the run's folder.
        step: the checkpoint's step; later rows belong to steps that are now done again.
    """

    def __init__(self, run: Path, step: int = 0) -> None:
        self._path = run / METRICS
        self.validated: set[int] = set()
        if self._path.exists():
            rows = [row for row in read_metrics(run) if row["step"] <= step]
            write_text(self._path, "".join(_line(row) for row in rows))
            self.validated = {row["step"] for row in rows if row["kind"] == "validation"}
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row.

        Raises:
            StorageError: it cannot be written (a full disk).
        """
        with self._reported():
            self._file.write(_line(row))
            self._file.flush()
        if row["kind"] == "validation":
            self.validated.add(row["step"])

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


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
