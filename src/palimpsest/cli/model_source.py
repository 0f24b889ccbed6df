"""What ``MODEL`` on the command line stands for: a run, a checkpoint or a model's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palimpsest.errors import CheckpointError, InputError
from palimpsest.files import read_json
from palimpsest.loading import find_folder
from palimpsest.models import LanguageModel, load_model
from palimpsest.models.language_model import Predict
from palimpsest.text import Tokenizer, TokenizerError, load_tokenizer
from palimpsest.training.checkpoint import BEST, best_checkpoint
from palimpsest.training.run_folder import read_meta

__all__ = [
    "ModelSource",
    "best_validation",
    "check_output_path",
    "find_model",
    "names_a_folder",
    "pick_device",
    "set_window",
]


@dataclass(frozen=True)
class ModelSource:
    """A trained model and what is known about it.

    Attributes:
        named: what the user wrote.
        folder: where its files are (for a run: the newest checkpoint).
        run: the contents of the run's ``run.json``, or None outside a run.
        step: the checkpoint's optimizer steps, or None.
        saved_tokenizer: the tokenizer saved with it, or None.
    """

    named: str
    folder: Path
    run: dict[str, Any] | None
    step: int | None
    saved_tokenizer: Tokenizer | None

    @property
    def seed(self) -> int | None:
        """The training seed."""
        return None if self.run is None else self.run.get("seed")

    @property
    def predict(self) -> Predict:
        """How the run aligned predictions with tokens; "next" where that is not known."""
        recipe = {} if self.run is None else self.run.get("recipe", {})
        predict: Predict = recipe.get("train", {}).get("predict", "next")
        return predict

    @property
    def trained_with(self) -> str | None:
        """The fingerprint of the saved tokenizer."""
        return None if self.saved_tokenizer is None else self.saved_tokenizer.fingerprint()

    def load(self, device: torch.device, window: int | None = None) -> LanguageModel:
        """The model, in evaluation mode.

        Args:
            device: where to.
            window: ``--window``: tokens of context, 0 for no limit; None takes the length that the
                model was trained on.

        Raises:
            InputError: a window that the model cannot have.
        """
        model = load_model(self.folder, device=device).eval()
        data = {} if self.run is None else self.run.get("recipe", {}).get("data", {})
        if model.trained_length is None and data.get("order", "stream") != "stream":
            model.trained_length = data.get("seq_len")  # a run of before it was saved with models
        if window is not None:
            set_window(model, window)
        return model

    def tokenizer(self, spec: str | None) -> Tokenizer:
        """The tokenizer asked for, else the one saved with the model.

        Raises:
            InputError: neither is there.
        """
        task = {} if self.run is None else self.run.get("recipe", {}).get("data", {})
        if task.get("task"):
            raise InputError(
                f"{self.named}: was trained on the task {task['task']!r} and reads no text; "
                "palimpsest eval MODEL recall measures it"
            )
        if spec is not None:
            try:
                return load_tokenizer(spec)
            except ImportError as failure:
                raise InputError(f"--tokenizer {spec}: {failure}") from failure
        if self.saved_tokenizer is None:
            raise InputError(
                f"{self.folder}: no tokenizer is saved with this model; name the one it was "
                "trained with (--tokenizer bytes, a file or a folder)"
            )
        return self.saved_tokenizer


def set_window(model: LanguageModel, window: int) -> None:
    """Give a model the window of ``--window``.

    Raises:
        InputError: one that the model cannot have.
    """
    try:
        model.window = window
    except InputError as failure:
        raise InputError(f"--{str(failure).replace('=', ' ', 1)}") from None


def find_model(named: str) -> ModelSource:
    """Find a trained model.

    Args:
        named: a run's folder (its newest checkpoint), RUN/best, a checkpoint's or a model's.

    Raises:
        CheckpointError: nothing there, or no model.
    """
    folder = find_folder(named)
    run_folder = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    run = None
    if (run_folder / "run.json").is_file():
        run = read_meta(run_folder)
    step = None
    if (folder / "checkpoint.json").is_file():
        header = read_json(folder / "checkpoint.json", CheckpointError)
        step = header.get("step") if isinstance(header, dict) else None
        if not isinstance(step, int):
            raise CheckpointError(f"{folder / 'checkpoint.json'}: is not a palimpsest checkpoint")
    return ModelSource(named, folder, run, step, _saved_tokenizer(folder, run_folder))


def names_a_folder(named: str) -> bool:
    """Whether ``MODEL`` is a path (or ``RUN/best``, which names a checkpoint), and not a preset."""
    path = Path(named)
    return path.exists() or (path.name == BEST and (path.parent / "run.json").is_file())


def best_validation(run: Path) -> dict[str, Any] | None:
    """The row of validation that a run's best checkpoint was chosen by, or None.

    Raises:
        CheckpointError: the checkpoint's header is damaged.
    """
    folder = best_checkpoint(run)
    if folder is None:
        return None
    header = read_json(folder / "checkpoint.json", CheckpointError)
    row = header.get("validation") if isinstance(header, dict) else None
    if not (
        isinstance(row, dict)
        and isinstance(row.get("step"), int)
        and isinstance(row.get("loss"), float)
    ):
        raise CheckpointError(f"{folder / 'checkpoint.json'}: names no validation; it is damaged")
    return row


def _saved_tokenizer(*folders: Path) -> Tokenizer | None:
    names = ("tokenizer.palimpsest.json", "tokenizer.json")
    for folder in folders:
        if any((folder / name).is_file() for name in names):
            try:
                return load_tokenizer(folder)
            except TokenizerError as failure:
                raise CheckpointError(str(failure)) from failure
    return None


def pick_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU where there is one.

    Raises:
        InputError: it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as failure:
        reason = str(failure).partition("\n")[0]
        raise InputError(f"--device {name}: is not there ({reason})") from None


def check_output_path(path: Path | None, flag: str) -> None:
    """Refuse a path that cannot be written, before the work whose result goes there.

    Raises:
        InputError: it is a folder, or its folder cannot be made or written.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{flag} {path}: is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as failure:
        raise InputError(f"{flag} {path}: cannot be written ({failure.strerror})") from failure
