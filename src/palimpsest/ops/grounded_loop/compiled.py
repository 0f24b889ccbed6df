"""The engine of the window form in numba: one or two kernel calls between two products.

The kernels compile on first use (some seconds, then cached on disk) and need no compiler on the
user's machine. Gain and profile: docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.ops.grounded_loop.chunks import ChunkRows
from palimpsest.ops.grounded_loop.observe import Observe
from palimpsest.ops.grounded_loop.params import GroundedParams
from palimpsest.ops.grounded_loop.reference import L2_EPS, RMS_EPS
from palimpsest.ops.grounded_loop.window import run_window
from palimpsest.ops.grounded_loop.workspace import BackwardBuffers, Step, Window
from palimpsest.ops.threads import require_cpu, run_rows

__all__ = ["NumbaEngine", "grounded_loop_numba"]


def _view(tensor: Tensor) -> Any:
    """The tensor's memory as a numpy array; bf16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy()
    return tensor.detach().numpy()


class NumbaEngine:
    """See :class:`palimpsest.ops.grounded_loop.workspace.Engine`."""

    def __init__(self, window: Window, backward: BackwardBuffers | None) -> None:
        from palimpsest.ops.grounded_loop import (
            backward_kernels,
            forward_kernels,
            memory_kernels,
        )

        self.forward, self.back, self.mem = forward_kernels, backward_kernels, memory_kernels
        w, lay = window, window.layout
        real = _view(w.drive).dtype.type
        self.one, self.rms_eps, self.l2_eps = real(1.0), real(RMS_EPS), real(L2_EPS)
        self.per_d, self.per_q = real(1.0 / lay.D), real(1.0 / max(lay.Q, 1))
        self.at = (
            lay.D, lay.F, lay.H, lay.K, lay.U,
            lay.query, lay.read_gate, lay.value, lay.beta, lay.decay, lay.key,
        )  # fmt: skip
        self.last = len(w.y) - 1
        self.flags, self.drive, self.predicted = map(_view, (w.flags, w.drive, w.predicted))
        self.unit, self.unit_scale = _view(w.unit), _view(w.unit_scale)
        self.y = [_view(y) for y in w.y]
        # A layer reads what lies below it: the state, or the output of the layer before.
        self.below = [self.unit, *map(_view, w.mid)]
        self.below_scale = [self.unit_scale, *map(_view, w.mid_scale)]
        self.has_memory = lay.H > 0
        self.scratch = _view(w.drive.new_empty(4, max(lay.Q, lay.K)))
        self.ground_bias = _view(w.folded.ground_bias_D)
        self.key_bias, self.dt_bias = _view(w.folded.key_bias_P), _view(w.folded.dt_bias_H)
        self.rate = _view(-torch.exp(w.folded.A_log_H))
        self.gate_bias = [_view(layer.gate_bias_D) for layer in w.folded.layers]
        self.query_bias = [_view(layer.query_bias_P) for layer in w.folded.layers]
        if backward is None:
            self._view_forward(w)
        else:
            self._view_backward(backward)

    def _view_forward(self, w: Window) -> None:
        self.s, self.key_input = _view(w.grounded), _view(w.key_input)
        self.memory = None if w.memory is None else _view(w.memory)
        self._view_rows(w.rows)
        self.ground_in, self.z = _view(w.ground_in), _view(w.z)
        self.c = _view(torch.empty_like(w.grounded))
        self.unused_scale = _view(torch.empty_like(w.grounded[:, 0]))

    def _view_rows(self, rows: ChunkRows) -> None:
        self.keys, self.updates, self.decay = map(_view, (rows.keys, rows.updates, rows.decay))

    def _view_backward(self, b: BackwardBuffers) -> None:
        self._view_rows(b.rows)
        self.memories, self.key_input = _view(b.memories), _view(b.key_input)
        self.dc, self.ds_carry, self.ddrive = map(_view, (b.dc, b.ds_carry, b.ddrive))
        self.dkey, self.dkey_bias, self.dA_log = map(_view, (b.dkey, b.dkey_bias, b.dA_log))
        self.dpredicted, self.lam = _view(b.dpredicted), _view(b.lam)
        self.queries, self.douts = _view(b.grads.queries), _view(b.grads.douts)
        self.ws, self.phi = _view(b.grads.w), _view(b.grads.phi)
        self.outputs, self.key_scale = _view(b.outputs), _view(b.key_scale)
        self.query_scale = _view(b.query_scale)
        self.dy, self.zs, self.dout = ([_view(x) for x in xs] for xs in (b.dy, b.z, b.dout))
        self.dground, self.ground_in = _view(b.dground), _view(b.ground_in)
        self.ground_scale, self.ground_y = _view(b.ground_scale), _view(b.ground_y)

    # -- forward ------------------------------------------------------------------------------

    def ground(self, t: int, y_BD: Tensor) -> None:
        self.forward.ground(
            t, _view(y_BD), self.ground_bias, self.predicted, self.drive, self.s, self.unit,
            self.unit_scale, self.flags, self.one, self.rms_eps, self.per_d,
        )  # fmt: skip

    def mix(self, layer: int, t: int, j: int) -> None:
        if self.memory is None:
            self.forward.plain_mix(t, self.y[layer], self.z, self.at[0], self.at[1])
            return
        self.forward.memory_mix(
            t, j, layer == 0, self.y[layer], self.z, self.query_bias[layer], self.key_input,
            self.key_bias, self.rate, self.dt_bias, self.memory, self.keys, self.updates,
            self.decay, self.flags, self.scratch, self.at, self.one, self.rms_eps, self.l2_eps,
            self.per_q,
        )  # fmt: skip

    def predict(self, layer: int, t: int, out_BD: Tensor) -> None:
        given = (
            t, self.y[layer], self.gate_bias[layer], _view(out_BD), self.below[layer],
            self.below_scale[layer], self.s, layer == 0,
        )  # fmt: skip
        if layer == self.last:
            self.forward.predict_last(
                *given, self.predicted, self.ground_in, self.flags, self.unused_scale, self.one,
                self.rms_eps, self.per_d,
            )  # fmt: skip
        else:
            self.forward.predict(
                *given, self.below[layer + 1], self.below_scale[layer + 1], self.c, self.one,
                self.rms_eps, self.per_d,
            )  # fmt: skip

    def flush(self, n: int) -> None:
        self.forward.flush(self.memory, self.keys, self.updates, self.decay, n, self.one)

    # -- backward -----------------------------------------------------------------------------

    def recompute(self, block: list[tuple[int, int]]) -> None:
        origin = block[0][0]
        starts = np.array([start - origin for start, _ in block] + [block[-1][1] - origin])
        batch = self.dc.shape[0]
        work = (starts[-1] * self.memories[0].size) // 2
        rows = (
            origin, starts, self.y[0], self.key_input, self.key_bias, self.rate, self.dt_bias,
            self.keys, self.key_scale, self.updates, self.decay, self.memories, self.flags,
            self.at, self.one, self.l2_eps,
        )  # fmt: skip
        run_rows(self.mem.recompute_rows, rows, batch, work)
        for i, y in enumerate(self.y):
            outputs = (
                origin, starts, y, self.query_bias[i], self.queries[i], self.query_scale[i],
                self.outputs[i], self.keys, self.updates, self.decay, self.memories, self.at,
                self.one, self.l2_eps,
            )  # fmt: skip
            run_rows(self.mem.recompute_outputs, outputs, batch, work)

    def enter_chunk(self, chunk: int) -> None:
        self.mem.enter_chunk(self.lam, self.memories[chunk + 1], self.phi, self.one)

    def leave_chunk(self, chunk: int, start: int, lo: int, hi: int) -> None:
        self.mem.leave_chunk(
            start, lo, hi, self.lam, self.keys, self.decay, self.queries, self.douts, self.ws,
            self.flags, self.one,
        )  # fmt: skip

    def predict_backward(self, layer: int, at: Step) -> None:
        self.back.layer_gate(
            at.t, at.s, self.y[layer], self.gate_bias[layer], self.below[layer],
            self.below_scale[layer], self.dc, self.dy[layer], self.dout[layer], self.flags,
            self.one,
        )  # fmt: skip

    def mix_backward(self, layer: int, at: Step, dz: Tensor) -> None:
        ours = self.y[layer], _view(dz), self.dy[layer], self.zs[layer]
        if not self.has_memory:
            self.back.plain_mix(at.t, at.s, *ours, self.at[0], self.at[1], self.one)
            return
        chunk = (
            self.memories[at.chunk], self.keys, self.updates, self.decay, self.flags,
            self.scratch, self.at, self.one,
        )  # fmt: skip
        self.mem.memory_mix(
            at.t, at.s, at.lo, *ours, self.outputs[layer], self.queries[layer], self.douts[layer],
            self.query_scale[layer], self.phi, *chunk, self.rms_eps, self.per_q,
        )  # fmt: skip
        if layer == 0:
            self.mem.write(
                at.t, at.s, at.lo, at.hi, self.y[0], self.dy[0], self.rate, self.dt_bias,
                self.dkey, self.dkey_bias, self.dA_log, self.lam, self.queries, self.douts,
                self.ws, self.phi, self.key_scale, *chunk,
            )  # fmt: skip

    def between_backward(self, layer: int, at: Step, dunit_BD: Tensor) -> None:
        self.back.between(
            at.t, _view(dunit_BD), self.below[layer], self.below_scale[layer], self.dc,
            self.flags, self.one, self.per_d,
        )  # fmt: skip

    def state_backward(self, at: Step, dunit_BD: Tensor) -> None:
        self.back.ground_gate(
            at.t, at.s, _view(dunit_BD), self.unit, self.unit_scale, self.dc, self.ds_carry,
            self.ddrive, self.ground_y, self.ground_bias, self.predicted, self.dground,
            self.flags, self.one, self.per_d,
        )  # fmt: skip

    def ground_backward(self, at: Step, dunit_BD: Tensor) -> None:
        self.back.ground_norm(
            at.t, at.s, _view(dunit_BD), self.ground_in, self.ground_scale, self.dc,
            self.dpredicted, self.flags, self.one, self.per_d,
        )  # fmt: skip


def grounded_loop_numba(
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    observe: Observe | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See :func:`palimpsest.ops.grounded_loop.grounded_loop`."""
    require_cpu("grounded_loop", drive_BTD)
    return run_window(
        NumbaEngine, drive_BTD, params, predicted_BD, grounded_BD, memory_BHKU, hold_BT, reset_BT,
        observe,
    )  # fmt: skip
