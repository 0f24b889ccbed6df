"""The triple-latent layer's recurrence as one compiled loop (numba), forward and backward.

Everything between the layer's two projections in one pass over time: no intermediate is written
but the tanh of the features and, for the backward, the read and a copy of the states every few
positions. The backward recomputes the rest and writes one gradient, that of the projection.

B batch, T positions, H heads, S width of the state, X = 4·H·S + 2·H columns, N checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from palimpsest.ops.threads import as_array, require_cpu, run_rows
from palimpsest.ops.triple_scan.reference import split_columns

__all__ = ["STRETCH", "activate", "triple_scan_numba"]

STRETCH = 32


def activate(
    projected_BTX: Tensor, n_heads: int, hold_BT: Tensor | None, reset_BT: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the loops read: features after their tanh, what gates keep and write, resets.

    1 - σ(x) is formed as σ(-x), which stays exact where a gate is nearly open.
    """
    features, gates = split_columns(projected_BTX, n_heads)
    keep, write = gates.sigmoid(), gates.neg().sigmoid_()
    if hold_BT is not None:
        keep.masked_fill_(hold_BT[:, :, None, None], 1.0)
        write.masked_fill_(hold_BT[:, :, None, None], 0.0)
    if reset_BT is None:
        reset_BT = torch.empty(0, 0, dtype=torch.bool)
    return features.tanh().contiguous(), keep.contiguous(), write.contiguous(), reset_BT


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
    features, keep, write, reset_BT = activate(projected_BTX, heads, hold_BT, reset_BT)
    state_BHS, pairs_BHSS = (
        x.clone(memory_format=torch.contiguous_format) for x in (state_BHS, pairs_BHSS)
    )
    kept = -(-length // stretch) if stretch else 0
    states_BNHS = features.new_empty(batch, kept, heads, width)
    pairs_BNHSS = features.new_empty(batch, kept, heads, width, width)
    out_BTHS = features.new_empty(batch, length, heads, width)
    read_BTHS = torch.empty_like(out_BTHS) if stretch else out_BTHS
    inputs = (features, keep, write, reset_BT)
    states = (state_BHS, pairs_BHSS, states_BNHS, pairs_BNHSS)
    run_rows(
        forward_loop(width),
        (*map(as_array, (*inputs, *states)), stretch, as_array(read_BTHS), as_array(out_BTHS)),
        batch * heads,
        out_BTHS.numel() * width * 4,
    )
    return out_BTHS, state_BHS, pairs_BHSS, (*inputs, states_BNHS, pairs_BNHSS, read_BTHS)


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
    @once_differentiable
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
