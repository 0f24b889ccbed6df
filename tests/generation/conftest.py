"""Small models of different kinds, in float64 so that rounding never decides a token."""

from __future__ import annotations

import pytest
import torch

import palimpsest
from palimpsest.models import LanguageModel
from palimpsest.text import ByteTokenizer
from tests.generation.toy_model import ToyConfig, ToyModel

SMALL = {"d_state": 20, "d_emb": 12, "d_ffn": 28, "n_heads": 2, "d_key": 5, "d_val": 7}


@pytest.fixture(params=["gpnm", "toy"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(5)
    if request.param == "toy":
        return ToyModel(ToyConfig(vocab_size=259)).double()
    model = palimpsest.build("gpnm", vocab_size=259, **SMALL).double()
    with torch.no_grad():  # fresh weights predict all ids alike
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
