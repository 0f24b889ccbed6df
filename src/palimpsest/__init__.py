"""Language models whose whole context is one state, rewritten at every token.

Names are imported when they are first used, so that ``palimpsest --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from palimpsest._version import __version__

if TYPE_CHECKING:
    from palimpsest.errors import (
        CheckpointError,
        ConfigError,
        GradientError,
        InputError,
        PalimpsestError,
        StateError,
        StorageError,
    )
    from palimpsest.evaluation import evaluate_text
    from palimpsest.generation import SamplingConfig, Session, generate
    from palimpsest.loading import load
    from palimpsest.models import LanguageModel, ModelOutput, build, list_models, list_presets
    from palimpsest.models.matching import match
    from palimpsest.ops import backend_calls, force_backend
    from palimpsest.state import State
    from palimpsest.training import load_recipe, resume, train

__all__ = [
    "CheckpointError",
    "ConfigError",
    "GradientError",
    "InputError",
    "LanguageModel",
    "ModelOutput",
    "PalimpsestError",
    "SamplingConfig",
    "Session",
    "State",
    "StateError",
    "StorageError",
    "__version__",
    "backend_calls",
    "build",
    "evaluate_text",
    "force_backend",
    "generate",
    "list_models",
    "list_presets",
    "load",
    "load_recipe",
    "match",
    "resume",
    "train",
]

# module: the names that it lends; TYPE_CHECKING above says the same to type checkers
_LENT = {
    "errors": (
        "CheckpointError",
        "ConfigError",
        "GradientError",
        "InputError",
        "PalimpsestError",
        "StateError",
        "StorageError",
    ),
    "evaluation": ("evaluate_text",),
    "generation": ("SamplingConfig", "Session", "generate"),
    "models": ("LanguageModel", "ModelOutput", "build", "list_models", "list_presets"),
    "ops": ("backend_calls", "force_backend"),
    "state": ("State",),
    "training": ("load_recipe", "resume", "train"),
}
_HOME = {name: (module, name) for module, names in _LENT.items() for name in names}
_HOME["load"] = ("loading", "load")
_HOME["match"] = ("models.matching", "match")
# palimpsest.text without its import
_SUBMODULES = {
    *_LENT, "analysis", "compare", "interop", "layers", "reproduce", "tasks", "text",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module, attribute = _HOME[name]
        value = getattr(importlib.import_module(f"palimpsest.{module}"), attribute)
        globals()[name] = value  # asked for once
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"palimpsest.{name}")
    raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
