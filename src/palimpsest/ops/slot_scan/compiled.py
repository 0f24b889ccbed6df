"""The triple-slot layer's recurrence as one compiled loop (numba), forward and backward.

As :mod:`palimpsest.ops.triple_scan.compiled`, with two sides of slots for the dense pair memory.

B batch, T positions, H heads, S width of the state, R slots, X = H·(4·S + 2 + R) columns,
N checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.threads import as_array, require_cpu, run_rows
from palimpsest.ops.triple_scan.compiled import STRETCH, mask

__all__ = ["slot_scan_numba"]


def _forward(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    slots_B2HSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    stretch: int,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Output, final states, and what the backward needs."""
    from palimpsest.ops.slot_scan.loops import forward_loop

    batch, length, _ = projected_BTX.shape
    heads, width, slots = slots_B2HSR.shape[2:]
    hold_BT, reset_BT = mask(hold_BT), mask(reset_BT)
    state_BHS, slots_B2HSR = (
        x.clone(memory_format=torch.contiguous_format) for x in (state_BHS, slots_B2HSR)
    )
    kept, every = (-(-length // stretch), length) if stretch else (0, 0)
    new = projected_BTX.new_empty
    states_BNHS = new(batch, kept, heads, width)
    slots_BN2HSR = new(batch, kept, 2, heads, width, slots)
    features_BT4HS = new(batch, every, 4, heads, width)
    keep_BT2H, write_BT2H = new(batch, every, 2, heads), new(batch, every, 2, heads)
    weights_BTHR, reads_BT2HR = new(batch, every, heads, slots), new(batch, every, 2, heads, slots)
    out_BTHR = new(batch, length, heads, slots)
    states = (state_BHS, slots_B2HSR, states_BNHS, slots_BN2HSR)
    activated = (features_BT4HS, keep_BT2H, write_BT2H, weights_BTHR)
    run_rows(
        forward_loop(heads, width, slots),
        (
            *map(as_array, (projected_BTX, hold_BT, reset_BT, *states)),
            stretch,
            *map(as_array, (*activated, reads_BT2HR, out_BTHR)),
        ),
        batch * heads,
        out_BTHR.numel() * width * 8,
    )
    saved = (*activated, reset_BT, states_BNHS, slots_BN2HSR, reads_BT2HR)
    return out_BTHR, state_BHS, slots_B2HSR, saved


class _SlotScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected_BTX: Tensor,
        state_BHS: Tensor,
        slots_B2HSR: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out_BTHR, state_BHS, slots_B2HSR, saved = _forward(
            projected_BTX, state_BHS, slots_B2HSR, hold_BT, reset_BT, STRETCH
        )
        ctx.save_for_backward(*saved)
        return out_BTHR, state_BHS, slots_B2HSR

    @staticmethod
    @first_derivatives_only("slot_scan")
    def backward(
        ctx: Any, d_out_BTHR: Tensor, d_state_BHS: Tensor, d_slots_B2HSR: Tensor
    ) -> tuple[Tensor | None, ...]:
        from palimpsest.ops.slot_scan.loops import backward_loop

        *inputs, reads_BT2HR = ctx.saved_tensors
        batch, length, heads, slots = d_out_BTHR.shape
        width = d_state_BHS.shape[2]
        d_state_BHS = d_state_BHS.clone(memory_format=torch.contiguous_format)
        d_slots_B2HRS = d_slots_B2HSR.mT.clone(memory_format=torch.contiguous_format)
        d_projected_BTX = reads_BT2HR.new_empty(batch, length, heads * (4 * width + 2 + slots))
        gradients = (d_out_BTHR, d_state_BHS, d_slots_B2HRS, d_projected_BTX)
        run_rows(
            backward_loop(width),
            (*map(as_array, inputs), STRETCH, *map(as_array, (reads_BT2HR, *gradients))),
            batch * heads,
            d_out_BTHR.numel() * width * 24,
        )
        return d_projected_BTX, d_state_BHS, d_slots_B2HRS.mT, None, None


def slot_scan_numba(
    projected_BTX: Tensor,
    state_BHS: Tensor,
    slots_B2HSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The compiled loop; see :func:`palimpsest.ops.slot_scan.slot_scan`."""
    require_cpu("slot_scan", projected_BTX)
    inputs = (projected_BTX, state_BHS, slots_B2HSR)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        out_BTHR, state_BHS, slots_B2HSR = _SlotScan.apply(  # type: ignore[no-untyped-call]
            *inputs, hold_BT, reset_BT
        )
        return out_BTHR, state_BHS, slots_B2HSR
    return _forward(*inputs, hold_BT, reset_BT, stretch=0)[:3]
