"""The folder of an inspection: made whole or not at all, and recognised again.

FOLDER/
    index.html        the page
    inspection.json   what was looked at, and the figures in short
    figures/          PNG where matplotlib is installed, and the numbers as JSON
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from palimpsest._version import __version__
from palimpsest.errors import InputError, StorageError
from palimpsest.files import parse_json, write_json, write_text
from palimpsest.inspect.figures import write_figures
from palimpsest.inspect.inspection import Inspection
from palimpsest.inspect.page import render_page
from palimpsest.inspect.trajectory import align

__all__ = ["MOST_MODELS", "PAGE", "check_folder", "write_inspection"]

PAGE, FACTS, FORMAT, VERSION = "index.html", "inspection.json", "palimpsest-inspect", 1
MOST_MODELS = 2


def check_folder(folder: Path) -> None:
    """Refuse a place where an inspection cannot go, before the work.

    Raises:
        InputError: something else is there, or the place cannot be written.
    """
    if folder.exists() and not _is_ours(folder):
        raise InputError(
            f"{folder}: exists and is not an inspection's folder; name another one with --out"
        )
    parent = folder.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        probe = parent / f".{folder.name}.{os.getpid()}.probe"
        probe.mkdir()
        probe.rmdir()
    except OSError as failure:
        raise InputError(f"{folder}: cannot be made ({failure.strerror or failure})") from failure


def _is_ours(folder: Path) -> bool:
    try:
        about = parse_json((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return folder.is_dir() and not any(folder.iterdir())
    return isinstance(about, dict) and about.get("format") == FORMAT


def write_inspection(
    inspections: Sequence[Inspection], folder: str | Path, *, title: str | None = None
) -> Path:
    """Write the page and the figures.

    Args:
        inspections: one, or two on the same text.
        folder: made; an earlier inspection there is replaced when the new one is complete.
        title: of the page; None takes the labels.

    Returns:
        The page.

    Raises:
        InputError: no inspection or too many, two on different texts, a folder of something else.
        StorageError: the folder cannot be written; what was there is unchanged.
    """
    target, shown = Path(folder), _comparable(inspections)
    check_folder(target)
    named = title or "Inspection of " + " and ".join(x.label for x in shown)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        (partial / "figures").mkdir(parents=True)
        write_text(partial / PAGE, render_page(shown, named))
        written = write_figures(shown, partial / "figures")
        about = {
            "format": FORMAT,
            "version": VERSION,
            "palimpsest": __version__,
            "title": named,
            "page": PAGE,
            "figures": [path.relative_to(partial).as_posix() for path in written],
            "models": [_summary(x) for x in shown],
        }
        write_json(partial / FACTS, about)
        _replace(partial, target)
    except OSError as failure:
        if isinstance(failure, StorageError):
            raise
        raise StorageError(
            f"{target}: cannot be written ({failure.strerror or failure})"
        ) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target / PAGE


def _comparable(inspections: Sequence[Inspection]) -> list[Inspection]:
    """The same, the second trajectory turned to lie near the first where the tokens agree."""
    if not 1 <= len(inspections) <= MOST_MODELS:
        raise InputError(f"{len(inspections)} inspections: a page shows one or {MOST_MODELS}")
    first, *others = inspections
    for other in others:
        if other.cells.text != first.cells.text:
            raise InputError(
                f"{first.label} and {other.label} were inspected on different texts; use the same "
                "text for both"
            )
        if np.array_equal(other.ids_N, first.ids_N):
            points = align(other.points_N2, first.points_N2)
            others = [dataclasses.replace(other, points_N2=points)]
    return [first, *others]


def _summary(x: Inspection) -> dict[str, object]:
    bits = float(np.nansum(x.surprise_N, dtype=np.float64))
    mean = x.mean_surprise
    return {
        "label": x.label,
        **x.facts,
        "tokens": x.tokens,
        "bytes": x.cells.n_bytes,
        "bits_per_token": None if math.isnan(mean) else mean,
        "bits": bits,
        "trajectory": x.trajectory,
        "variance_shares": list(x.shares),
        "missing": list(x.missing),
    }


def _replace(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        with contextlib.suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
