"""The chunkwise forms in float32, where some decays are so strong that running sums grow large.

They take exponentials of differences of running sums; a float32 sum in the hundreds has no digits
left for the weak decays behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.gated_delta import gated_delta
from palimpsest.ops.pair_memory import pair_memory

B, T, H, S = 2, 130, 2, 6


def scan(x: dict[str, Tensor], log_decay: Tensor, **options: object) -> Tensor:
    return decay_scan(x["values"], log_decay, **options)[0]


def pairs(x: dict[str, Tensor], log_decay: Tensor, **options: object) -> Tensor:
    return pair_memory(x["keys"], x["values"], x["queries"], log_decay, **options)[0]


def delta(x: dict[str, Tensor], log_decay: Tensor, **options: object) -> Tensor:
    return gated_delta(x["queries"], x["keys"], x["values"], log_decay, x["beta"], **options)[0]


@pytest.mark.parametrize("strong", [-10.0, -40.0, -100.0, float("-inf"), "reset"])
@pytest.mark.parametrize("op", [scan, pairs, delta])
def test_strong_decays_cost_no_digits(op: Callable[..., Tensor], strong: float | str) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = {name: draw(B, T, H, S) for name in ("values", "queries")}
    x["keys"] = torch.nn.functional.normalize(draw(B, T, H, S), dim=-1)
    x["beta"] = torch.rand(B, T, H, generator=generator, dtype=torch.float64)
    log_decay = -0.05 * torch.rand(B, T, H, generator=generator, dtype=torch.float64)
    often = torch.rand(B, T, generator=generator) < 0.4
    reset = None
    if isinstance(strong, str):
        reset = often
    else:
        log_decay[often] = strong
    # float32 values in both, so that the arithmetic alone differs
    x = {name: value.float().double() for name, value in x.items()}
    log_decay = log_decay.float().double()
    want = op(x, log_decay, reset=reset, backend="reference")
    narrow = {name: value.float() for name, value in x.items()}
    got = op(narrow, log_decay.float(), reset=reset, backend="chunked")
    assert got.dtype == torch.float32
    assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-6
