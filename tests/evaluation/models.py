"""Small models of several families on bytes, for evaluations to be compared with plain forwards."""

from __future__ import annotations

from typing import Any

import torch

import palimpsest
from palimpsest.models import LanguageModel

__all__ = ["FAMILIES", "small_model"]

FAMILIES: dict[str, dict[str, Any]] = {
    "gpnm": {"d_state": 20, "d_emb": 12, "d_ffn": 28, "n_heads": 2, "d_key": 5, "d_val": 7},
    "triple-hybrid": {"d_model": 12, "n_layers": 2, "n_heads": 3, "state_dim": 5},
    "transformer": {"d_model": 15, "n_layers": 2, "n_heads": 3},
}


def small_model(family: str, vocab_size: int = 259, **fields: Any) -> LanguageModel:
    """A model with every parameter random: predictions that differ from position to position."""
    torch.manual_seed(3)
    if family != "gpnm":
        fields = {"max_seq_len": 96, **fields}
    model = palimpsest.build(family, vocab_size=vocab_size, **FAMILIES[family], **fields)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()
