"""Transformer++ against transformers' Llama: values, gradients and decoding, from random weights.

transformers computes its norms and its rotary angles in fp32 whatever the model's dtype: that, and
not the models' fp64, is how close they can be.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import InputError
from palimpsest.interop.huggingface.llama import from_llama, to_llama
from palimpsest.models.transformerpp import TransformerPP
from tests.comparison import assert_all_close, assert_close
from tests.contract.harness import randomise

# the newest releases call the argument `cache`, the others know it by this name only
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

TOLERANCE = 2e-6
SIZES = {
    "plain": {"d_model": 30, "n_heads": 3, "norm_eps": 1e-5},
    "grouped": {"d_model": 36, "n_heads": 6, "n_kv_heads": 2, "rope_base": 500.0},
    "one-kv-head-tied": {"d_model": 32, "n_heads": 4, "n_kv_heads": 1, "tie_embeddings": True},
}


@pytest.fixture(scope="session")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def ours(name: str) -> TransformerPP:
    torch.manual_seed(3)
    model = palimpsest.build("transformerpp", vocab_size=41, n_layers=2, d_ffn=23, **SIZES[name])
    assert isinstance(model, TransformerPP)
    randomise(model)
    return model.double().eval()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 41, (3, 50), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", SIZES)
def test_values_and_gradients(transformers: Any, ids: Tensor, name: str) -> None:
    mine = ours(name)
    theirs = to_llama(mine)
    targets = ids.roll(-1, 1).masked_fill(torch.arange(50) == 49, -100)
    out = mine(ids, targets=targets)
    want = theirs(ids, labels=ids, use_cache=False)
    assert_close(out.logits, want.logits, TOLERANCE, "logits")
    assert_close(out.loss, want.loss, TOLERANCE, "loss")
    out.loss.backward()
    want.loss.backward()
    # their gradients in our names: what converts parameters converts gradients
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    expected = dict(from_llama(theirs).named_parameters())
    found = {n: p.grad for n, p in mine.named_parameters()}
    assert_all_close(found, expected, TOLERANCE, "gradient of ")


@pytest.mark.parametrize("name", SIZES)
def test_decoding_with_both_caches(transformers: Any, ids: Tensor, name: str) -> None:
    mine = ours(name)
    theirs = to_llama(mine)
    state, cache = None, None
    with torch.no_grad():
        for piece in (ids[:, :20], ids[:, 20:27], *ids[:, 27:].split(1, dim=1)):
            out = mine(piece, state)
            want = theirs(piece, past_key_values=cache, use_cache=True)
            state, cache = out.state, want.past_key_values
            assert_close(out.logits, want.logits, TOLERANCE, "logits")
    layer = cache.layers[1]
    kept = state.cache.keys_values[1].entries
    assert_close(kept[:, :, 0].transpose(1, 2), layer.keys, TOLERANCE, "cached keys")
    assert_close(kept[:, :, 1].transpose(1, 2), layer.values, TOLERANCE, "cached values")


def test_left_padding(transformers: Any, ids: Tensor) -> None:
    mine = ours("grouped")
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    mask[2, :1] = 0
    with torch.no_grad():
        got = mine(ids, attention_mask=mask).logits
        want = to_llama(mine)(
            ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
        ).logits
    real = mask.bool()
    assert_close(got[real], want[real], TOLERANCE)


@pytest.mark.parametrize("name", SIZES)
def test_there_and_back_is_the_same_model(transformers: Any, name: str) -> None:
    mine = ours(name)
    back = from_llama(to_llama(mine))
    assert back.config == mine.config and not back.training
    for (one, p), (two, q) in zip(mine.named_parameters(), back.named_parameters(), strict=True):
        assert one == two and torch.equal(p, q)
    assert next(from_llama(to_llama(mine.bfloat16())).parameters()).dtype == torch.bfloat16


def test_a_fresh_llama_in_fp32(transformers: Any, ids: Tensor) -> None:
    config = transformers.LlamaConfig(
        vocab_size=41,
        hidden_size=24,
        intermediate_size=35,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        assert_close(from_llama(theirs)(ids).logits, theirs(ids).logits, 2e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("head_dim", 10),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
    ],
)
def test_what_we_have_not_is_named(transformers: Any, name: str, value: object) -> None:
    sizes = {"vocab_size": 41, "hidden_size": 24, "intermediate_size": 35, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=6, **{name: value})
    shown = "rope_type" if name == "rope_parameters" else name
    with pytest.raises(InputError, match=f"model with {shown}="):
        from_llama(transformers.LlamaForCausalLM(config))


def test_what_is_no_llama(transformers: Any) -> None:
    config = transformers.LlamaConfig(
        vocab_size=5, hidden_size=4, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(InputError, match="has no head of its own"):
        from_llama(transformers.LlamaModel(config))
    with pytest.raises(InputError, match="must be a LlamaForCausalLM"):
        from_llama(torch.nn.Linear(2, 3))
    with pytest.raises(InputError, match="model 'gpn': must be a transformerpp"):
        to_llama(palimpsest.build("gpn", vocab_size=5, d_state=3, d_emb=2))


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="pip install 'transformers"):
        to_llama(ours("plain"))
