"""Architectures, each on one screen, registered by name."""

from palimpsest.models import gpn
from palimpsest.models.checkpoint import load_model, save_model
from palimpsest.models.config import ModelConfig
from palimpsest.models.language_model import LanguageModel, ModelOutput
from palimpsest.models.registry import build, list_models, list_presets

__all__ = [
    "LanguageModel",
    "ModelConfig",
    "ModelOutput",
    "build",
    "gpn",
    "list_models",
    "list_presets",
    "load_model",
    "save_model",
]
