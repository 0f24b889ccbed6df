"""From a recipe to its device, its data and its model, before anything is written."""

from __future__ import annotations

from pathlib import Path

import torch

from palimpsest.errors import ConfigError, InputError, PalimpsestError
from palimpsest.models import LanguageModel, list_presets
from palimpsest.models.registry import resolve
from palimpsest.text import Tokenizer, is_stream
from palimpsest.training.batch import TrainingData
from palimpsest.training.recipe import Recipe
from palimpsest.training.task_data import task_data
from palimpsest.training.text_data import text_data

__all__ = ["load_data", "pick_device", "prepare_model"]


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
    model = model_class(config).to(device)
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
    if recipe.train.predict == "current":
        with torch.no_grad():
            model.state_features(model.init_state(1))  # refused where a model cannot
    spec = recipe.data.tokenizer
    resolved = recipe.replace("model", fields=config.to_dict())
    resolved = resolved.replace("train", device=str(device))
    return model, resolved.replace(
        "data",
        train=tuple(map(_absolute, recipe.data.train)),
        validation=tuple(map(_absolute, recipe.data.validation)),
        tokenizer=str(Path(spec).resolve()) if Path(spec).exists() and spec else spec,
    )


def _absolute(path: str) -> str:
    # what /dev/stdin stands for is another file in the next process
    return path if is_stream(path) else str(Path(path).resolve())
