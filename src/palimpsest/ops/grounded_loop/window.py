"""The window form of the grounded loop: three products per step and layer, hand-written backward.

One autograd.Function per window. Forward, per step: the ground product, the first product (gate,
SwiGLU, query, read gate, value, β, decay and the next key at once) and the second product (SwiGLU
and read at once); an engine does what lies between. Backward walks the same steps in reverse, keeps
the rows of every product and forms each weight's gradient once per group of steps
(dW = Σ_t dY_tᵀ X_t as ONE product), never inside a step. Exact: spec "fast recurrence", §1–5.

Legend: T steps, B batch, D d_state, H heads, K d_key, U d_val, L layers, N columns of a first
product, cd dtype of the products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.first_order import first_derivatives_only
from palimpsest.ops.grounded_loop.buffers import (
    backward_buffers,
    folded_from,
    in_dtype,
    restore_window,
    rms_scale,
)
from palimpsest.ops.grounded_loop.chunks import ChunkRows, schedule
from palimpsest.ops.grounded_loop.folding import Layout, fold, initial_key_input
from palimpsest.ops.grounded_loop.observe import LoopView, Observe, StepRows
from palimpsest.ops.grounded_loop.params import GroundedParams
from palimpsest.ops.grounded_loop.products import prepare
from palimpsest.ops.grounded_loop.weight_grads import WeightGrads
from palimpsest.ops.grounded_loop.workspace import (
    RESET,
    BackwardBuffers,
    Engine,
    Step,
    Window,
    row_flags,
)

__all__ = ["MakeEngine", "run_window"]

MakeEngine = Callable[[Window, "BackwardBuffers | None"], Engine]
SEGMENT = 1024  # steps at a time where no gradient is wanted


def run_window(
    make_engine: MakeEngine,
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    observe: Observe | None = None,
    first: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The op on a window; see :func:`palimpsest.ops.grounded_loop.grounded_loop`.

    ``observe`` is shown the window after its forward, ``first`` being its first step.
    """
    if drive_BTD.shape[1] > SEGMENT and not torch.is_grad_enabled():
        return _run_segments(
            make_engine, drive_BTD, params, predicted_BD, grounded_BD, memory_BHKU, hold_BT,
            reset_BT, observe,
        )  # fmt: skip
    device = drive_BTD.device.type
    cd = params.ground.gate_DD.dtype
    if torch.is_autocast_enabled(device):
        cd = torch.get_autocast_dtype(device)
    if cd == torch.float16 and device == "cpu":
        cd = torch.float32  # which float16 is slower than there, and the kernels do not read
    key_input_BP = initial_key_input(grounded_BD, params.write)
    with torch.autocast(device, enabled=False):
        folded, layout = fold(params)
        batch, steps, _ = drive_BTD.shape
        flags_TB = row_flags(hold_BT, reset_BT, steps, batch, drive_BTD.device)
        memory = drive_BTD.new_zeros(batch, 0, 0, 0) if memory_BHKU is None else memory_BHKU
        flat = [tensor for layer in folded.layers for tensor in layer]
        predicted_TBD, grounded_BD, memory = _GroundedWindow.apply(  # type: ignore[no-untyped-call]
            make_engine,
            None if observe is None else partial(observe, first),
            layout,
            cd,
            flags_TB,
            drive_BTD.transpose(0, 1),
            predicted_BD,
            grounded_BD,
            memory,
            key_input_BP,
            *folded[:5],
            *flat,
        )
    final_m = None if memory_BHKU is None else memory
    # a state keeps the last step alone, not the whole window that it is a part of
    return predicted_TBD.transpose(0, 1), predicted_TBD[-1].clone(), grounded_BD, final_m


def _run_segments(
    make_engine: MakeEngine,
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    observe: Observe | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """A long window without gradients, in segments: its buffers do not grow with its length."""
    outputs = []
    for start in range(0, drive_BTD.shape[1], SEGMENT):
        part = slice(start, start + SEGMENT)
        predicted_BTD, predicted_BD, grounded_BD, memory_BHKU = run_window(
            make_engine,
            drive_BTD[:, part],
            params,
            predicted_BD,
            grounded_BD,
            memory_BHKU,
            None if hold_BT is None else hold_BT[:, part],
            None if reset_BT is None else reset_BT[:, part],
            observe,
            start,
        )
        outputs.append(predicted_BTD)
    return torch.cat(outputs, 1), predicted_BD, grounded_BD, memory_BHKU


class _GroundedWindow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        make_engine: MakeEngine,
        show: Callable[[LoopView], None] | None,
        layout: Layout,
        cd: torch.dtype,
        flags: Tensor,
        drive: Tensor,
        predicted: Tensor,
        grounded: Tensor,
        memory: Tensor,
        key_input: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        folded = folded_from(weights)
        steps, batch, D = drive.shape
        L, like = len(folded.layers), drive.new_empty(0)
        layers = range(L)
        resets = bool((flags & RESET).any())
        blocks = schedule(steps, batch, (flags & RESET).amax(1) if resets else None)
        longest = max(end - start for block in blocks for start, end in block)
        w = Window(
            layout=layout,
            folded=in_dtype(folded, drive.dtype),
            flags=flags,
            drive=drive.contiguous(),
            predicted=drive.new_empty(steps + 1, batch, D),
            grounded=grounded.to(drive.dtype, copy=True),
            unit=drive.new_empty(steps, batch, D, dtype=cd),
            unit_scale=drive.new_empty(steps, batch),
            y=[drive.new_empty(steps, batch, layout.columns(i), dtype=cd) for i in layers],
            mid=[drive.new_empty(steps, batch, D, dtype=cd) for _ in range(L - 1)],
            mid_scale=[drive.new_empty(steps, batch) for _ in range(L - 1)],
            key_input=key_input.to(drive.dtype, copy=True),
            memory=memory.to(drive.dtype, copy=True).contiguous() if layout.H else None,
            rows=ChunkRows.empty(batch, layout.H, longest, layout.K, layout.U, like),
            ground_in=drive.new_empty(batch, D, dtype=cd),
            z=drive.new_empty(batch, layout.F + layout.Q, dtype=cd),
        )
        w.predicted[0] = predicted
        w.ground_in.copy_(predicted * rms_scale(predicted))
        engine = make_engine(w, None)
        ground = prepare(folded.ground_DD.to(cd), batch, steps)
        first = [prepare(layer.first_ND.to(cd), batch, steps) for layer in folded.layers]
        second = [prepare(layer.second_DZ.to(cd), batch, steps) for layer in folded.layers]
        kept = None if show is None else StepRows(w)
        memories: list[Tensor] = []
        for block in blocks:
            if w.memory is not None:
                memories.append(w.memory.clone() if memories else memory)
            for start, end in block:
                if w.memory is not None and resets:
                    w.memory[(flags[start] & RESET).bool()] = 0.0
                for t in range(start, end):
                    grounding = ground(w.ground_in)
                    engine.ground(t, grounding)
                    if kept is not None:
                        kept.after_ground(grounding)
                    source = w.unit[t]
                    for i in layers:
                        w.y[i][t] = first[i](source)
                        if kept is not None and i == 0:
                            kept.before_write(t)
                        engine.mix(i, t, t - start)
                        added = second[i](w.z)
                        engine.predict(i, t, added)
                        if kept is not None:
                            kept.after_layer(i, added)
                        source = w.mid[i][t] if i + 1 < L else source
                if w.memory is not None:
                    engine.flush(end - start)
        final_memory = memory.clone() if w.memory is None else w.memory
        if show is not None and kept is not None:
            show(LoopView(w, kept, memory, key_input))
        out = w.predicted[1:]
        saved = [w.unit, w.unit_scale, *w.y, *w.mid, *w.mid_scale]
        ctx.save_for_backward(key_input, predicted, out, *weights, *saved, *memories)
        ctx.restore = partial(restore_window, layout, flags, L)
        ctx.counts = len(weights), len(saved)
        ctx.blocks, ctx.cd, ctx.make_engine = blocks, cd, make_engine
        return out, w.grounded, final_memory

    @staticmethod
    @first_derivatives_only("grounded_loop")
    def backward(ctx: Any, dpredicted: Tensor, dgrounded: Tensor, dmemory: Tensor) -> Any:
        cd = ctx.cd
        key_input, predicted, out, *rest = ctx.saved_tensors
        n_weights, n_saved = ctx.counts
        weights, saved = rest[:n_weights], rest[n_weights : n_weights + n_saved]
        memories = rest[n_weights + n_saved :]
        folded = folded_from(weights)
        w = ctx.restore(folded, torch.cat([predicted[None].to(out.dtype), out]), saved)
        sums = WeightGrads(folded, w)
        b = backward_buffers(w, cd, ctx.blocks, key_input, dpredicted, dgrounded, dmemory)
        engine = ctx.make_engine(w, b)
        steps, batch = w.flags.shape
        ground_weight = folded.ground_DD.to(cd)
        ground = prepare(ground_weight.t(), batch, steps)
        first = [prepare(layer.first_ND.to(cd).t(), batch, steps) for layer in folded.layers]
        second = [prepare(layer.second_DZ.to(cd).t(), batch, steps) for layer in folded.layers]
        L = len(folded.layers)
        b.dc += b.dpredicted[-1]
        for index in range(len(ctx.blocks) - 1, -1, -1):
            block = ctx.blocks[index]
            origin, size = block[0][0], block[-1][1] - block[0][0]
            _recompute_ground(w, b, ground_weight, slice(origin, origin + size))
            if memories:
                b.memories[0] = memories[index]
                engine.recompute(block)
            for c in range(len(block) - 1, -1, -1):
                lo, hi = block[c][0] - origin, block[c][1] - origin
                if memories:
                    engine.enter_chunk(c)
                for s in range(hi - 1, lo - 1, -1):
                    at = Step(origin + s, s, lo, hi, c)
                    for i in range(L - 1, -1, -1):
                        engine.predict_backward(i, at)
                        engine.mix_backward(i, at, second[i](b.dout[i][s]))
                        dunit = first[i](b.dy[i][s])
                        if i:
                            engine.between_backward(i, at, dunit)
                        else:
                            engine.state_backward(at, dunit)
                    engine.ground_backward(at, ground(b.dground[s]))
                if memories:
                    engine.leave_chunk(c, block[c][0], lo, hi)
            sums.add(b, w, origin, size)
        return (
            *(None,) * 5,
            b.ddrive,
            b.dc,
            b.ds_carry,
            b.lam,
            b.dkey,
            *sums.result(b.dkey_bias, b.dA_log),
        )


def _recompute_ground(w: Window, b: BackwardBuffers, weight_DD: Tensor, time: slice) -> None:
    """The ground product of a block again, all steps at once."""
    before = w.predicted[time]
    n = len(before)
    scale = rms_scale(before)
    b.ground_scale[:n] = scale.squeeze(-1)
    b.ground_in[:n] = before * scale
    if w.flags.any():
        b.ground_in[:n].masked_fill_((w.flags[time] & RESET).bool()[..., None], 0.0)
    torch.matmul(b.ground_in[:n], weight_DD.t(), out=b.ground_y[:n])
