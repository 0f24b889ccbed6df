"""The pair memory as a compiled loop over time (numba), forward and backward.

The memory of one head is a few hundred bytes here and stays in the first-level cache. The forward
keeps a checkpoint of it every few positions; the backward walks the stretches from the last to the
first, recomputes the memories of a stretch and takes exact gradients from them: no cancelling sums
and nothing larger than the inputs.

B batch, T positions, H value heads, K key heads, M = max(H, K) memories, S width of keys, R width
of values, N checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import apply_gates
from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.threads import as_array, require_cpu, run_rows

__all__ = ["pair_memory_numba"]

STRETCH = 32


def _forward(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    decay_BTH: Tensor,
    state_BMSR: Tensor,
    stretch: int,
) -> tuple[Tensor, Tensor]:
    """Read and checkpoints; the state is changed in place."""
    from palimpsest.ops.pair_memory.loops import forward_loop

    length = keys_BTKS.shape[1]
    batch, memories, key_width, width = state_BMSR.shape
    n_checkpoints = -(-length // stretch) if stretch else 0
    checkpoints = keys_BTKS.new_empty(batch, memories, n_checkpoints, key_width, width)
    read_BTMR = keys_BTKS.new_empty(batch, length, memories, width)
    arrays = map(as_array, (keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, state_BMSR))
    run_rows(
        forward_loop(width),
        (*arrays, as_array(checkpoints), stretch, as_array(read_BTMR)),
        batch * memories,
        read_BTMR.numel() * key_width * 4,
    )
    return read_BTMR, checkpoints


class _PairMemory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys_BTKS: Tensor,
        values_BTHR: Tensor,
        queries_BTKS: Tensor,
        log_decay_BTH: Tensor,
        initial_BMSR: Tensor,
    ) -> tuple[Tensor, Tensor]:
        keys_BTKS, values_BTHR, queries_BTKS, decay_BTH = (
            x.contiguous() for x in (keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH.exp())
        )
        state_BMSR = initial_BMSR.clone(memory_format=torch.contiguous_format)
        read_BTMR, checkpoints = _forward(
            keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, state_BMSR, STRETCH
        )
        ctx.save_for_backward(keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints)
        return read_BTMR, state_BMSR

    @staticmethod
    @first_derivatives_only("pair_memory")
    def backward(ctx: Any, d_read_BTMR: Tensor, d_final_BMSR: Tensor) -> tuple[Tensor, ...]:
        from palimpsest.ops.pair_memory.loops import backward_loop

        keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints = ctx.saved_tensors
        rows = values_BTHR.shape[0] * min(values_BTHR.shape[2], keys_BTKS.shape[2])
        d_memory_BMRS = d_final_BMSR.mT.clone(memory_format=torch.contiguous_format)
        d_keys_BTKS, d_queries_BTKS = torch.zeros_like(keys_BTKS), torch.zeros_like(queries_BTKS)
        d_values_BTHR, d_log_BTH = torch.zeros_like(values_BTHR), torch.zeros_like(decay_BTH)
        inputs = map(as_array, (keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints))
        outputs = map(
            as_array,
            (d_read_BTMR, d_memory_BMRS, d_keys_BTKS, d_values_BTHR, d_queries_BTKS, d_log_BTH),
        )
        run_rows(
            backward_loop(keys_BTKS.shape[-1]),
            (*inputs, STRETCH, *outputs),
            rows,
            d_read_BTMR.numel() * keys_BTKS.shape[-1] * 12,
        )
        return d_keys_BTKS, d_values_BTHR, d_queries_BTKS, d_log_BTH, d_memory_BMRS.mT


def pair_memory_numba(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    log_decay_BTH: Tensor,
    initial_BMSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The compiled loop; arguments as in :func:`palimpsest.ops.pair_memory.pair_memory`."""
    require_cpu("pair_memory", keys_BTKS)
    values_BTHR, log_decay_BTH = apply_gates(values_BTHR, log_decay_BTH, hold_BT, reset_BT)
    inputs = (keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH, initial_BMSR)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        read_BTMR, final_BMSR = _PairMemory.apply(*inputs)  # type: ignore[no-untyped-call]
        return read_BTMR, final_BMSR
    state_BMSR = initial_BMSR.clone(memory_format=torch.contiguous_format)
    read_BTMR, _ = _forward(
        keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH.exp(), state_BMSR, stretch=0
    )
    return read_BTMR, state_BMSR
