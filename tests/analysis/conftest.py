"""A small model with a memory, and a text."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.models.language_model import LanguageModel
from tests.contract.harness import random_ids, randomise


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(3)
    built = palimpsest.build(
        "gpnm", vocab_size=37, d_state=13, d_emb=6, d_ffn=17, n_heads=3, d_key=5, d_val=7
    )
    randomise(built)
    return built.double().eval()


@pytest.fixture
def ids(model: LanguageModel) -> Tensor:
    return random_ids(model, 4, 11)
