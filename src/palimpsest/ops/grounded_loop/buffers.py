"""Making the buffers of a window: from what autograd kept, and for its backward.

Legend: T steps, B batch, D d_state, H heads, K d_key, U d_val, L layers, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from palimpsest.ops.grounded_loop.chunks import ChunkGrads, ChunkRows
from palimpsest.ops.grounded_loop.folding import Folded, FoldedLayer, Layout
from palimpsest.ops.grounded_loop.reference import RMS_EPS
from palimpsest.ops.grounded_loop.workspace import BackwardBuffers, Window

__all__ = ["backward_buffers", "folded_from", "in_dtype", "restore_window", "rms_scale"]


def restore_window(
    layout: Layout,
    flags: Tensor,
    L: int,
    folded: Folded,
    predicted: Tensor,
    saved: list[Tensor],
) -> Window:
    """The window as the forward left it, from the tensors that autograd kept."""
    unit, unit_scale, *rest = saved
    drive = predicted[1:]  # the drive itself is not needed again, only its shape and dtype
    empty = drive.new_empty(0)
    return Window(
        layout=layout,
        folded=in_dtype(folded, drive.dtype),
        flags=flags,
        drive=drive,
        predicted=predicted,
        grounded=empty,
        unit=unit,
        unit_scale=unit_scale,
        y=rest[:L],
        mid=rest[L : 2 * L - 1],
        mid_scale=rest[2 * L - 1 :],
        key_input=empty,
        memory=None,
        rows=ChunkRows(empty, empty, empty),
        ground_in=empty,
        z=empty,
    )


def folded_from(flat: Sequence[Tensor]) -> Folded:
    """The block from the flat list that the autograd function takes."""
    ground, ground_bias, key_bias, A_log, dt_bias, *rest = flat
    layers = tuple(FoldedLayer(*rest[i : i + 4]) for i in range(0, len(rest), 4))
    return Folded(ground, ground_bias, key_bias, A_log, dt_bias, layers)


def in_dtype(folded: Folded, dtype: torch.dtype) -> Folded:
    """Biases and decays in the state's dtype (the matrices are prepared apart)."""
    layers = tuple(
        layer._replace(
            gate_bias_D=layer.gate_bias_D.to(dtype).contiguous(),
            query_bias_P=layer.query_bias_P.to(dtype).contiguous(),
        )
        for layer in folded.layers
    )
    return Folded(
        folded.ground_DD,
        folded.ground_bias_D.to(dtype).contiguous(),
        folded.key_bias_P.to(dtype).contiguous(),
        folded.A_log_H.to(dtype).contiguous(),
        folded.dt_bias_H.to(dtype).contiguous(),
        layers,
    )


def rms_scale(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPS)


def backward_buffers(
    w: Window,
    cd: torch.dtype,
    blocks: list[list[tuple[int, int]]],
    key_input: Tensor,
    dpredicted: Tensor,
    dgrounded: Tensor,
    dmemory: Tensor,
) -> BackwardBuffers:
    lay, drive = w.layout, w.drive
    steps, batch, D = drive.shape
    L, H, K, U = len(w.y), lay.H, lay.K, lay.U
    S = max(block[-1][1] - block[0][0] for block in blocks)
    new, rows = drive.new_empty, partial(drive.new_empty, S, batch)
    return BackwardBuffers(
        dc=drive.new_zeros(batch, D),
        ds_carry=dgrounded.to(drive.dtype, copy=True),
        dkey=drive.new_zeros(batch, lay.P, dtype=cd),
        dkey_bias=drive.new_zeros(lay.P),
        dA_log=drive.new_zeros(H),
        ddrive=new(steps, batch, D),
        dpredicted=dpredicted.to(drive.dtype).contiguous(),
        lam=dmemory.to(drive.dtype, copy=True).contiguous(),
        key_input=key_input.to(drive.dtype).contiguous(),
        rows=ChunkRows.empty(batch, H, S, K, U, new(0)),
        memories=new(max(map(len, blocks)) + 1 if H else 0, batch, H, K, U),
        outputs=new(L, batch, H, S, U),
        key_scale=new(batch, H, S),
        query_scale=new(L, batch, H, S),
        ground_in=rows(D, dtype=cd),
        ground_scale=rows(),
        ground_y=rows(D, dtype=cd),
        grads=ChunkGrads(
            queries=new(L, batch, H, S, K),
            douts=new(L, batch, H, S, U),
            w=new(batch, H, S, U),
            phi=drive.new_zeros(batch, H),
        ),
        dy=[rows(lay.columns(i), dtype=cd) for i in range(L)],
        z=[rows(lay.F + lay.Q, dtype=cd) for _ in range(L)],
        dout=[rows(D, dtype=cd) for _ in range(L)],
        dground=rows(D, dtype=cd),
    )
