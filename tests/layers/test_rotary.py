"""Rotary positions."""

from __future__ import annotations

import torch

from palimpsest.layers.rotary import rotary_angles, rotate
from tests.comparison import assert_close

B, T, H, K = 2, 5, 3, 6


def angles(place_BT: torch.Tensor, base: float = 100.0) -> tuple[torch.Tensor, torch.Tensor]:
    return rotary_angles(place_BT, K, base, torch.float64)


def test_pairs_turn_as_complex_numbers() -> None:
    place_BT = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 0, 1, 900_000]])
    x_BTHK = torch.randn(B, T, H, K, dtype=torch.float64)
    frequency_F = 100.0 ** (-torch.arange(3, dtype=torch.float64) * 2 / K)
    turn = torch.exp(1j * place_BT[..., None, None] * frequency_F)
    want = torch.complex(x_BTHK[..., :3], x_BTHK[..., 3:]) * turn
    got = rotate(x_BTHK, angles(place_BT))
    assert_close(got, torch.cat([want.real, want.imag], -1), 1e-12)
    assert torch.equal(got[0, 0], x_BTHK[0, 0])  # place 0 is not turned
    assert_close(got.norm(dim=-1), x_BTHK.norm(dim=-1), 1e-12)


def test_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, K, dtype=torch.float64)

    def score(of: int, at: int) -> float:
        turned = [rotate(x, angles(torch.tensor([[place]]))) for x, place in ((q, of), (k, at))]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(9, 4) - score(100_009, 100_004)) < 1e-9
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_far_places_are_exact_in_fp32() -> None:
    place_BT = torch.tensor([[10_000_019]])
    got = rotary_angles(place_BT, K, 10000.0, torch.float32)[0]
    assert_close(got, rotary_angles(place_BT, K, 10000.0, torch.float64)[0], 1e-7)


def test_the_result_keeps_its_dtype() -> None:
    x = torch.randn(B, T, H, K).bfloat16()
    turned = rotate(x, rotary_angles(torch.zeros(B, T, dtype=torch.long), K, 10.0, torch.float32))
    assert turned.dtype == torch.bfloat16 and torch.equal(turned, x)
