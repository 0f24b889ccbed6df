"""The gated delta rule and its layer against transformers' Qwen3-Next, from random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.interop.huggingface.qwen3_next import load_gated_delta, to_qwen3_next
from palimpsest.layers.gated_delta import GatedDelta
from palimpsest.ops.gated_delta import gated_delta
from tests.comparison import assert_close

D, H, K, V, W = 19, 3, 5, 7, 4


@pytest.fixture(scope="module")
def theirs() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.qwen3_next import modeling_qwen3_next

    return modeling_qwen3_next


def rule_inputs() -> list[Tensor]:
    return [
        torch.randn(2, 150, H, K),
        F.normalize(torch.randn(2, 150, H, K), dim=-1),
        torch.randn(2, 150, H, V),
        -torch.rand(2, 150, H),
        torch.rand(2, 150, H),
        torch.randn(2, H, K, V),
    ]


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_the_rule_in_values_and_gradients(theirs: Any, form: str, backend: str) -> None:
    start = rule_inputs()
    ours_in = [x.clone().requires_grad_() for x in start]
    theirs_in = [x.clone().requires_grad_() for x in start]
    got = gated_delta(*ours_in, backend=backend)
    q, k, v, g, beta, memory = theirs_in
    rule = getattr(theirs, f"torch_{form}_gated_delta_rule")
    want = rule(q, k, v, g=g, beta=beta, initial_state=memory, output_final_state=True)
    weights = [torch.randn_like(x) for x in want]
    for outputs in (got, want):
        sum((x * w).sum() for x, w in zip(outputs, weights, strict=True)).backward()
    for name, a, b in zip(("out", "final"), got, want, strict=True):
        assert_close(a, b, 1e-5, name)
    for name, a, b in zip("qkvgbs", ours_in, theirs_in, strict=True):
        assert_close(a.grad, b.grad, 2e-5, f"gradient of {name}")


@pytest.fixture
def pair(theirs: Any) -> tuple[GatedDelta, Any]:
    from transformers.models.qwen3_next import Qwen3NextConfig

    config = Qwen3NextConfig(
        hidden_size=D,
        linear_num_key_heads=H,
        linear_num_value_heads=H,
        linear_key_head_dim=K,
        linear_value_head_dim=V,
        linear_conv_kernel_dim=W,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        rms_norm_eps=1e-6,
    )
    other = theirs.Qwen3NextGatedDeltaNet(config, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    layer = GatedDelta(D, H, K, V, W)
    load_gated_delta(layer, {f"a.b.{n}": x for n, x in other.state_dict().items()}, "a.b.")
    return layer, other


def test_the_layer_in_values_and_gradients(pair: tuple[GatedDelta, Any]) -> None:
    layer, other = pair
    x = torch.randn(2, 70, D)
    memory, window = torch.zeros(2, H, K, V), torch.zeros(2, W - 1, layer.channels)
    ours_x, theirs_x = (x.clone().requires_grad_() for _ in range(2))
    got, _, _ = layer(ours_x, memory, window, None, None)
    want = other(theirs_x)
    assert_close(got, want, 1e-5)
    weights = torch.randn_like(want)
    (got * weights).sum().backward()
    (want * weights).sum().backward()
    assert_close(ours_x.grad, theirs_x.grad, 5e-5)
    # gradients in their layout: those of the parameters, put in the parameters' places
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.grad)
    wanted = {name: parameter.grad for name, parameter in other.named_parameters()}
    found = to_qwen3_next(layer)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert_close(found[name], gradient, 5e-5, f"gradient of {name}")


def test_there_and_back(pair: tuple[GatedDelta, Any]) -> None:
    layer, other = pair
    exported = to_qwen3_next(layer)
    assert exported.keys() == other.state_dict().keys()
    for name, tensor in other.state_dict().items():
        assert torch.equal(exported[name], tensor), name


def test_what_does_not_fit_is_refused() -> None:
    layer = GatedDelta(D, H, K, V, W)
    tensors = to_qwen3_next(layer)
    with pytest.raises(InputError, match=r"has no 'x\.in_proj_qkvz\.weight'"):
        load_gated_delta(layer, tensors, "x.")
    with pytest.raises(InputError, match="as many heads of values as of keys"):
        load_gated_delta(layer, {**tensors, "A_log": torch.zeros(2 * H)})
    with pytest.raises(InputError, match="conv_size=0"):
        to_qwen3_next(GatedDelta(D, H, K, V, conv_size=0))
