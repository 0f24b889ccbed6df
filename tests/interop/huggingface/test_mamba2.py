"""Mamba-2 against transformers' own, in fp64 from random weights."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import InputError
from palimpsest.interop.huggingface.mamba2 import from_mamba2, to_mamba2
from palimpsest.models.mamba2 import Mamba2
from tests.comparison import assert_close

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs the package transformers"
)
# the other library's own, not ours
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_heads": 6,
    "head_dim": 10,
    "state_size": 7,
    "n_groups": 1,
    "chunk_size": 8,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
GROUPED = {"n_groups": 3, "conv_kernel": 3, "tie_word_embeddings": False}


def theirs(**change: Any) -> Any:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(1)
    # residual_in_fp32 would round an fp64 stream
    made = Mamba2ForCausalLM(Mamba2Config(**{**SIZES, "residual_in_fp32": False, **change}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.double().eval()


@needs_transformers
@pytest.mark.parametrize("change", [{}, GROUPED], ids=["one-group", "three-groups-untied"])
def test_values_and_gradients(change: dict[str, Any]) -> None:
    other = theirs(**change)
    model = from_mamba2(other)
    ids = torch.randint(0, 37, (3, 21))
    weight = torch.randn(3, 21, 37, dtype=torch.float64)
    with torch.autocast("cpu", enabled=False):
        want, got = other(ids).logits, model(ids).logits
    # their scan and norms compute in fp32, and their logits are rounded to it
    assert_close(got, want, 2e-6, "logits")
    (want.double() * weight).sum().backward()
    (got * weight).sum().backward()
    for parameter in other.parameters():
        parameter.data = parameter.grad  # so that converting it converts the gradients
    gradients = dict(from_mamba2(other).named_parameters())
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, gradients[name], 1e-5, name)


@needs_transformers
def test_decoding_with_their_cache() -> None:
    other = theirs(**GROUPED)
    model = from_mamba2(other)
    ids = torch.randint(0, 37, (2, 14))
    with torch.no_grad():
        out = other(ids[:, :6], use_cache=True)
        state = model(ids[:, :6]).state
        for t in range(6, 14):
            out = other(ids[:, t : t + 1], cache=out.cache, use_cache=True)
            ours = model(ids[:, t : t + 1], state)
            state = ours.state
            assert_close(ours.logits, out.logits, 2e-6, f"logits at {t}")


@needs_transformers
@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(tied: bool) -> None:
    torch.manual_seed(2)
    model = palimpsest.build(
        "mamba2",
        vocab_size=37,
        d_model=12,
        n_layers=2,
        head_dim=4,
        state_dim=5,
        n_groups=2,
        norm_eps=1e-4,
        tie_embeddings=tied,
    )
    assert isinstance(model, Mamba2)
    back = from_mamba2(to_mamba2(model))
    assert back.config == model.config
    for (name, got), (_, want) in zip(
        back.named_parameters(), model.named_parameters(), strict=True
    ):
        assert torch.equal(got, want), name


@needs_transformers
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bias": True}, "use_bias=True"),
        ({"use_conv_bias": False}, "use_conv_bias=False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"time_step_limit": (0.0, 1.0)}, "time_step_limit"),
    ],
)
def test_refuses_what_we_have_not(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_mamba2(theirs(**change))


@needs_transformers
def test_refuses_a_model_without_a_head() -> None:
    with pytest.raises(InputError, match="head of its own"):
        from_mamba2(theirs().backbone)


def test_refuses_other_models() -> None:
    with pytest.raises(InputError, match="must be a Mamba2ForCausalLM"):
        from_mamba2(torch.nn.Linear(2, 3))
    with pytest.raises(InputError, match="must be a mamba2"):
        to_mamba2(palimpsest.build("gpn", vocab_size=5, d_state=4, d_emb=3))


def test_says_that_transformers_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    model = palimpsest.build("mamba2", vocab_size=5, d_model=4, n_layers=1, head_dim=4)
    with pytest.raises(InputError, match="pip install"):
        to_mamba2(model)
