"""From a recipe to its device, its data and its model, before anything is written."""

from __future__ import annotations

from pathlib import Path

import torch

from palimpsest.digests import file_digest
from palimpsest.errors import CheckpointError, ConfigError, InputError, PalimpsestError
from palimpsest.models import LanguageModel, list_presets, load_model
from palimpsest.models.registry import resolve
from palimpsest.text import Tokenizer, is_stream, load_tokenizer
from palimpsest.text.tokenizer import SAVED_NAME
from palimpsest.training.batch import TrainingData
from palimpsest.training.checkpoint import model_folder
from palimpsest.training.recipe import Recipe
from palimpsest.training.task_data import task_data
from palimpsest.training.text_data import text_data

__all__ = ["load_data", "pick_device", "prepare_model", "trained_length", "weights_of"]


def pick_device(name: str) -> torch.device:
    """The device that a recipe names.

    Raises:
        ConfigError: it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device  # "cuda" becomes "cuda:0"
    except (RuntimeError, AssertionError, NotImplementedError) as failure:
        reason = str(failure).partition("\n")[0]
        raise ConfigError(f"train.device={name!r}: is not there ({reason})") from None


def trained_length(recipe: Recipe) -> int | None:
    """Tokens of the texts that a recipe trains on; None where the state is carried on."""
    return None if recipe.data.order == "stream" else recipe.data.seq_len


def load_data(recipe: Recipe, tokenizer: Tokenizer | None = None) -> TrainingData:
    """Read what a recipe trains on.

    Raises:
        PalimpsestError: it cannot be read, or is too little.
    """
    try:
        return task_data(recipe) if recipe.data.task else text_data(recipe, tokenizer)
    except PalimpsestError:
        raise
    except (ValueError, ImportError) as failure:  # the floor below has errors of its own
        raise InputError(str(failure)) from failure


def prepare_model(
    recipe: Recipe, data: TrainingData, device: torch.device
) -> tuple[LanguageModel, Recipe]:
    """Build a recipe's model, and the recipe with every model field, path and device spelled out.

    Raises:
        ConfigError: model and data do not fit together.
    """
    fields = dict(recipe.model.fields)
    chosen = list_presets().get(recipe.model.name)
    if "vocab_size" not in fields:
        named = 0 if chosen is None or recipe.data.task else chosen.fields.get("vocab_size", 0)
        # a preset's vocabulary grows to that of the tokenizer, and never shrinks
        fields["vocab_size"] = max(named, data.vocab_size)
    model_class, config = resolve(recipe.model.name, fields)
    if config.vocab_size < data.vocab_size:
        raise ConfigError(
            f"model.vocab_size={config.vocab_size}: the data has {data.vocab_size} ids; set "
            f"model.vocab_size={data.vocab_size}, or leave it out"
        )
    if recipe.train.keep_best and data.validation is None:
        raise ConfigError(
            "train.keep_best=true without validation data: the best is chosen by validation; "
            "name data.validation, or set data.validation_fraction above 0"
        )
    model = model_class(config).to(device)
    if recipe.train.init_from:
        copy_weights(model, recipe, data)
    bound = model.max_length
    if bound is not None and (recipe.data.order == "stream" or bound < recipe.data.seq_len):
        remedy = "another model is needed"
        if hasattr(config, "positions"):  # learned, or there were no bound
            remedy = 'set model.positions="none", which has no bound'
            if recipe.data.order != "stream":
                remedy += f", or model.max_seq_len={recipe.data.seq_len}"
        raise ConfigError(
            f"data.seq_len={recipe.data.seq_len}, data.order={recipe.data.order!r}: "
            f"{model.registry_name} with this configuration holds at most {bound} positions; "
            f"{remedy}"
        )
    if recipe.data.order == "stream":
        length = recipe.data.seq_len * recipe.train.steps
        if model.state_bytes(1, 2 * length) > model.state_bytes(1, length):
            raise ConfigError(
                f"data.order='stream': the state of {model.registry_name} grows with the text, "
                f"to {model.state_bytes(1, length):,} bytes a row in this run; use 'epoch'"
            )
    model.trained_length = trained_length(recipe)
    if recipe.train.predict == "current":
        with torch.no_grad():
            model.state_features(model.init_state(1))  # refused where a model cannot
    spec = recipe.data.tokenizer
    resolved = recipe.replace("model", fields=config.to_dict())
    start = recipe.train.init_from
    resolved = resolved.replace(
        "train", device=str(device), init_from=str(model_folder(start).resolve()) if start else ""
    )
    return model, resolved.replace(
        "data",
        train=tuple(map(_absolute, recipe.data.train)),
        validation=tuple(map(_absolute, recipe.data.validation)),
        tokenizer=str(Path(spec).resolve()) if Path(spec).exists() and spec else spec,
    )


def copy_weights(model: LanguageModel, recipe: Recipe, data: TrainingData) -> None:
    """Give a model the weights that its recipe starts from.

    Raises:
        ConfigError: another architecture, configuration or tokenizer; named.
        CheckpointError: there is no model, or it is damaged.
    """
    label = f"train.init_from={recipe.train.init_from!r}"
    folder = model_folder(recipe.train.init_from)
    source = load_model(folder, device=model.device)
    if source.registry_name != model.registry_name:
        raise ConfigError(
            f"{label}: is of the architecture {source.registry_name}, the recipe's model of "
            f"{model.registry_name}; the two must be the same"
        )
    ours, theirs = model.config.to_dict(), source.config.to_dict()
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"{label}: has {name}={theirs.get(name)!r}, the recipe's model has "
            f"{name}={ours[name]!r}; set model.{name}={theirs.get(name)!r}"
        )
    saved = any((folder / name).is_file() for name in (SAVED_NAME, "tokenizer.json"))
    if data.tokenizer is not None and saved:
        try:
            known = load_tokenizer(folder)
        except ValueError as failure:
            raise CheckpointError(str(failure)) from failure
        if known.fingerprint() != data.tokenizer.fingerprint():
            raise ConfigError(
                f"{label}: was trained with the tokenizer {known.name!r}, the recipe has "
                f"{data.tokenizer.name!r}; use the same tokenizer"
            )
    model.load_state_dict(source.state_dict())


def weights_of(recipe: Recipe, recorded: dict[str, str] | None = None) -> dict[str, str] | None:
    """Path and sha256 of the weights that a recipe starts from, or None.

    Args:
        recipe: with ``train.init_from``, or without.
        recorded: what this function returned when the run began; the weights must be the same.

    Raises:
        CheckpointError: there is no model, or the weights have changed since.
    """
    if not recipe.train.init_from:
        return None
    folder = model_folder(recipe.train.init_from)
    found = {"path": str(folder), "sha256": file_digest(folder / "model.safetensors")}
    if isinstance(recorded, dict) and recorded.get("sha256") != found["sha256"]:
        raise CheckpointError(
            f"{folder}: its weights are not those that the run started from; restore them, or "
            "start a new run"
        )
    return found


def _absolute(path: str) -> str:
    # what /dev/stdin stands for is another file in the next process
    return path if is_stream(path) else str(Path(path).resolve())
