"""Mamba-2's mixer against its equations, written out head by head."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.layers.ssd import SSD, GatedNorm
from tests.comparison import assert_close

B, T, D, HEAD, N, W = 2, 9, 5, 3, 4, 3


def layer(groups: int) -> SSD:
    made = SSD(D, 4 * HEAD, HEAD, N, groups, W, 1e-5, out_scale=0.5).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def by_the_equations(ssd: SSD, x_BTD: Tensor, groups: int) -> Tensor:
    """One position and one head at a time, from an empty state."""
    inner, heads = 4 * HEAD, 4
    z, xbc, step = (x_BTD @ ssd.in_proj.weight.T).split(
        [inner, inner + 2 * groups * N, heads], dim=-1
    )
    padded = F.pad(xbc, (0, 0, W - 1, 0))
    xbc = F.silu(
        sum(padded[:, w : w + T] * ssd.conv_weight[:, w] for w in range(W)) + ssd.conv_bias
    )
    x, b, c = xbc.split([inner, groups * N, groups * N], dim=-1)
    reads = []
    for h in range(heads):
        group = slice(h // (heads // groups) * N, (h // (heads // groups) + 1) * N)
        own = slice(h * HEAD, (h + 1) * HEAD)
        state = x.new_zeros(B, N, HEAD)
        out = []
        for t in range(T):
            delta = F.softplus(step[:, t, h] + ssd.dt_bias[h])[:, None, None]
            write = b[:, t, group, None] * (delta * x[:, t, None, own])
            state = (-ssd.A_log[h].exp() * delta).exp() * state + write
            out.append((c[:, t, group, None] * state).sum(1) + ssd.D[h] * x[:, t, own])
        reads.append(torch.stack(out, 1))
    gated = (torch.cat(reads, -1) * F.silu(z)).unflatten(-1, (groups, -1))
    unit = gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return (unit.flatten(-2) * ssd.norm.weight) @ ssd.out_proj.weight.T


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_is_what_the_equations_say(groups: int) -> None:
    ssd = layer(groups)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    window = torch.zeros(B, W - 1, 4 * HEAD + 2 * groups * N, dtype=torch.float64)
    memory = torch.zeros(B, 4, N, HEAD, dtype=torch.float64)
    got, *_ = ssd(x, window, memory, None, None)
    want = by_the_equations(ssd, x, groups)
    assert_close(got, want, 1e-12)
    weight = torch.randn_like(got)
    leaves = [x, *ssd.parameters()]
    names = ["x", *(n for n, _ in ssd.named_parameters())]
    found = torch.autograd.grad((got * weight).sum(), leaves)
    wanted = torch.autograd.grad((want * weight).sum(), leaves)
    for name, g, w in zip(names, found, wanted, strict=True):
        assert_close(g, w, 1e-10, name)


def test_gated_norm_of_bfloat16_computes_in_fp32() -> None:
    norm = GatedNorm(8, 2, 1e-5).bfloat16()
    y, z = torch.randn(3, 8), torch.randn(3, 8).bfloat16()
    got = norm(y, z)
    assert got.dtype == torch.float32
    gated = (y * F.silu(z.float())).view(3, 2, 4)
    want = gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(got, want.view(3, 8), 1e-6)


def test_gated_norm_gradients() -> None:
    norm = GatedNorm(6, 2, 1e-5).double()
    y, z = (torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(norm, (y, z), fast_mode=True)


def test_starts_as_published() -> None:
    torch.manual_seed(3)
    ssd = SSD(64, 4096, 2, 8, 1, 4, 1e-5, out_scale=0.25)
    rates, steps = ssd.A_log.exp(), F.softplus(ssd.dt_bias)
    assert 1.0 <= rates.min() < 1.1 and 15.9 < rates.max() <= 16.0
    assert 1e-3 <= steps.min() < 1.1e-3 and 0.09 < steps.max() <= 0.1001
    # log-uniform: half of the steps are below the geometric mean
    assert 0.45 < float((steps < 0.01).float().mean()) < 0.55
    assert torch.equal(ssd.D, torch.ones(2048)) and torch.equal(ssd.norm.weight, torch.ones(4096))
    for weight, bound in (
        (ssd.in_proj.weight, 1 / 8),
        (ssd.out_proj.weight, 0.25 / 64),
        (ssd.conv_weight, 0.5),
        (ssd.conv_bias, 0.5),
    ):
        assert 0.98 * bound < weight.abs().max() <= bound
        assert 0.97 < float(weight.detach().std()) * 3**0.5 / bound < 1.03
