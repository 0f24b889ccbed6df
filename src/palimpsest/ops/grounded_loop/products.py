"""The skinny products inside the loop: one weight, a few rows, hundreds of times.

On a CPU a weight used at every step of a window is worth laying out once for the library's
kernel: measured on two cores, 8 rows × (768 → 7952): fp32 2.99 ms plain, 1.06 ms packed; bf16 0.95
and 0.64 ms (benchmarks/skinny_products.py). The two packed kernels are operators that the stock
wheel registers for its compiler; their names are not public, so each is probed once and checked
against the plain product, and the plain product stays the fallback.

Legend: B rows, I columns in, O columns out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

__all__ = ["Product", "prepare"]

Product = Callable[[Tensor], Tensor]
"""(B,I) → (B,O), in the dtype of the weight."""

STEPS_WORTH_PACKING = 24


def prepare(weight_OI: Tensor, rows: int, steps: int) -> Product:
    """A function x ↦ x @ weight.T for repeated use.

    Args:
        weight_OI: (O,I), in the dtype of the products; must not change while the function lives.
        rows: B of every call.
        steps: how many calls to expect; packing costs about as much as ten of them.
    """
    if weight_OI.device.type == "cpu" and steps >= STEPS_WORTH_PACKING and weight_OI.numel():
        pack = _packer(weight_OI.dtype)
        if pack is not None:
            return pack(weight_OI.contiguous(), rows)
    transposed_IO = weight_OI.t()
    return lambda x_BI: torch.mm(x_BI, transposed_IO)


def _pack_bf16(weight_OI: Tensor, rows: int) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, rows)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x_BI: run(x_BI, packed, None, "none", [], "")


def _pack_fp32(weight_OI: Tensor, rows: int) -> Product:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight_OI, rows)
    run = torch.ops.mkl._mkl_linear.default
    return lambda x_BI: run(x_BI, packed, weight_OI, None, rows)


@cache
def _packer(dtype: torch.dtype) -> Callable[[Tensor, int], Product] | None:
    """The packed kernel for a dtype, if this build of torch has it and it computes the product."""
    pack = {torch.bfloat16: _pack_bf16, torch.float32: _pack_fp32}.get(dtype)
    if pack is None:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, generator=generator).to(dtype)
    weight = torch.randn(24, 40, generator=generator).to(dtype)
    try:
        found = pack(weight, 3)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return pack if torch.allclose(found, x @ weight.t(), rtol=2e-2, atol=2e-1) else None
