"""Checkpoints of a run: one folder per step, complete or not there.

    checkpoints/best/           the one with the lowest validation loss, with train.keep_best
    checkpoints/step-00000500/
        checkpoint.json         format, step, seconds trained, size and sha256 of the other files,
                                the run's identity, how much of its metrics there was
        config.json, model.safetensors          the model; palimpsest.load(folder) reads it
        tokenizer.palimpsest.json               where the run has a tokenizer
        optimizer.pt            moments and rates
        training.pt             torch's generators, and where the data's own generator stands
        state.safetensors       the state carried to the next step, with data.order = "stream"

A folder is written under a hidden temporary name, flushed to the disk and renamed, so that an
interruption or a full disk leaves the ones before it as they were. ``.pt`` files are read with
``weights_only=True``: they hold tensors and plain values, and a foreign one runs nothing.
"""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palimpsest.digests import file_digest
from palimpsest.errors import CheckpointError, PalimpsestError, StorageError
from palimpsest.files import read_json, write_json
from palimpsest.models import LanguageModel, load_model
from palimpsest.state import State
from palimpsest.text import Tokenizer

__all__ = [
    "Checkpoint",
    "CheckpointWriteError",
    "best_checkpoint",
    "checkpoint_steps",
    "latest_checkpoint",
    "load_checkpoint",
    "model_folder",
    "save_best",
    "save_checkpoint",
]

FORMAT = "palimpsest-checkpoint"
FORMAT_VERSION = 1
FOLDER = "checkpoints"
HEADER = "checkpoint.json"
RUN = "run.json"
OPTIMIZER = "optimizer.pt"
TRAINING = "training.pt"
STATE = "state.safetensors"
BEST = "best"
REPLACED = f".{BEST}.replaced"
WEIGHTS = "model.safetensors"  # verified by load_model, with the digest that config.json holds


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on as if it had not stopped.

    Attributes:
        step: optimizer steps done.
        elapsed: seconds of training so far.
        model: the model.
        optimizer: the optimizer's ``state_dict()``.
        training: torch's generators ("cpu", and "cuda" where the run uses one) and "source", the
            data's own.
        state: what the next step starts from; None where no state is carried.
        metrics: "bytes" and "sha256" of the run's metrics at this moment; empty in old checkpoints.
    """

    step: int
    elapsed: float
    model: LanguageModel
    optimizer: dict[str, Any]
    training: dict[str, Any]
    state: State | None
    metrics: dict[str, Any] = field(default_factory=dict)


class CheckpointWriteError(CheckpointError, StorageError):
    """A checkpoint that cannot be written (a full disk, no permission)."""


def save_checkpoint(
    run: Path, checkpoint: Checkpoint, *, tokenizer: Tokenizer | None = None, keep: int = 0
) -> Path:
    """Write a checkpoint of a run, then remove the oldest ones.

    Args:
        run: the run's folder.
        checkpoint: what to write.
        tokenizer: copied into the checkpoint.
        keep: how many checkpoints stay; 0 keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointWriteError: it cannot be written (a full disk, no permission); the message names
            the checkpoint that is still there.
    """
    folder = run / FOLDER / _name(checkpoint.step)
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, checkpoint, tokenizer)
        _sync(partial)
        partial.rename(folder)
        _sync_folder(folder.parent)
    # torch and safetensors report a failed write as errors of their own.
    except (OSError, RuntimeError, SafetensorError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else None
        steps = checkpoint_steps(run)
        last = run / FOLDER / _name(steps[-1]) if steps else None
        kept = f"the checkpoint before it, {last}, is whole" if last else "there is none before it"
        raise CheckpointWriteError(
            f"{folder}: the checkpoint of step {checkpoint.step} could not be written "
            f"({reason or failure}); {kept}; make room, then resume the run"
        ) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if keep:
        for step in checkpoint_steps(run)[:-keep]:
            _remove(run / FOLDER / _name(step))
    return folder


def save_best(
    run: Path,
    checkpoint: Checkpoint,
    validation: dict[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write the checkpoint with the lowest validation loss in place of the one before it.

    Args:
        run: the run's folder.
        checkpoint: what to write.
        validation: the row of validation it was chosen by, which its header states.
        tokenizer: copied into the checkpoint.

    Raises:
        CheckpointWriteError: it cannot be written; the one before it is unchanged.
    """
    folder = run / FOLDER / BEST
    partial = folder.with_name(f".{BEST}.{os.getpid()}.partial")
    replaced = folder.with_name(REPLACED)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, checkpoint, tokenizer, {"validation": validation})
        _sync(partial)
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():
            folder.rename(replaced)  # a kill between the two: clean() puts it back
        partial.rename(folder)
        _sync_folder(folder.parent)
    except (OSError, RuntimeError, SafetensorError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else None
        raise CheckpointWriteError(
            f"{folder}: the best checkpoint, of step {checkpoint.step}, could not be written "
            f"({reason or failure}); the one before it is unchanged; make room, then resume the run"
        ) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
    return folder


def best_checkpoint(run: str | Path) -> Path | None:
    """The folder of a run's best checkpoint, or None."""
    folder = Path(run) / FOLDER / BEST
    return folder if folder.is_dir() else None


def checkpoint_steps(run: str | Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first."""
    folder = Path(run) / FOLDER
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    digits = (name.removeprefix("step-") for name in names if name.startswith("step-"))
    return sorted(int(text) for text in digits if text.isdigit())


def latest_checkpoint(run: str | Path) -> Path | None:
    """The folder of a run's newest checkpoint, or None."""
    steps = checkpoint_steps(run)
    return Path(run) / FOLDER / _name(steps[-1]) if steps else None


def model_folder(path: str | Path) -> Path:
    """Where the model lies that a user means.

    Args:
        path: a run (its newest checkpoint), ``RUN/best``, a checkpoint or a model's folder.

    Raises:
        CheckpointError: no such folder, a run without a checkpoint, or a damaged checkpoint.
    """
    folder = Path(path)
    if folder.name == BEST and (folder.parent / RUN).is_file() and not folder.exists():
        best = best_checkpoint(folder.parent)
        if best is None:
            raise CheckpointError(
                f"{folder}: the run has kept no best checkpoint; train with --keep-best, or name "
                f"{folder.parent} for its newest one"
            )
        folder = best
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; name a run, a checkpoint or a model")
    if not (folder / "config.json").is_file() and (folder / RUN).is_file():
        latest = latest_checkpoint(folder)
        if latest is None:
            raise CheckpointError(f"{folder}: this run has no checkpoint yet; train it first")
        folder = latest
    if (folder / HEADER).is_file():
        header = _read_header(folder)
        small = [name for name in header["files"] if name.endswith(".json")]
        _check_files(folder, header, small)
    return folder


def load_checkpoint(folder: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: the checkpoint's own folder.
        device: where the model and the carried state go.

    Raises:
        CheckpointError: foreign, of another version or run, damaged or cut short; the message
            names the good checkpoint before it.
    """
    try:
        header = _read_header(folder)
        _check_files(folder, header, list(header["files"]))
        model = load_model(folder, device=device)
        kept = None
        if STATE in header["files"]:
            kept = State.load(folder / STATE).to(device)
        return Checkpoint(
            step=header["step"],
            elapsed=header["elapsed"],
            model=model,
            optimizer=_load_pt(folder / OPTIMIZER),
            training=_load_pt(folder / TRAINING),
            state=kept,
            metrics=header.get("metrics", {}),
        )
    except PalimpsestError as failure:
        raise CheckpointError(f"{failure}; {_way_back(folder)}") from failure


def clean(run: Path) -> None:
    """Remove what an interrupted save or removal left under a hidden name."""
    folder = run / FOLDER
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name.startswith((".step-", f".{BEST}.")) and entry.name != REPLACED:
                shutil.rmtree(entry, ignore_errors=True)
        replaced, best = folder / REPLACED, folder / BEST
        if replaced.is_dir() and not best.exists():
            replaced.rename(best)
        shutil.rmtree(replaced, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _write(
    folder: Path,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer | None,
    about: dict[str, Any] | None = None,
) -> None:
    checkpoint.model.save(folder)
    if tokenizer is not None:
        tokenizer.save(folder)
    for name, content in ((OPTIMIZER, checkpoint.optimizer), (TRAINING, checkpoint.training)):
        # Through a file of Python's own, so that a full disk is an OSError with its reason.
        with open(folder / name, "wb") as stream:
            torch.save(content, stream)
    if checkpoint.state is not None:
        checkpoint.state.save(folder / STATE, owner=checkpoint.model.registry_name)
    files = sorted(folder.iterdir())
    identity = read_json(folder.parent.parent / RUN, CheckpointError).get("id")
    write_json(
        folder / HEADER,
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "step": checkpoint.step,
            "elapsed": checkpoint.elapsed,
            "run": identity,
            "metrics": checkpoint.metrics,
            **(about or {}),
            "files": {file.name: file.stat().st_size for file in files},
            "digests": {file.name: file_digest(file) for file in files if file.name != WEIGHTS},
        },
    )


def _sync(folder: Path) -> None:
    for entry in folder.iterdir():
        with open(entry, "rb+") as stream:
            os.fsync(stream.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; interrupted, it is gone by name and never half there."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    header = read_json(path, CheckpointError)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is not a palimpsest checkpoint")
    if header.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: version {header.get('version')!r}, this palimpsest reads version "
            f"{FORMAT_VERSION}"
        )
    kinds = {"step": int, "elapsed": float | int, "files": dict}
    for key, kind in kinds.items():
        if not isinstance(header.get(key), kind):
            raise CheckpointError(f"{path}: {key}={header.get(key)!r} is not what a save writes")
    run = folder.parent.parent / RUN
    if header.get("run") is not None and run.is_file():
        meta = read_json(run, CheckpointError)
        if isinstance(meta, dict) and meta.get("id", header["run"]) != header["run"]:
            raise CheckpointError(
                f"{folder}: is a checkpoint of another run than {run}; put each back into its own "
                "folder"
            )
    return header


def _check_files(folder: Path, header: dict[str, Any], names: list[str]) -> None:
    digests = header.get("digests", {})
    for name in names:
        file, size = folder / name, header["files"][name]
        found = file.stat().st_size if file.is_file() else None
        if found is None or found != size:
            much = f"has {found} bytes, it was {'cut short' if (found or 0) < size else 'changed'}"
            what = "is missing" if found is None else much
            raise CheckpointError(f"{file}: {what} (saved with {size} bytes)")
        if name in digests and file_digest(file) != digests[name]:
            own = "; to edit it, copy it with model.safetensors to a folder of their own"
            raise CheckpointError(
                f"{file}: its sha256 is not the one in {folder / HEADER}, so it was damaged or "
                f"changed; restore it from a copy{own if name == 'config.json' else ''}"
            )


def _load_pt(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as failure:
        first = str(failure).partition("\n")[0]
        raise CheckpointError(f"{path}: is not a file that a save wrote ({first})") from failure
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no dictionary, so no save wrote it")
    return content


def _way_back(folder: Path) -> str:
    run = folder.parent.parent
    before = [s for s in checkpoint_steps(run) if _name(s) < folder.name]
    if not before:
        return "there is no checkpoint before it"
    good = run / FOLDER / _name(before[-1])
    return f"to go on from the one before it, {good}, remove {folder} and resume again"
