"""Initial values, always drawn in fp32, whatever the default dtype or the parameter's dtype.

Drawing in bf16 is not harmless: a uniform draw rounds to 0 and its logarithm to −inf. On the meta
device, which holds no values, nothing is drawn: it would take most of the time of such a build.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "decay_rates",
    "lecun_normal_",
    "linear",
    "normal_",
    "orthogonal_",
    "step_biases",
    "uniform_",
    "uninitialised",
    "xavier_uniform_",
]

M = TypeVar("M", bound=nn.Module)

TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at ±2


def uninitialised(module: type[M], *args: Any, **kwargs: Any) -> M:
    """A module whose parameters are not drawn yet, on the default device.

    Unlike ``skip_init`` alone it heeds ``with torch.device("meta")``, under which a model of any
    size is built without memory or time.
    """
    made: M = nn.utils.skip_init(module, *args, device=torch.get_default_device(), **kwargs)
    return made


@torch.no_grad()
def lecun_normal_(weight: Tensor) -> Tensor:
    """Normal cut at two standard deviations, variance 1/fan_in; weight is (out, in)."""
    if weight.is_meta:
        return weight
    std = 1.0 / math.sqrt(weight.shape[1]) / TRUNCATED_STD
    draw = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    torch.nn.init.trunc_normal_(draw, std=std, a=-2 * std, b=2 * std)
    return weight.copy_(draw)


@torch.no_grad()
def normal_(weight: Tensor, std: float) -> Tensor:
    """Normal of mean 0."""
    if weight.is_meta:
        return weight
    draw = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    return weight.copy_(draw.normal_(0.0, std))


@torch.no_grad()
def uniform_(weight: Tensor, fan_in: int) -> Tensor:
    """Uniform in ±1/√fan_in, as torch's own linear maps and convolutions start."""
    bound = 1.0 / math.sqrt(fan_in)
    draw = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    return weight.copy_(draw.uniform_(-bound, bound))


@torch.no_grad()
def xavier_uniform_(weight: Tensor) -> Tensor:
    """Uniform of variance 2 / (fan_in + fan_out), as torch's own attention starts."""
    if weight.is_meta:
        return weight
    draw = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    return weight.copy_(nn.init.xavier_uniform_(draw))


@torch.no_grad()
def orthogonal_(weight: Tensor) -> Tensor:
    """A random orthogonal matrix; orthonormal rows or columns where it is not square."""
    if weight.is_meta:
        return weight
    draw = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    return weight.copy_(nn.init.orthogonal_(draw))


def linear(fan_in: int, out: int, *, bias: bool = False, std: float = 0.02) -> nn.Linear:
    """A linear map that starts normal, with a bias of zeros."""
    layer = uninitialised(nn.Linear, fan_in, out, bias=bias)
    normal_(layer.weight, std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def decay_rates(heads: int, low: float = 0.0) -> Tensor:
    """A_log = log(uniform(low, 16)), floored at 1e-8 before the logarithm."""
    return torch.empty(heads, dtype=torch.float32).uniform_(low, 16.0).clamp(min=1e-8).log()


def step_biases(heads: int) -> Tensor:
    """dt_bias = softplus⁻¹(dt), dt log-uniform in [1e-3, 1e-1], floored at 1e-4."""
    low, high = math.log(1e-3), math.log(1e-1)
    dt = torch.empty(heads, dtype=torch.float32).uniform_(low, high).exp().clamp(min=1e-4)
    return dt + torch.log(-torch.expm1(-dt))
