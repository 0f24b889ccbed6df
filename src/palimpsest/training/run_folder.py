"""The folder of a run: made whole or not at all, and recognised again.

    RUN/
        recipe.toml      fully resolved: every value, absolute paths
        run.json         model, parameters, data with hashes, tokenizer, seed, versions, sessions,
                         sha256 of recipe.toml and the tokenizer
        metrics.jsonl    see log.py
        checkpoints/     see checkpoint.py
        tokenizer/       the tokenizer's own copy
        run.lock         locked while a process trains the run (see palimpsest.locks)
        loss.png         where matplotlib is installed

It gets its name when ``recipe.toml``, ``run.json`` and the tokenizer are in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from palimpsest.digests import file_digest, json_digest
from palimpsest.errors import CheckpointError, InputError
from palimpsest.files import read_json, write_json, write_text
from palimpsest.locks import LockedError, exclusive
from palimpsest.models import LanguageModel, list_presets
from palimpsest.ops import backend_calls
from palimpsest.provenance import device_name, versions
from palimpsest.text import Tokenizer, load_tokenizer
from palimpsest.training.batch import TrainingData
from palimpsest.training.prepare import weights_of
from palimpsest.training.recipe import Recipe
from palimpsest.training.recipe_file import dump_recipe

__all__ = [
    "PLOT",
    "RECIPE",
    "add_session",
    "check_files",
    "check_same_data",
    "load_tokenizer_copy",
    "make_folder",
    "one_process",
    "read_meta",
    "record_backends",
]

META = "run.json"
RECIPE = "recipe.toml"
TOKENIZER = "tokenizer"
LOCK = "run.lock"
# what a reader of run.json relies on
_KINDS: dict[str, type | tuple[type, ...]] = {
    "model": str, "preset": (str, type(None)), "parameters": int, "data": dict, "data_label": str,
    "seed": int, "precision": str, "recipe": dict, "sessions": list,
}  # fmt: skip
PLOT = "loss.png"
FORMAT = "palimpsest-run"
FORMAT_VERSION = 1


def make_folder(folder: Path, recipe: Recipe, model: LanguageModel, data: TrainingData) -> None:
    """Make the run's folder, whole or not at all.

    Raises:
        InputError: it cannot be made there.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    half = recipe.train.precision == "bf16"
    with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
        state_bytes = model.state_bytes(1, recipe.data.seq_len)
    meta = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "files": {},  # known below
        "model": model.registry_name,
        "preset": recipe.model.name if recipe.model.name in list_presets() else None,
        "parameters": model.num_parameters(),
        "state_bytes": state_bytes,
        "data": data.description,
        "data_label": data.label,
        "seed": recipe.train.seed,
        "precision": recipe.train.precision,
        "recipe": dataclasses.asdict(recipe),
        "init_from": weights_of(recipe),
        "id": _identity(recipe, data.description),
        "sessions": [_session_record(0, model.device)],
    }
    try:
        partial.mkdir(parents=True)
        write_text(partial / RECIPE, dump_recipe(recipe))
        if data.tokenizer is not None:
            data.tokenizer.save(partial / TOKENIZER)
        meta["files"] = {
            file.relative_to(partial).as_posix(): [file_digest(file)]
            for file in sorted(partial.rglob("*"))
            if file.is_file()
        }
        write_json(partial / META, meta)
        partial.rename(folder)
    except OSError as failure:
        if folder.exists():
            raise InputError(
                f"{folder}: exists already, another process has made it; choose another folder"
            ) from failure
        raise InputError(f"{folder}: cannot be made ({failure.strerror or failure})") from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def one_process(folder: Path) -> Iterator[None]:
    """Inside the block no other process trains the run of a folder.

    Raises:
        InputError: another one does already.
        StorageError: the folder cannot be written.
    """
    try:
        with exclusive(folder / LOCK):
            yield
    except LockedError:
        raise InputError(
            f"{folder}: another process is training this run; wait until it ends, or stop it"
        ) from None


def read_meta(folder: Path) -> dict[str, Any]:
    """``run.json`` of a run.

    Raises:
        CheckpointError: no run there, another version, or values of other types.
    """
    if not (folder / META).is_file():
        raise CheckpointError(f"{folder}: is not a run's folder (no {META}); name one of train's")
    meta = read_json(folder / META, CheckpointError)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{folder / META}: was not written by palimpsest train")
    if meta.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder / META}: version {meta.get('version')!r}, this palimpsest reads version "
            f"{FORMAT_VERSION}"
        )
    for name, kind in _KINDS.items():
        value = meta.get(name)
        if (
            name not in meta
            or not isinstance(value, kind)
            or (kind is int and isinstance(value, bool))
        ):
            raise CheckpointError(f"{folder / META}: {name!r} is missing or damaged")
    for name in ("train", "validation"):
        part = meta["data"].get(name, {})
        if not isinstance(part, dict) or not (
            isinstance(part.get("paths", []), list)
            and all(isinstance(path, str) for path in part.get("paths", []))
            and isinstance(part.get("bytes", 0), int)
        ):
            raise CheckpointError(f"{folder / META}: 'data.{name}' is damaged")
    tokenizer = meta["data"].get("tokenizer", {})
    if not isinstance(tokenizer, dict) or not all(isinstance(v, str) for v in tokenizer.values()):
        raise CheckpointError(f"{folder / META}: 'data.tokenizer' is damaged")
    recipe, sessions = meta["recipe"], meta["sessions"]
    parts = [recipe.get("data"), recipe.get("train"), *recipe.values()]
    if not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{folder / META}: 'recipe' is damaged")
    if not sessions or not all(isinstance(session, dict) for session in sessions):
        raise CheckpointError(f"{folder / META}: 'sessions' is damaged")
    return meta


def check_files(folder: Path, meta: dict[str, Any]) -> None:
    """Compare ``recipe.toml`` and the tokenizer with the digests in ``run.json``.

    Raises:
        CheckpointError: one is missing, damaged or edited.
    """
    for name, digests in meta.get("files", {}).items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing; restore it from a copy")
        if file_digest(file) not in digests:
            raise CheckpointError(
                f"{file}: its sha256 is not the one in {folder / META}, so it was damaged or "
                f"edited; restore it ({META} holds the recipe), or, if the edit is yours, delete "
                f'"files" and "sha256" from {META}'
            )


def _identity(recipe: Recipe, description: dict[str, Any]) -> str:
    """The same for two runs exactly if they compute the same numbers."""
    plain = dataclasses.asdict(recipe)
    for key in ("steps", "device"):  # what resume may change
        del plain["train"][key]
    return json_digest([plain, description])


def load_tokenizer_copy(folder: Path) -> Tokenizer | None:
    """The run's own copy of its tokenizer; None for a task.

    Raises:
        CheckpointError: it is damaged.
    """
    if not (folder / TOKENIZER).is_dir():
        return None
    try:
        return load_tokenizer(folder / TOKENIZER)
    except ValueError as failure:
        raise CheckpointError(str(failure)) from failure


def check_same_data(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse text that is not the run's.

    Args:
        folder: the run's, for the message.
        before: "data" of ``run.json``.
        now: the description of what was read.

    Raises:
        InputError: its hash differs.
    """
    for part in ("train", "validation"):
        old, new = before.get(part, {}).get("sha256"), now.get(part, {}).get("sha256")
        if old != new:
            raise InputError(
                f"{folder}: the {part} text has changed since the run began (sha256 {new}, was "
                f"{old}); put the old text back, or start a new run"
            )


def _session_record(first_step: int, device: torch.device) -> dict[str, Any]:
    return {"from_step": first_step, "device": device_name(device), **versions()}


def add_session(
    folder: Path, meta: dict[str, Any], recipe: Recipe, step: int, device: torch.device
) -> None:
    """Record in ``run.json`` that a run goes on from a step, and with which recipe."""
    sessions = [*meta["sessions"], _session_record(step, device)]
    now = {**meta, "recipe": dataclasses.asdict(recipe), "sessions": sessions}
    text = dump_recipe(recipe)
    if "files" in meta:
        # both recipes are right until the new one is written, in case this is interrupted
        digests = [file_digest(folder / RECIPE), hashlib.sha256(text.encode()).hexdigest()]
        now["files"] = {**meta["files"], RECIPE: list(dict.fromkeys(digests))}
    write_json(folder / META, now)
    write_text(folder / RECIPE, text)


def record_backends(
    folder: Path, before: Counter[tuple[str, str]], metrics: dict[str, Any]
) -> None:
    """Add to the session's record which implementation of each op ran, and its metrics' digest."""
    meta = read_meta(folder)
    ran: dict[str, list[str]] = {}
    for op, backend in sorted(backend_calls() - before):
        ran.setdefault(op, []).append(backend)
    meta["sessions"][-1] |= {"backends": ran, "metrics": metrics}
    with contextlib.suppress(OSError):  # a full disk is reported by what hit it first
        write_json(folder / META, meta)
