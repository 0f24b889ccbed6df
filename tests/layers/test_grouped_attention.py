"""Attention with shared keys and values, and the SwiGLU, against their plain equations."""

from __future__ import annotations

import pytest
import torch

from palimpsest.layers.grouped_attention import GroupedAttention
from palimpsest.layers.growing import Growing
from palimpsest.layers.norm import RMSNorm
from palimpsest.layers.rotary import rotary_angles, rotate
from palimpsest.layers.swiglu import SwiGLU
from tests.comparison import assert_close
from tests.contract.harness import randomise

B, T, H, K = 2, 7, 6, 4


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_against_the_equations(groups: int) -> None:
    layer = GroupedAttention(H * K, H, groups).double()
    randomise(layer)
    n_BTD = torch.randn(B, T, H * K, dtype=torch.float64)
    angles = rotary_angles(torch.arange(T).expand(B, T), K, 50.0, torch.float64)
    past = Growing(torch.zeros(B, 0, 2, groups, K, dtype=torch.float64))
    got, kept = layer(n_BTD, past, None, angles)

    rows = layer.project.weight.split([H * K, groups * K, groups * K])
    q, k, v = ((n_BTD @ w.T).unflatten(-1, (-1, K)) for w in rows)
    q, k = rotate(q, angles), rotate(k, angles)
    reads = []
    for head in range(H):
        shared = head // (H // groups)
        scores = torch.einsum("btk,bnk->btn", q[:, :, head], k[:, :, shared]) / K**0.5
        scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf"))
        reads.append(scores.softmax(-1) @ v[:, :, shared])
    assert_close(got, torch.cat(reads, -1) @ layer.out.weight.T, 1e-12)
    assert_close(kept.entries, torch.stack([k, v], dim=2), 1e-12)


def test_swiglu() -> None:
    layer = SwiGLU(5, 7, out_std=0.5).double()
    assert 0.3 < float(layer.fall.weight.detach().std()) < 0.7
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    gate, up = layer.rise.weight.split(7)
    hidden = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    assert_close(layer(x), hidden @ layer.fall.weight.T, 1e-12)


def test_rms_norm_takes_an_eps() -> None:
    x = torch.tensor([[3.0, 4.0]])
    assert_close(RMSNorm(2, eps=12.5)(x), x / 5, 1e-6)
    assert RMSNorm(2).eps == 1e-6
