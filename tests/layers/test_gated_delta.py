"""The layer against the paper's equations, a token at a time, in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.layers.gated_delta import GatedDelta
from tests.comparison import assert_close

B, T, D, H, K, V, W = 2, 9, 13, 3, 5, 7, 4


def by_the_equations(layer: GatedDelta, n_TD: Tensor) -> Tensor:
    """One row from an empty state."""
    streams = n_TD @ layer.mix.weight.T
    outputs = []
    memory = torch.zeros(H, K, V, dtype=n_TD.dtype)
    for t in range(len(n_TD)):
        if layer.conv is None:
            mixed = F.silu(streams[t])
        else:
            taps = [layer.conv[:, W - 1 - i] * streams[t - i] for i in range(min(W, t + 1))]
            mixed = F.silu(sum(taps, torch.zeros(())))
        q, k, v = (x.unflatten(0, (H, -1)) for x in mixed.split([H * K, H * K, H * V]))
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        beta, step = (layer.rates.weight @ n_TD[t]).chunk(2)
        beta = beta.sigmoid()
        alpha = (-layer.A_log.exp() * F.softplus(step + layer.dt_bias)).exp()
        reads = []
        for h in range(H):
            decayed = alpha[h] * memory[h]
            error = beta[h] * (v[h] - decayed.T @ k[h])
            memory = memory.clone()
            memory[h] = decayed + torch.outer(k[h], error)
            o = memory[h].T @ q[h] / K**0.5
            reads.append(o / (o.square().mean() + 1e-6).sqrt() * layer.norm.weight)
        gate = F.silu(layer.gate.weight @ n_TD[t])
        outputs.append(layer.out.weight @ (torch.cat(reads) * gate))
    return torch.stack(outputs)


@pytest.mark.parametrize("conv_size", [W, 0])
def test_is_the_equations(conv_size: int) -> None:
    layer = GatedDelta(D, H, K, V, conv_size).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    n = torch.randn(B, T, D, dtype=torch.float64)
    memory = torch.zeros(B, H, K, V, dtype=torch.float64)
    window = n.new_zeros(B, W - 1, layer.channels) if conv_size else None
    got, _, _ = layer(n, memory, window, None, None)
    for row in range(B):
        assert_close(got[row], by_the_equations(layer, n[row]), 1e-12)


def test_zeros_have_a_finite_gradient() -> None:
    """Queries and keys of norm 0, as after a window of padding."""
    layer = GatedDelta(D, H, K, V, W)
    n = torch.zeros(B, T, D, requires_grad=True)
    out, memory, window = layer(
        n, torch.zeros(B, H, K, V), torch.zeros(B, W - 1, layer.channels), None, None
    )
    (out.sum() + memory.sum() + window.sum()).backward()
    assert torch.isfinite(n.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
