"""Saving and loading a model's folder: ``config.json`` and ``model.safetensors``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palimpsest._version import __version__
from palimpsest.arguments import require_path
from palimpsest.errors import CheckpointError, ConfigError
from palimpsest.files import (
    atomic_path,
    json_text,
    read_json,
    read_safetensors,
    save_tensors,
)
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.registry import build

__all__ = ["load_model", "save_model"]

FORMAT = "palimpsest-model"
FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
WEIGHTS_DIGEST = "weights_sha256"


def save_model(model: LanguageModel, folder: str | Path) -> Path:
    """Write a model's folder; each file appears only when it is complete.

    Tied weights are one parameter here, so they are written once and stay tied. ``config.json``
    holds a digest of itself and one of the weights, which :func:`load_model` checks.
    """
    folder = Path(folder)
    about = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "palimpsest": __version__,
        WEIGHTS_DIGEST: "",  # known below
        "model": model.registry_name,
        "config": model.config.to_dict(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "trained_length": model.trained_length,
    }
    # both files are complete before one of them replaces an older one
    with atomic_path(folder / CONFIG) as config, atomic_path(folder / WEIGHTS) as weights:
        about[WEIGHTS_DIGEST] = save_tensors(weights, dict(model.named_parameters()), FORMAT, {})
        config.write_text(json_text(about), encoding="utf-8")
    return folder


def load_model(folder: str | Path, *, device: torch.device | str | None = None) -> LanguageModel:
    """Read what :func:`save_model` wrote. Nothing is re-initialised silently.

    Raises:
        CheckpointError: not a model's folder, another version, truncated, damaged or edited, or
            tensors that do not fit the configuration, named.
    """
    require_path(folder, "folder", CheckpointError)
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give one that model.save() wrote")
    meta: dict[str, Any] = read_json(folder / CONFIG, CheckpointError)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{folder / CONFIG}: is not a palimpsest model")
    if meta.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder / CONFIG}: version {meta.get('version')!r}, this palimpsest reads "
            f"version {FORMAT_VERSION}"
        )
    try:
        with torch.device("meta"):  # no memory, no time, and the generators are left alone
            model = build(meta["model"], **meta["config"])
        if next(model.buffers(), None) is not None:  # the file holds parameters only
            model = build(meta["model"], **meta["config"])
        dtype = getattr(torch, meta["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype={meta['dtype']!r}: is not a floating-point dtype of torch")
    except KeyError as failure:
        raise CheckpointError(f"{folder / CONFIG}: lacks the key {failure}") from failure
    except (ConfigError, TypeError, AttributeError) as failure:
        raise CheckpointError(f"{folder / CONFIG}: {failure}") from failure
    trained_length = meta.get("trained_length")
    if trained_length is not None and (type(trained_length) is not int or trained_length < 1):
        raise CheckpointError(
            f"{folder / CONFIG}: trained_length={trained_length!r} is not a number of tokens"
        )
    model.trained_length = trained_length
    tensors, _, digest = read_safetensors(folder / WEIGHTS, CheckpointError, FORMAT)
    expected = dict(model.named_shapes())
    missing = sorted(expected.keys() - tensors.keys())
    foreign = sorted(tensors.keys() - expected.keys())
    wrong = sorted(
        name
        for name in expected.keys() & tensors.keys()
        if tuple(tensors[name].shape) != expected[name]
    )
    if missing or foreign or wrong:
        parts = [
            f"{what} {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for what, names in (("missing", missing), ("unknown", foreign), ("mis-shaped", wrong))
            if names
        ]
        raise CheckpointError(f"{folder / WEIGHTS}: {'; '.join(parts)}")
    if meta.get(WEIGHTS_DIGEST, digest) != digest:
        raise CheckpointError(
            f"{folder / WEIGHTS}: the weights are not those that {CONFIG} was saved with (their "
            f"sha256 differs); restore both files from one save, or, if the change is yours, "
            f'delete the lines "{WEIGHTS_DIGEST}" and "sha256" of {folder / CONFIG}'
        )
    device = torch.get_default_device() if device is None else device
    for name, tensor in tensors.items():  # copied: read tensors may lie in the mapped file
        kept = dtype if tensor.is_floating_point() else tensor.dtype
        tensors[name] = tensor.to(device=device, dtype=kept, copy=True)
    _assign(model, tensors)
    return model.to(device=device, dtype=dtype)


def _assign(model: LanguageModel, tensors: dict[str, Tensor]) -> None:
    """Make the tensors the model's parameters; those of two names become one again."""
    made: dict[int, nn.Parameter] = {}
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(tensors[name], parameter.requires_grad)
        state[name] = made[id(parameter)]
    model.load_state_dict(state, strict=False, assign=True)
