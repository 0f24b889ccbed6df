"""Rotary positions: pairs of entries of queries and keys, turned by an angle that grows with place.

Source: arXiv 2104.09864 (RoPE). Entry i is paired with entry i + K/2, as in the public Llama
checkpoints, and not with its neighbour: the two differ by a permutation of the projections' rows.

Legend: B batch, T time, H heads, K width of a head, F = K / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rotary_angles", "rotate"]


def rotary_angles(
    place_BT: Tensor, width: int, base: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles place · base^(-2i/K), both (B,T,1,F).

    Angles are taken in fp64: in fp32 those of the fast pairs, but for the first whose step is 1,
    would be off by up to a hundredth of a radian at place 100,000.

    Args:
        place_BT: how many tokens of its document come before each position.
        width: K, even.
        base: 10,000 as published; a larger one turns the slow pairs more slowly.
        dtype: of the results.
    """
    # Apple's devices have no fp64
    exact = torch.float32 if place_BT.device.type == "mps" else torch.float64
    step_F = torch.arange(0, width, 2, device=place_BT.device, dtype=exact) / width
    angle_BT1F = place_BT[..., None, None].to(exact) * base**-step_F
    return angle_BT1F.cos().to(dtype), angle_BT1F.sin().to(dtype)


def rotate(x_BTHK: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x_i, x_{i+F}) of every head; the result has the dtype of ``x_BTHK``.

    Args:
        x_BTHK: queries or keys.
        angles: of :func:`rotary_angles`.
    """
    cos, sin = angles
    low, high = x_BTHK.chunk(2, dim=-1)
    turned = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    return turned.to(x_BTHK.dtype)
