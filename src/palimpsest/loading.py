"""Loading a trained model by what a user calls it: a run, a checkpoint or a model's folder."""

from __future__ import annotations

from pathlib import Path

import torch

from palimpsest.arguments import require_path
from palimpsest.errors import CheckpointError
from palimpsest.models import LanguageModel, list_models, list_presets, load_model

__all__ = ["find_folder", "load"]


def find_folder(named: str | Path) -> Path:
    """The folder that holds the model's files.

    Args:
        named: a run's folder (its newest checkpoint), a checkpoint's or a model's.

    Raises:
        CheckpointError: no such folder, one that holds no model, or a run without a checkpoint.
    """
    from palimpsest.training.checkpoint import model_folder  # not needed to import the package

    path = Path(named)
    if not path.exists() and str(named) in {*list_presets(), *list_models()}:
        raise CheckpointError(
            f"{str(named)!r} is a model to be trained, and this needs a trained one: "
            f"palimpsest train --model {named} --data FILE makes a run's folder"
        )
    folder = model_folder(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder}: holds neither a run, a checkpoint nor a model (config.json: no such file)"
        )
    return folder


def load(folder: str | Path, *, device: torch.device | str | None = None) -> LanguageModel:
    """Load a trained model.

    Args:
        folder: what ``model.save`` wrote, a checkpoint's folder, or a run's, of which the newest
            checkpoint is read.
        device: where the model goes; None is torch's default device.

    Returns:
        The model, in training mode as every fresh module; ``.eval()`` turns dropout off.

    Raises:
        CheckpointError: no such folder, no model in it, another version, or damaged files.
    """
    require_path(folder, "folder", CheckpointError)
    return load_model(find_folder(folder), device=device)
