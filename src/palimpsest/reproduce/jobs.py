"""A job: one row of a table with one seed. Its fingerprint says whether a result still holds.

A result is one JSON file. It is used again only where configuration, hashes of the data and version
of the code are those of the job; otherwise the job is done again, and says what has changed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palimpsest.errors import InputError
from palimpsest.files import read_json, write_json
from palimpsest.provenance import versions
from palimpsest.reproduce.work import claimed
from palimpsest.training import TrainingDivergedError

__all__ = ["Job", "execute", "read_result", "slug", "stale", "write_result"]

SCHEMA = "palimpsest-job"
SCHEMA_VERSION = 1
_PARTS: dict[str, type | tuple[type, ...]] = {
    "metrics": dict, "facts": dict, "config": dict, "where": dict, "parameters": int,
    "seconds": (int, float),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be measured, as plain values that another process can take.

    Attributes:
        key: the name of its files.
        label: what the progress calls it.
        executor: "module:function" that carries it out.
        config: everything that decides its numbers, besides data and code.
        data: sha256 of each file it reads, by flag.
        code: see ``code_version.py``.
        paths: where the files are; another place changes no number.
        work: its size in tokens, for the progress.
        exclusive: whether it needs the machine for itself.
    """

    key: str
    label: str
    executor: str
    config: Mapping[str, Any]
    data: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    work: int = 1
    exclusive: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What a result must agree with, as JSON gives it back."""
        parts = {
            "config": {**self.config, "executor": self.executor},
            "data": dict(self.data),
            "code": self.code,
        }
        plain: dict[str, Any] = json.loads(json.dumps(parts))
        return plain

    @property
    def fingerprint(self) -> str:
        """A hash over :attr:`identity`."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def slug(text: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def execute(job: Job, folder: Path, advance: Callable[[int], None]) -> dict[str, Any]:
    """Carry a job out, without touching the caller's random generators.

    Args:
        job: what to do.
        folder: where what it writes on the way may lie; what another job of that name has left
            there (of other code, data or settings) is removed first.
        advance: called with tokens done.

    Returns:
        The result, ready for :func:`write_result`. A run that diverges is one too: it has no
        metrics, and its facts say so.

    Raises:
        InputError: another process is at this job in this folder.
    """
    module, _, name = job.executor.partition(":")
    carry_out = getattr(importlib.import_module(module), name)
    began = time.perf_counter()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    owner = {"fingerprint": job.fingerprint, "paths": dict(job.paths)}
    with claimed(folder, job.key, owner) as work, torch.random.fork_rng(devices=devices):
        try:
            measured = carry_out(job.config, job.paths, str(work), advance)
        except TrainingDivergedError as failure:
            measured = {"metrics": {}, "parameters": 0, "facts": {"diverged": str(failure)}}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "key": job.key,
        "label": job.label,
        "fingerprint": job.fingerprint,
        **job.identity,
        "seed": job.config.get("seed"),
        "dtype": measured["facts"].get("dtype", "float32") if measured["metrics"] else None,
        **measured,
        "seconds": round(time.perf_counter() - began, 2),
        "where": versions(),
    }


def write_result(folder: Path, job: Job, result: Mapping[str, Any]) -> None:
    """Write a result, whole or not at all."""
    write_json(folder / f"{job.key}.json", dict(result))


def read_result(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result that is there under a job's name, whatever it belongs to; None where none is.

    Raises:
        InputError: the file is no result, or of another schema version.
    """
    path = folder / f"{job.key}.json"
    if not path.exists():
        return None
    remedy = "remove it, or name another --out"
    try:
        found: Any = read_json(path, InputError)
    except InputError as failure:
        raise InputError(f"{failure}; {remedy}") from failure
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputError(f"{path}: is not a result of a job; {remedy}")
    if found.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema {SCHEMA} version {found.get('schema_version')!r}, this palimpsest "
            f"reads version {SCHEMA_VERSION}; {remedy}"
        )
    for name, kinds in _PARTS.items():
        if not isinstance(found.get(name), kinds):
            raise InputError(f"{path}: {name!r} is missing or damaged; {remedy}")
    for name, value in found["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{path}: metric {name!r} is no number; {remedy}")
    return found


def stale(job: Job, result: Mapping[str, Any]) -> str:
    """What has changed since a result was measured; "" where it still holds."""
    if result.get("fingerprint") == job.fingerprint:
        return ""
    now = job.identity
    changed = [name for name in ("config", "data", "code") if result.get(name) != now[name]]
    return " and ".join(changed) or "fingerprint"
