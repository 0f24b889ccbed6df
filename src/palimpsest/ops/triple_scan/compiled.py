"""The triple-latent layer's recurrence as one compiled loop (numba), forward and backward.

Everything between the layer's two projections in one pass over time. No intermediate is written
but for the backward: features after their tanh, gates after their sigmoid, what was read, and a
copy of the states every few positions, 5·H·S + 4·H numbers a position and H·(S² + S) / 32. The
backward recomputes the rest and writes one gradient, that of the projection.

B batch, T positions, H heads, S width of the state, X = 4·H·S + 2·H columns, N checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.threads import as_array, require_cpu, run_rows

__all__ = ["STRETCH", "mask", "triple_scan_numba"]

STRETCH = 32


def mask(mask_BT: Tensor | None) -> Tensor:
    """The mask, or an empty one for None: a compiled loop wants one type."""
    if mask_BT is None:
        return torch.empty(0, 0, dtype=torch.bool, device="cpu")
    return mask_BT


def _forward(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    pairs_BHSS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    stretch: int,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Output, final states, and what the backward needs."""
    from palimpsest.ops.triple_scan.loops import forward_loop

    batch, length, _ = projected_BTX.shape
    heads, width = state_BHS.shape[1:]
    hold_BT, reset_BT = mask(hold_BT), mask(reset_BT)
    state_BHS, pairs_BHSS = (
        x.clone(memory_format=torch.contiguous_format) for x in (state_BHS, pairs_BHSS)
    )
    kept, every = (-(-length // stretch), length) if stretch else (0, 0)
    new = projected_BTX.new_empty
    states_BNHS = new(batch, kept, heads, width)
    pairs_BNHSS = new(batch, kept, heads, width, width)
    features_BT4HS = new(batch, every, 4, heads, width)
    keep_BT2H, write_BT2H = new(batch, every, 2, heads), new(batch, every, 2, heads)
    read_BTHS = new(batch, every, heads, width)
    out_BTHS = new(batch, length, heads, width)
    states = (state_BHS, pairs_BHSS, states_BNHS, pairs_BNHSS)
    outputs = (features_BT4HS, keep_BT2H, write_BT2H, read_BTHS, out_BTHS)
    run_rows(
        forward_loop(heads, width),
        (
            *map(as_array, (projected_BTX, hold_BT, reset_BT, *states)),
            stretch,
            *map(as_array, outputs),
        ),
        batch * heads,
        out_BTHS.numel() * width * 4,
    )
    saved = (features_BT4HS, keep_BT2H, write_BT2H, reset_BT, states_BNHS, pairs_BNHSS, read_BTHS)
    return out_BTHS, state_BHS, pairs_BHSS, saved


class _TripleScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected_BTX: Tensor,
        state_BHS: Tensor,
        pairs_BHSS: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out_BTHS, state_BHS, pairs_BHSS, saved = _forward(
            projected_BTX, state_BHS, pairs_BHSS, hold_BT, reset_BT, STRETCH
        )
        ctx.save_for_backward(*saved)
        return out_BTHS, state_BHS, pairs_BHSS

    @staticmethod
    @first_derivatives_only("triple_scan")
    def backward(
        ctx: Any, d_out_BTHS: Tensor, d_state_BHS: Tensor, d_pairs_BHSS: Tensor
    ) -> tuple[Tensor | None, ...]:
        from palimpsest.ops.triple_scan.loops import backward_loop

        *inputs, read_BTHS = ctx.saved_tensors
        batch, length, heads, width = read_BTHS.shape
        d_state_BHS = d_state_BHS.clone(memory_format=torch.contiguous_format)
        d_pairs_BHSS = d_pairs_BHSS.mT.clone(memory_format=torch.contiguous_format)
        d_projected_BTX = read_BTHS.new_empty(batch, length, heads * (4 * width + 2))
        outputs = (read_BTHS, d_out_BTHS, d_state_BHS, d_pairs_BHSS, d_projected_BTX)
        run_rows(
            backward_loop(width),
            (*map(as_array, inputs), STRETCH, *map(as_array, outputs)),
            batch * heads,
            read_BTHS.numel() * width * 12,
        )
        return d_projected_BTX, d_state_BHS, d_pairs_BHSS.mT, None, None


def triple_scan_numba(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    pairs_BHSS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The compiled loop; see :func:`palimpsest.ops.triple_scan.triple_scan`."""
    require_cpu("triple_scan", projected_BTX)
    inputs = (projected_BTX, state_BHS, pairs_BHSS)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        out_BTHS, state_BHS, pairs_BHSS = _TripleScan.apply(  # type: ignore[no-untyped-call]
            *inputs, hold_BT, reset_BT
        )
        return out_BTHS, state_BHS, pairs_BHSS
    return _forward(*inputs, hold_BT, reset_BT, stretch=0)[:3]
