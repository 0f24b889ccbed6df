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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.ops.grounded_loop.chunks import (
    CHUNK,
    ChunkGrads,
    ChunkRows,
    flush,
    flush_backward,
    layer_outputs,
    schedule,
)
from palimpsest.ops.grounded_loop.folding import (
    Folded,
    FoldedLayer,
    Layout,
    fold,
    initial_key_input,
)
from palimpsest.ops.grounded_loop.params import GroundedParams
from palimpsest.ops.grounded_loop.products import prepare
from palimpsest.ops.grounded_loop.reference import L2_EPS, RMS_EPS
from palimpsest.ops.grounded_loop.workspace import (
    HOLD,
    RESET,
    BackwardBuffers,
    Engine,
    Window,
    row_flags,
)

__all__ = ["MakeEngine", "run_window"]

MakeEngine = Callable[[Window, "BackwardBuffers | None"], Engine]
GROUP_ROWS = 2048  # rows of a weight gradient's product: enough for full speed, bounded memory


def run_window(
    make_engine: MakeEngine,
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The op on a window; see :func:`palimpsest.ops.grounded_loop.grounded_loop`."""
    device = drive_BTD.device.type
    cd = drive_BTD.dtype
    if torch.is_autocast_enabled(device):
        cd = torch.get_autocast_dtype(device)
    key_input_BP = initial_key_input(grounded_BD, params.write)
    with torch.autocast(device, enabled=False):
        folded, layout = fold(params)
        batch, steps, _ = drive_BTD.shape
        flags_TB = row_flags(hold_BT, reset_BT, steps, batch, drive_BTD.device)
        memory = drive_BTD.new_zeros(batch, 0, 0, 0) if memory_BHKU is None else memory_BHKU
        flat = [tensor for layer in folded.layers for tensor in layer]
        predicted_TBD, grounded_BD, memory = _GroundedWindow.apply(
            make_engine,
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
    return predicted_TBD.transpose(0, 1), predicted_TBD[-1], grounded_BD, final_m


class _GroundedWindow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        make_engine: MakeEngine,
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
        folded = Folded(*weights[:5], tuple(_layers(weights[5:])))
        steps, batch, D = drive.shape
        L, n_layers_cols = len(folded.layers), range(len(folded.layers))
        like = drive.new_empty(0)
        chunks = schedule(steps, (flags & RESET).amax(1).bool() if flags.any() else None)
        w = Window(
            layout=layout,
            folded=_in_dtype(folded, drive.dtype),
            flags=flags,
            drive=drive.contiguous(),
            predicted=drive.new_empty(steps + 1, batch, D),
            grounded=grounded.to(drive.dtype, copy=True),
            unit=drive.new_empty(steps, batch, D, dtype=cd),
            unit_scale=drive.new_empty(steps, batch),
            y=[drive.new_empty(steps, batch, layout.columns(i), dtype=cd) for i in n_layers_cols],
            mid=[drive.new_empty(steps, batch, D, dtype=cd) for _ in range(L - 1)],
            mid_scale=[drive.new_empty(steps, batch) for _ in range(L - 1)],
            key_input=key_input.to(drive.dtype, copy=True),
            rows=ChunkRows.empty(batch, layout.H, layout.K, layout.U, like),
            ground_in=drive.new_empty(batch, D, dtype=cd),
            z=drive.new_empty(batch, layout.F + layout.Q, dtype=cd),
        )
        w.predicted[0] = predicted
        w.ground_in.copy_(predicted * _rms_scale(predicted))
        engine = make_engine(w, None)
        ground = prepare(folded.ground_DD.to(cd), batch, steps)
        first = [prepare(layer.first_ND.to(cd), batch, steps) for layer in folded.layers]
        second = [prepare(layer.second_DZ.to(cd), batch, steps) for layer in folded.layers]
        memories = memory.new_empty(len(chunks) + 1, *memory.shape) if layout.H else None
        if memories is not None:
            memories[0] = memory
        for index, (start, end) in enumerate(chunks):
            chunk_memory = None
            if memories is not None:
                chunk_memory = memories[index]
                chunk_memory[(flags[start] & RESET).bool()] = 0.0
            for t in range(start, end):
                engine.ground(t, ground(w.ground_in))
                source = w.unit[t]
                for i in n_layers_cols:
                    w.y[i][t] = first[i](source)
                    engine.mix(i, t, t - start, chunk_memory)
                    engine.predict(i, t, second[i](w.z))
                    source = w.mid[i][t] if i + 1 < L else source
            if memories is not None and chunk_memory is not None:
                flush(chunk_memory, w.rows, end - start, memories[index + 1])
        final_memory = memory.clone() if memories is None else memories[-1].clone()
        out = w.predicted[1:]
        saved = [w.unit, w.unit_scale, *w.y, *w.mid, *w.mid_scale]
        ctx.save_for_backward(key_input, predicted, out, w.drive, memories, *saved, *weights)
        ctx.restore = partial(_restore, layout, flags, w.rows, L)
        ctx.chunks, ctx.cd, ctx.make_engine, ctx.n_saved = chunks, cd, make_engine, len(saved)
        return out, w.grounded, final_memory

    @staticmethod
    def backward(ctx: Any, dpredicted: Tensor, dgrounded: Tensor, dmemory: Tensor) -> Any:
        chunks, cd = ctx.chunks, ctx.cd
        key_input, predicted, out, drive, memories, *rest = ctx.saved_tensors
        saved, weights = rest[: ctx.n_saved], rest[ctx.n_saved :]
        folded = Folded(*weights[:5], tuple(_layers(weights[5:])))
        w = ctx.restore(folded, torch.cat([predicted[None].to(out.dtype), out]), drive, saved)
        sums = _WeightGrads(folded, w)
        b = _backward_buffers(w, cd, dpredicted.contiguous(), dgrounded, dmemory)
        engine = ctx.make_engine(w, b)
        steps, batch = w.flags.shape
        ground_weight = folded.ground_DD.to(cd)
        ground = prepare(ground_weight.t(), batch, steps)
        first = [prepare(layer.first_ND.to(cd).t(), batch, steps) for layer in folded.layers]
        second = [prepare(layer.second_DZ.to(cd).t(), batch, steps) for layer in folded.layers]
        L, room = len(folded.layers), b.dground.shape[0]
        free, group_end = room, steps
        b.dc += b.dpredicted[-1]
        for index in range(len(chunks) - 1, -1, -1):
            start, end = chunks[index]
            n = end - start
            if free < n:
                sums.add(b, slice(free, room), slice(end, group_end), w)
                free, group_end = room, end
            memory = None if memories is None else memories[index]
            free -= n
            _recompute(w, b, ground_weight, key_input, memory, start, n, free)
            if memory is not None:
                torch.sum(b.lam * memories[index + 1], (-1, -2), out=b.grads.phi)
            for t in range(end - 1, start - 1, -1):
                g = free + t - start
                for i in range(L - 1, -1, -1):
                    engine.predict_backward(i, t, g)
                    dz = second[i](b.dout[i][g])
                    engine.mix_backward(i, t, t - start, g, n, dz, memory)
                    dunit = first[i](b.dy[i][g])
                    if i:
                        engine.between_backward(i, t, dunit)
                    else:
                        engine.state_backward(t, g, dunit)
                engine.ground_backward(t, g, ground(b.dground[g]))
            if memory is not None:
                b.lam.copy_(flush_backward(b.lam, w.rows, b.grads, n))
                b.lam[(w.flags[start] & RESET).bool()] = 0.0
        sums.add(b, slice(free, room), slice(0, group_end), w)
        dA_log = b.dA_log if w.layout.H else torch.zeros_like(weights[3])
        return (
            *(None,) * 4,
            b.ddrive,
            b.dc,
            b.ds_carry,
            b.lam,
            b.dkey.to(key_input.dtype),
            sums.ground,
            sums.ground_bias,
            b.dkey_bias,
            dA_log,
            sums.dt_bias,
            *sums.layers(),
        )


def _restore(
    layout: Layout,
    flags: Tensor,
    rows: ChunkRows,
    L: int,
    folded: Folded,
    predicted: Tensor,
    drive: Tensor,
    saved: list[Tensor],
) -> Window:
    """The window as the forward left it, from the tensors that autograd kept."""
    unit, unit_scale, *rest = saved
    return Window(
        layout=layout,
        folded=_in_dtype(folded, drive.dtype),
        flags=flags,
        drive=drive,
        predicted=predicted,
        grounded=drive.new_empty(0),
        unit=unit,
        unit_scale=unit_scale,
        y=rest[:L],
        mid=rest[L : 2 * L - 1],
        mid_scale=rest[2 * L - 1 :],
        key_input=drive.new_empty(0),
        rows=rows,
        ground_in=drive.new_empty(0),
        z=drive.new_empty(0),
    )


def _layers(flat: Sequence[Tensor]) -> list[FoldedLayer]:
    return [FoldedLayer(*flat[i : i + 4]) for i in range(0, len(flat), 4)]


def _in_dtype(folded: Folded, dtype: torch.dtype) -> Folded:
    """Biases and decays in the state's dtype (the matrices are prepared apart)."""
    layers = tuple(
        layer._replace(
            gate_bias_D=layer.gate_bias_D.to(dtype).contiguous(),
            query_bias_P=layer.query_bias_P.to(dtype).contiguous(),
        )
        for layer in folded.layers
    )
    small = [t.to(dtype).contiguous() for t in folded[1:5]]
    return Folded(folded.ground_DD, *small, layers)


def _rms_scale(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPS)


def _backward_buffers(
    w: Window, cd: torch.dtype, dpredicted: Tensor, dgrounded: Tensor, dmemory: Tensor
) -> BackwardBuffers:
    lay, drive = w.layout, w.drive
    steps, batch, D = drive.shape
    L = len(w.y)
    room = min(steps, max(CHUNK, -(-GROUP_ROWS // batch)))
    H, K, U = lay.H, lay.K, lay.U
    return BackwardBuffers(
        dc=drive.new_zeros(batch, D),
        ds_carry=dgrounded.to(drive.dtype, copy=True),
        dkey=drive.new_zeros(batch, lay.P, dtype=cd),
        dkey_bias=drive.new_zeros(lay.P),
        dA_log=drive.new_zeros(H),
        ddrive=drive.new_empty(steps, batch, D),
        dpredicted=dpredicted.to(drive.dtype),
        lam=dmemory.to(drive.dtype, copy=True).contiguous(),
        grads=ChunkGrads(
            queries=drive.new_zeros(L, batch, H, CHUNK, K),
            douts=drive.new_zeros(L, batch, H, CHUNK, U),
            w=drive.new_zeros(batch, H, CHUNK, U),
            phi=drive.new_zeros(batch, H),
        ),
        outputs=drive.new_zeros(L, batch, H, CHUNK, U),
        key_scale=drive.new_zeros(batch, H, CHUNK),
        query_scale=drive.new_zeros(L, batch, H, CHUNK),
        dy=[drive.new_empty(room, batch, lay.columns(i), dtype=cd) for i in range(L)],
        z=[drive.new_empty(room, batch, lay.F + lay.Q, dtype=cd) for _ in range(L)],
        dout=[drive.new_empty(room, batch, D, dtype=cd) for _ in range(L)],
        dground=drive.new_empty(room, batch, D, dtype=cd),
        ground_in=drive.new_empty(room, batch, D, dtype=cd),
        ground_scale=drive.new_empty(room, batch),
        ground_y=drive.new_empty(room, batch, D, dtype=cd),
    )


def _recompute(
    w: Window,
    b: BackwardBuffers,
    ground_weight: Tensor,
    key_input: Tensor,
    memory: Tensor | None,
    start: int,
    n: int,
    free: int,
) -> None:
    """What the forward did not save of a chunk, by products over the whole chunk at once."""
    lay, wide = w.layout, w.drive.dtype
    group, time = slice(free, free + n), slice(start, start + n)
    before = w.predicted[time]
    reset = (w.flags[time] & RESET).bool()[..., None]
    scale = _rms_scale(before)
    b.ground_scale[group] = scale.squeeze(-1)
    b.ground_in[group] = torch.where(reset, 0.0, before * scale)
    torch.matmul(b.ground_in[group], ground_weight.t(), out=b.ground_y[group])
    if memory is None:
        return

    def heads(x_nBX: Tensor) -> Tensor:  # (n,B,H·X) → (B,H,n,X)
        return x_nBX.to(wide).unflatten(-1, (lay.H, -1)).permute(1, 2, 0, 3)

    def unit_rows(x_nBP: Tensor, bias_P: Tensor) -> tuple[Tensor, Tensor]:
        positive = heads(functional.relu(x_nBP.to(wide) + bias_P))
        norm = torch.rsqrt(positive.square().sum(-1, keepdim=True) + L2_EPS)
        return positive * norm, norm.squeeze(-1)

    y = w.y[0]
    first = key_input[None].to(wide) if start == 0 else y[start - 1 : start, :, lay.key :].to(wide)
    inputs = torch.cat([first, y[start : start + n - 1, :, lay.key :].to(wide)])
    inputs = torch.where(reset, 0.0, inputs)
    rows = w.rows
    rows.keys[:, :, :n], b.key_scale[:, :, :n] = unit_rows(inputs, w.folded.key_bias_P)
    held = (w.flags[time] & HOLD).bool().t()[:, None]
    beta = torch.sigmoid(y[time, :, lay.beta : lay.decay].to(wide)).permute(1, 2, 0)
    error = heads(y[time, :, lay.value : lay.beta])
    rows.updates[:, :, :n] = error * beta.masked_fill(held, 0.0)[..., None]
    step = y[time, :, lay.decay : lay.key].to(wide) + w.folded.dt_bias_H
    g = (-torch.exp(w.folded.A_log_H) * functional.softplus(step)).permute(1, 2, 0)
    torch.cumsum(g.masked_fill(held, 0.0), -1, out=rows.decay[:, :, :n])
    for i, layer in enumerate(w.folded.layers):
        columns = w.y[i][time, :, lay.query : lay.read_gate]
        q, scale = unit_rows(columns, layer.query_bias_P)
        b.grads.queries[i, :, :, :n], b.query_scale[i, :, :, :n] = q, scale
    b.outputs[..., :n, :] = layer_outputs(memory, rows, b.grads.queries, n)


class _WeightGrads:
    """Gradients of the folded weights, summed over groups of steps in at least fp32."""

    def __init__(self, folded: Folded, w: Window) -> None:
        wide = w.drive.dtype
        self.dtypes = [t.dtype for t in (folded.ground_DD, folded.layers[0].first_ND)]
        self.ground = torch.zeros_like(folded.ground_DD, dtype=wide)
        self.ground_bias = w.drive.new_zeros(w.layout.D)
        self.dt_bias = w.drive.new_zeros(w.layout.H)
        self.first = [torch.zeros_like(x.first_ND, dtype=wide) for x in folded.layers]
        self.second = [torch.zeros_like(x.second_DZ, dtype=wide) for x in folded.layers]
        self.gate_bias = [w.drive.new_zeros(w.layout.D) for _ in folded.layers]
        self.query_bias = [w.drive.new_zeros(w.layout.P) for _ in folded.layers]

    def add(self, b: BackwardBuffers, group: slice, time: slice, w: Window) -> None:
        lay, wide = w.layout, w.drive.dtype
        dground = b.dground[group].flatten(0, 1)
        self.ground += dground.t() @ b.ground_in[group].flatten(0, 1)
        self.ground_bias += dground.sum(0, dtype=wide)
        for i in range(len(b.dy)):
            x = (w.mid[i - 1] if i else w.unit)[time].flatten(0, 1)
            dy = b.dy[i][group].flatten(0, 1)
            self.first[i] += dy.t() @ x
            self.second[i] += b.dout[i][group].flatten(0, 1).t() @ b.z[i][group].flatten(0, 1)
            self.gate_bias[i] += dy[:, : lay.D].sum(0, dtype=wide)
            self.query_bias[i] += dy[:, lay.query : lay.read_gate].sum(0, dtype=wide)
            if i == 0:
                self.dt_bias += dy[:, lay.decay : lay.key].sum(0, dtype=wide)

    def layers(self) -> list[Tensor]:
        parts = zip(self.first, self.second, self.gate_bias, self.query_bias, strict=True)
        return [tensor for layer in parts for tensor in layer]
