"""Architectures by name, and presets of them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from palimpsest.arguments import require_type
from palimpsest.errors import ConfigError
from palimpsest.models.config import ModelConfig
from palimpsest.models.language_model import LanguageModel

__all__ = [
    "Preset",
    "build",
    "config_class",
    "is_causal",
    "list_models",
    "list_presets",
    "model_class",
    "preset",
    "register",
    "resolve",
]

M = TypeVar("M", bound=type[LanguageModel])


@dataclass(frozen=True)
class Preset:
    """A named configuration of an architecture."""

    model: str
    fields: dict[str, Any]
    note: str


_models: dict[str, tuple[type[LanguageModel], type[ModelConfig]]] = {}
_presets: dict[str, Preset] = {}


def register(name: str, config_class: type[ModelConfig]) -> Callable[[M], M]:
    """Class decorator: make an architecture known by name.

    The whole contract test-suite then runs on it (tests/contract).

    Raises:
        ValueError: a name that a model or a preset has already.
    """

    def add(model_class: M) -> M:
        _check_new(name)
        model_class.registry_name = name
        _models[name] = (model_class, config_class)
        return model_class

    return add


def preset(name: str, model: str, note: str, **fields: Any) -> None:
    """Name a configuration of a registered architecture.

    Raises:
        ValueError: a name that a model or a preset has already.
    """
    _check_new(name)
    _presets[name] = Preset(model, fields, note)


def _check_new(name: str) -> None:
    for kind, known in (("model", _models), ("preset", _presets)):
        if name in known:
            raise ValueError(f"{kind} {name!r} is registered already; choose another name")


def list_models() -> list[str]:
    """Names of all architectures."""
    return sorted(_models)


def list_presets() -> dict[str, Preset]:
    """All presets by name."""
    return dict(sorted(_presets.items()))


def config_class(name: str) -> type[ModelConfig]:
    """The configuration of an architecture (one of :func:`list_models`), for its fields."""
    return _models[name][1]


def model_class(name: str) -> type[LanguageModel]:
    """The class of an architecture (one of :func:`list_models`)."""
    return _models[name][0]


def resolve(name: str, fields: dict[str, Any]) -> tuple[type[LanguageModel], ModelConfig]:
    """The class and the configuration that a name and fields stand for.

    Raises:
        ConfigError: an unknown name, or fields that do not fit it.
    """
    require_type(name, "model", str, "pass the name of a model or preset", ConfigError)
    chosen = _presets.get(name)
    if chosen is not None:
        name, fields = chosen.model, {**chosen.fields, **fields}
    if name not in _models:
        known = [*_models, *_presets]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"model={name!r}: unknown; {hint}models: {', '.join(sorted(_models))}; "
            f"presets: {', '.join(sorted(_presets))}"
        )
    model_class, config_class = _models[name]
    return model_class, config_class.from_dict(fields, name=name)


def build(name: str, **fields: Any) -> LanguageModel:
    """Build a model with fresh parameters from its name, or from a preset's name.

    Weights are drawn from torch's global generator (``torch.manual_seed``), always in fp32.

    Args:
        name: an architecture (:func:`list_models`) or a preset (:func:`list_presets`).
        fields: the architecture's fields; for a preset, those to change.

    Raises:
        ConfigError: an unknown name, unknown fields or contradictory values.
    """
    model_class, config = resolve(name, fields)
    return model_class(config)


def is_causal(name: str, fields: dict[str, Any]) -> bool:
    """Whether no prediction of a configuration sees the tokens that it predicts.

    The model itself is asked (``model.causal``), built without memory for its weights.

    Raises:
        ConfigError: as :func:`build`.
    """
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return bool(build(name, **fields).causal)
