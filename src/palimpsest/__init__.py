"""Language models whose whole context is one state, rewritten at every token."""

from palimpsest._version import __version__
from palimpsest.errors import (
    CheckpointError,
    ConfigError,
    InputError,
    PalimpsestError,
    StateError,
    StorageError,
)
from palimpsest.models import LanguageModel, ModelOutput, build, list_models, list_presets
from palimpsest.models import load_model as load
from palimpsest.ops import backend_calls, force_backend
from palimpsest.state import State

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InputError",
    "LanguageModel",
    "ModelOutput",
    "PalimpsestError",
    "State",
    "StateError",
    "StorageError",
    "__version__",
    "backend_calls",
    "build",
    "force_backend",
    "list_models",
    "list_presets",
    "load",
]
