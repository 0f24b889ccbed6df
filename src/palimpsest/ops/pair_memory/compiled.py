"""The pair memory as a compiled loop over time (numba), forward and backward.

The memory of one head is a few hundred bytes here and stays in the first-level cache. The forward
keeps a checkpoint of it every few positions; the backward walks the stretches from the last to the
first, recomputes the memories of a stretch and takes exact gradients from them: no cancelling sums
and nothing larger than the inputs.

B batch, T positions, H value heads, K = G·H key heads, S width of keys, R width of values,
N checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from palimpsest.ops.decay_scan.arguments import apply_gates
from palimpsest.ops.threads import as_array, require_cpu, run_rows

__all__ = ["pair_memory_numba"]

STRETCH = 32


def _forward(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    decay_BTH: Tensor,
    state_BKSR: Tensor,
    stretch: int,
) -> tuple[Tensor, Tensor]:
    """Read and checkpoints; the state is changed in place."""
    from palimpsest.ops.pair_memory.loops import forward_loop

    batch, length, key_heads, key_width = keys_BTKS.shape
    width = values_BTHR.shape[-1]
    n_checkpoints = -(-length // stretch) if stretch else 0
    checkpoints = keys_BTKS.new_empty(batch, key_heads, n_checkpoints, key_width, width)
    read_BTKR = keys_BTKS.new_empty(batch, length, key_heads, width)
    arrays = map(as_array, (keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, state_BKSR))
    run_rows(
        forward_loop(width),
        (*arrays, as_array(checkpoints), stretch, as_array(read_BTKR)),
        batch * key_heads,
        read_BTKR.numel() * key_width * 4,
    )
    return read_BTKR, checkpoints


class _PairMemory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys_BTKS: Tensor,
        values_BTHR: Tensor,
        queries_BTKS: Tensor,
        log_decay_BTH: Tensor,
        initial_BKSR: Tensor,
    ) -> tuple[Tensor, Tensor]:
        keys_BTKS, values_BTHR, queries_BTKS, decay_BTH = (
            x.contiguous() for x in (keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH.exp())
        )
        state_BKSR = initial_BKSR.clone(memory_format=torch.contiguous_format)
        read_BTKR, checkpoints = _forward(
            keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, state_BKSR, STRETCH
        )
        ctx.save_for_backward(keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints)
        return read_BTKR, state_BKSR

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_read_BTKR: Tensor, d_final_BKSR: Tensor) -> tuple[Tensor, ...]:
        from palimpsest.ops.pair_memory.loops import backward_loop

        keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints = ctx.saved_tensors
        batch, _, heads, _ = values_BTHR.shape
        d_memory_BKRS = d_final_BKSR.mT.clone(memory_format=torch.contiguous_format)
        d_keys_BTKS, d_queries_BTKS = torch.empty_like(keys_BTKS), torch.empty_like(queries_BTKS)
        d_values_BTHR, d_log_BTH = torch.zeros_like(values_BTHR), torch.zeros_like(decay_BTH)
        inputs = map(as_array, (keys_BTKS, values_BTHR, queries_BTKS, decay_BTH, checkpoints))
        outputs = map(
            as_array,
            (d_read_BTKR, d_memory_BKRS, d_keys_BTKS, d_values_BTHR, d_queries_BTKS, d_log_BTH),
        )
        run_rows(
            backward_loop(keys_BTKS.shape[-1]),
            (*inputs, STRETCH, *outputs),
            batch * heads,
            d_read_BTKR.numel() * keys_BTKS.shape[-1] * 12,
        )
        return d_keys_BTKS, d_values_BTHR, d_queries_BTKS, d_log_BTH, d_memory_BKRS.mT


def pair_memory_numba(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    log_decay_BTH: Tensor,
    initial_BKSR: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The compiled loop; arguments as in :func:`palimpsest.ops.pair_memory.pair_memory`."""
    require_cpu("pair_memory", keys_BTKS)
    values_BTHR, log_decay_BTH = apply_gates(values_BTHR, log_decay_BTH, hold_BT, reset_BT)
    inputs = (keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH, initial_BKSR)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        read_BTKR, final_BKSR = _PairMemory.apply(*inputs)  # type: ignore[no-untyped-call]
        return read_BTKR, final_BKSR
    state_BKSR = initial_BKSR.clone(memory_format=torch.contiguous_format)
    read_BTKR, _ = _forward(
        keys_BTKS, values_BTHR, queries_BTKS, log_decay_BTH.exp(), state_BKSR, stretch=0
    )
    return read_BTKR, state_BKSR
