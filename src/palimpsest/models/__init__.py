"""Architectures, each on one screen, registered by name."""

from palimpsest.models import (
    gated_hybrid,
    gdn,
    gpn,
    mamba2,
    transformer,
    transformer_triple,
    transformerpp,
    triple_latent,
)
from palimpsest.models.checkpoint import load_model, save_model
from palimpsest.models.config import ModelConfig
from palimpsest.models.language_model import LanguageModel, ModelOutput
from palimpsest.models.registry import build, list_models, list_presets

__all__ = [
    "LanguageModel",
    "ModelConfig",
    "ModelOutput",
    "build",
    "gated_hybrid",
    "gdn",
    "gpn",
    "list_models",
    "list_presets",
    "load_model",
    "mamba2",
    "save_model",
    "transformer",
    "transformer_triple",
    "transformerpp",
    "triple_latent",
]
