"""The engine of the window form in pure PyTorch: complete, on every device.

Legend: B batch, D d_state, F d_ffn, H heads, K d_key, U d_val, P = H·K, Q = H·U, c steps of a
chunk, t a step, j its place in the chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.ops.grounded_loop.chunks import flush, flush_backward, layer_outputs
from palimpsest.ops.grounded_loop.observe import Observe
from palimpsest.ops.grounded_loop.params import GroundedParams
from palimpsest.ops.grounded_loop.reference import L2_EPS, RMS_EPS
from palimpsest.ops.grounded_loop.window import run_window
from palimpsest.ops.grounded_loop.workspace import (
    HOLD,
    RESET,
    BackwardBuffers,
    Step,
    Window,
)

__all__ = ["TorchEngine", "grounded_loop_fused"]


class TorchEngine:
    """See :class:`palimpsest.ops.grounded_loop.workspace.Engine`."""

    def __init__(self, window: Window, backward: BackwardBuffers | None) -> None:
        self.w = window
        self._b = backward
        self.any_flags = bool(window.flags.any())
        self.wide = window.drive.dtype

    @property
    def b(self) -> BackwardBuffers:
        assert self._b is not None
        return self._b

    def _rows(self, t: int, flag: int) -> Tensor | None:
        """(B,1) the rows with a flag at this step, or None where no row has any."""
        return (self.w.flags[t] & flag).bool()[:, None] if self.any_flags else None

    # -- forward ------------------------------------------------------------------------------

    def ground(self, t: int, y_BD: Tensor) -> None:
        w = self.w
        hold, reset = self._rows(t, HOLD), self._rows(t, RESET)
        if reset is not None:
            y_BD = torch.where(reset, 0.0, y_BD)
            w.grounded.masked_fill_(reset, 0.0)
        before = w.predicted[t] if reset is None else w.predicted[t].masked_fill(reset, 0.0)
        s = torch.sigmoid(y_BD + w.folded.ground_bias_D).mul_(before).add_(w.drive[t])
        if hold is not None:
            s = torch.where(hold, w.grounded, s)
        w.grounded.copy_(s)
        scale = torch.rsqrt(s.square().mean(-1, keepdim=True) + RMS_EPS)
        w.unit_scale[t] = scale[:, 0]
        w.unit[t] = s * scale

    def mix(self, layer: int, t: int, j: int) -> None:
        w, lay, memory = self.w, self.w.layout, self.w.memory
        y_BN = w.y[layer][t]
        a, b = y_BN[:, lay.D : lay.D + lay.F].to(self.wide), y_BN[:, lay.D + lay.F : lay.query]
        w.z[:, : lay.F] = functional.silu(a) * b
        if memory is None:
            return
        if layer == 0:
            self._write(t, j, y_BN, memory)
        q_BHK = self._unit(y_BN[:, lay.query : lay.read_gate] + w.folded.layers[layer].query_bias_P)
        G_BH1 = w.rows.decay[:, :, j, None]
        out = torch.exp(G_BH1) * torch.einsum("bhk,bhku->bhu", q_BHK, memory)
        keys, updates = w.rows.keys[:, :, : j + 1], w.rows.updates[:, :, : j + 1]
        score = torch.einsum("bhck,bhk->bhc", keys, q_BHK)
        out += torch.einsum(
            "bhc,bhcu->bhu", score * torch.exp(G_BH1 - w.rows.decay[:, :, : j + 1]), updates
        )
        out_BQ = out.flatten(1)
        scale = torch.rsqrt(out_BQ.square().mean(-1, keepdim=True) + RMS_EPS)
        gate = functional.silu(y_BN[:, lay.read_gate : lay.value].to(self.wide))
        w.z[:, lay.F :] = gate * (out_BQ * scale)

    def _unit(self, x_BP: Tensor) -> Tensor:
        positive = functional.relu(x_BP.to(self.wide)).unflatten(-1, (self.w.layout.H, -1))
        unit: Tensor = positive * torch.rsqrt(positive.square().sum(-1, keepdim=True) + L2_EPS)
        return unit

    def _write(self, t: int, j: int, y_BN: Tensor, memory: Tensor) -> None:
        w, lay = self.w, self.w.layout
        hold, reset = self._rows(t, HOLD), self._rows(t, RESET)
        key_input = w.key_input if reset is None else torch.where(reset, 0.0, w.key_input)
        key_BHK = self._unit(key_input + w.folded.key_bias_P)
        w.key_input.copy_(y_BN[:, lay.key :])
        read = torch.einsum("bhk,bhku->bhu", key_BHK, memory)
        before_BH = torch.zeros_like(w.rows.decay[:, :, 0])
        if j:
            before_BH = w.rows.decay[:, :, j - 1]
            read = torch.exp(before_BH)[..., None] * read
            score = torch.einsum("bhck,bhk->bhc", w.rows.keys[:, :, :j], key_BHK)
            score *= torch.exp(before_BH[..., None] - w.rows.decay[:, :, :j])
            read += torch.einsum("bhc,bhcu->bhu", score, w.rows.updates[:, :, :j])
        value_BHU = y_BN[:, lay.value : lay.beta].to(self.wide).unflatten(-1, (lay.H, -1))
        beta_BH = torch.sigmoid(y_BN[:, lay.beta : lay.decay].to(self.wide))
        step_BH = y_BN[:, lay.decay : lay.key].to(self.wide) + w.folded.dt_bias_H
        g_BH = -torch.exp(w.folded.A_log_H) * functional.softplus(step_BH)
        error_BHU = value_BHU - read
        if hold is not None:
            beta_BH, g_BH = beta_BH.masked_fill(hold, 0.0), g_BH.masked_fill(hold, 0.0)
            error_BHU = error_BHU.masked_fill(hold[..., None], 0.0)
        w.rows.keys[:, :, j] = key_BHK
        w.rows.updates[:, :, j] = beta_BH[..., None] * error_BHU
        w.rows.decay[:, :, j] = before_BH + g_BH
        y_BN[:, lay.value : lay.beta] = error_BHU.flatten(1)

    def predict(self, layer: int, t: int, out_BD: Tensor) -> None:
        w, lay = self.w, self.w.layout
        gate = torch.sigmoid(w.y[layer][t][:, : lay.D] + w.folded.layers[layer].gate_bias_D)
        source = self._layer_input(layer, t) if layer else w.grounded
        c = torch.addcmul(out_BD.to(self.wide), gate.to(self.wide), source)
        last = layer == len(w.y) - 1
        hold, reset = self._rows(t, HOLD), self._rows(t, RESET)
        if last and hold is not None and reset is not None:
            c = torch.where(hold, w.predicted[t].masked_fill(reset, 0.0), c)
        scale = torch.rsqrt(c.square().mean(-1, keepdim=True) + RMS_EPS)
        if last:
            w.predicted[t + 1] = c
            w.ground_in.copy_(c * scale)
        else:
            w.mid_scale[layer][t] = scale[:, 0]
            w.mid[layer][t] = c * scale

    def flush(self, n: int) -> None:
        if self.w.memory is not None:
            flush(self.w.memory, self.w.rows.part(0, n))

    def _layer_input(self, layer: int, t: int) -> Tensor:
        """(B,D) what a layer reads: s, or the output of the layer below."""
        w = self.w
        unit, scale = (
            (w.mid[layer - 1], w.mid_scale[layer - 1]) if layer else (w.unit, w.unit_scale)
        )
        return unit[t].to(self.wide) / scale[t][:, None]

    # -- backward -----------------------------------------------------------------------------

    def recompute(self, block: list[tuple[int, int]]) -> None:
        w, b, lay = self.w, self.b, self.w.layout
        origin, end = block[0][0], block[-1][1]
        n, time = end - origin, slice(origin, end)
        reset = (w.flags[time] & RESET).bool()
        y = w.y[0]
        first = b.key_input[None] if origin == 0 else y[origin - 1 : origin, :, lay.key :]
        inputs = torch.cat([first.to(self.wide), y[origin : end - 1, :, lay.key :].to(self.wide)])
        inputs.masked_fill_(reset[..., None], 0.0)
        rows = b.rows.part(0, n)
        rows.keys[:], b.key_scale[:, :, :n] = self._unit_rows(inputs, w.folded.key_bias_P)
        held = (w.flags[time] & HOLD).bool().t()[:, None]
        beta = torch.sigmoid(y[time, :, lay.beta : lay.decay].to(self.wide)).permute(1, 2, 0)
        error = self._heads(y[time, :, lay.value : lay.beta])
        rows.updates[:] = error * beta.masked_fill(held, 0.0)[..., None]
        step = y[time, :, lay.decay : lay.key].to(self.wide) + w.folded.dt_bias_H
        g = (-torch.exp(w.folded.A_log_H) * functional.softplus(step)).permute(1, 2, 0)
        g = g.masked_fill(held, 0.0)
        for i, layer in enumerate(w.folded.layers):
            columns = w.y[i][time, :, lay.query : lay.read_gate]
            q, scale = self._unit_rows(columns, layer.query_bias_P)
            b.grads.queries[i, :, :, :n], b.query_scale[i, :, :, :n] = q, scale
        for c, (start, stop) in enumerate(block):
            lo, hi = start - origin, stop - origin
            b.memories[c, reset[lo]] = 0.0
            torch.cumsum(g[..., lo:hi], -1, out=rows.decay[..., lo:hi])
            queries = b.grads.queries[..., lo:hi, :]
            b.outputs[..., lo:hi, :] = layer_outputs(b.memories[c], rows.part(lo, hi), queries)
            b.memories[c + 1] = b.memories[c]
            flush(b.memories[c + 1], rows.part(lo, hi))

    def _heads(self, x_nBX: Tensor) -> Tensor:
        """(n,B,H·X) → (B,H,n,X)."""
        heads: Tensor = x_nBX.to(self.wide).unflatten(-1, (self.w.layout.H, -1))
        return heads.permute(1, 2, 0, 3)

    def _unit_rows(self, x_nBP: Tensor, bias_P: Tensor) -> tuple[Tensor, Tensor]:
        positive = self._heads(functional.relu(x_nBP.to(self.wide) + bias_P))
        norm = torch.rsqrt(positive.square().sum(-1, keepdim=True) + L2_EPS)
        return positive * norm, norm.squeeze(-1)

    def enter_chunk(self, chunk: int) -> None:
        torch.sum(self.b.lam * self.b.memories[chunk + 1], (-1, -2), out=self.b.grads.phi)

    def leave_chunk(self, chunk: int, start: int, lo: int, hi: int) -> None:
        b, part = self.b, (..., slice(lo, hi), slice(None))
        flush_backward(
            b.lam, b.rows.part(lo, hi), b.grads.queries[part], b.grads.douts[part], b.grads.w[part]
        )
        if self.any_flags:
            b.lam.masked_fill_((self.w.flags[start] & RESET).bool()[:, None, None, None], 0.0)

    def predict_backward(self, layer: int, at: Step) -> None:
        w, b, lay, t, g = self.w, self.b, self.w.layout, at.t, at.s
        y = w.y[layer][t][:, : lay.D] + w.folded.layers[layer].gate_bias_D
        gate = torch.sigmoid(y.to(self.wide))
        dgate = b.dc * self._layer_input(layer, t) * gate * (1.0 - gate)
        dout, dc, hold = b.dc, b.dc * gate, self._rows(t, HOLD)
        if hold is not None:
            dgate, dout = dgate.masked_fill(hold, 0.0), dout.masked_fill(hold, 0.0)
            dc = torch.where(hold, b.dc, dc)
        b.dy[layer][g][:, : lay.D] = dgate
        b.dout[layer][g] = dout
        b.dc.copy_(dc)

    def mix_backward(self, layer: int, at: Step, dz: Tensor) -> None:
        w, b, lay, t, g = self.w, self.b, self.w.layout, at.t, at.s
        y_BN, dy_BN, z_BZ = w.y[layer][t], b.dy[layer][g], b.z[layer][g]
        a, gate_b = (x.to(self.wide) for x in y_BN[:, lay.D : lay.query].chunk(2, 1))
        dz = dz.to(self.wide)
        sig = torch.sigmoid(a)
        dact = dz[:, : lay.F]
        z_BZ[:, : lay.F] = a * sig * gate_b
        dy_BN[:, lay.D : lay.D + lay.F] = dact * gate_b * sig * (1.0 + a * (1.0 - sig))
        dy_BN[:, lay.D + lay.F : lay.query] = dact * a * sig
        if not lay.H:
            return
        r = y_BN[:, lay.read_gate : lay.value].to(self.wide)
        sig = torch.sigmoid(r)
        out_BQ = b.outputs[layer, :, :, g].flatten(1)
        scale = torch.rsqrt(out_BQ.square().mean(-1, keepdim=True) + RMS_EPS)
        unit = out_BQ * scale
        dgated = dz[:, lay.F :]
        z_BZ[:, lay.F :] = r * sig * unit
        dy_BN[:, lay.read_gate : lay.value] = dgated * unit * sig * (1.0 + r * (1.0 - sig))
        dunit = dgated * r * sig
        dout_BQ = scale * (dunit - unit * (dunit * unit).mean(-1, keepdim=True))
        hold = self._rows(t, HOLD)
        if hold is not None:
            dout_BQ = dout_BQ.masked_fill(hold, 0.0)
        dout_BHU = dout_BQ.unflatten(-1, (lay.H, -1))
        b.grads.douts[layer, :, :, g] = dout_BHU
        dq = self._memory_times(dout_BHU, g, at)
        q = b.grads.queries[layer, :, :, g]
        b.grads.phi += (dq * q).sum(-1)
        dy_BN[:, lay.query : lay.read_gate] = self._unit_backward(dq, q, b.query_scale[layer], g)
        if layer == 0:
            self._write_backward(at)

    def _memory_times(self, x_BHU: Tensor, s: int, at: Step) -> Tensor:
        """(B,H,K): M x, the memory after step s of the block (at.lo − 1: the chunk's start)."""
        product = torch.einsum("bhku,bhu->bhk", self.b.memories[at.chunk], x_BHU)
        if s < at.lo:
            return product
        rows = self.b.rows.part(at.lo, s + 1)
        G = rows.decay[:, :, -1:]
        score = torch.einsum("bhcu,bhu->bhc", rows.updates, x_BHU) * torch.exp(G - rows.decay)
        return torch.exp(G) * product + torch.einsum("bhc,bhck->bhk", score, rows.keys)

    @staticmethod
    def _unit_backward(dx: Tensor, x: Tensor, scale: Tensor, j: int) -> Tensor:
        """(B,P) through x = l2(relu(·)): relu's mask is x > 0."""
        through = scale[:, :, j, None] * (dx - x * (x * dx).sum(-1, keepdim=True))
        return (through * (x > 0)).flatten(1)

    def _write_backward(self, at: Step) -> None:
        w, b, lay, rows, grads = self.w, self.b, self.w.layout, self.b.rows, self.b.grads
        t, g, j, n = at.t, at.s, at.s, at.hi
        y_BN, dy_BN = w.y[0][t], b.dy[0][g]
        G = rows.decay[:, :, j, None]
        key, update = rows.keys[:, :, j], rows.updates[:, :, j]
        carry = torch.exp(rows.decay[:, :, n - 1, None] - G)
        later = torch.exp(rows.decay[:, :, j:n] - G)
        du = carry * torch.einsum("bhku,bhk->bhu", b.lam, key)
        dk = carry * torch.einsum("bhku,bhu->bhk", b.lam, update)
        for q, do in zip(grads.queries, grads.douts, strict=True):
            q, do = q[:, :, j:n], do[:, :, j:n]
            du += torch.einsum("bhc,bhcu->bhu", later * torch.einsum("bhck,bhk->bhc", q, key), do)
            dk += torch.einsum(
                "bhc,bhck->bhk", later * torch.einsum("bhcu,bhu->bhc", do, update), q
            )
        if j + 1 < n:
            # w_i enters one step before its own decay: exponents G_{i−1} − G_j for i > j.
            keys, ws, lag = rows.keys[:, :, j + 1 : n], grads.w[:, :, j + 1 : n], later[..., :-1]
            du -= torch.einsum("bhc,bhcu->bhu", lag * torch.einsum("bhck,bhk->bhc", keys, key), ws)
            dk -= torch.einsum(
                "bhc,bhck->bhk", lag * torch.einsum("bhcu,bhu->bhc", ws, update), keys
            )
        beta = torch.sigmoid(y_BN[:, lay.beta : lay.decay].to(self.wide))
        hold, reset = self._rows(t, HOLD), self._rows(t, RESET)
        if hold is not None:
            beta = beta.masked_fill(hold, 0.0)
        dvalue = beta[..., None] * du
        grads.w[:, :, j] = dvalue
        mw = self._memory_times(dvalue, j - 1, at)
        dk -= mw
        error = y_BN[:, lay.value : lay.beta].to(self.wide).unflatten(-1, (lay.H, -1))
        dbeta = (du * error).sum(-1) * beta * (1.0 - beta)
        dg = grads.phi - (update * du).sum(-1)
        grads.phi.copy_(dg - (mw * key).sum(-1))
        rate = -torch.exp(w.folded.A_log_H)
        step = y_BN[:, lay.decay : lay.key].to(self.wide) + w.folded.dt_bias_H
        if hold is not None:
            dg = dg.masked_fill(hold, 0.0)
        b.dA_log += (dg * rate * functional.softplus(step)).sum(0)
        dy_BN[:, lay.value : lay.beta] = dvalue.flatten(1)
        dy_BN[:, lay.beta : lay.decay] = dbeta
        dy_BN[:, lay.decay : lay.key] = dg * rate * torch.sigmoid(step)
        dy_BN[:, lay.key :] = b.dkey
        dkey = self._unit_backward(dk, key, b.key_scale, j)
        if hold is not None:
            dkey = dkey.masked_fill(hold, 0.0)
        b.dkey_bias += dkey.sum(0)
        b.dkey.copy_(dkey if reset is None else dkey.masked_fill(reset, 0.0))

    def _norm_backward(self, dunit: Tensor, unit: Tensor, scale_B: Tensor) -> Tensor:
        dunit, unit = dunit.to(self.wide), unit.to(self.wide)
        return scale_B[:, None] * (dunit - unit * (dunit * unit).mean(-1, keepdim=True))

    def between_backward(self, layer: int, at: Step, dunit_BD: Tensor) -> None:
        w, t = self.w, at.t
        through = self._norm_backward(dunit_BD, w.mid[layer - 1][t], w.mid_scale[layer - 1][t])
        hold = self._rows(t, HOLD)
        self.b.dc += through if hold is None else through.masked_fill(hold, 0.0)

    def state_backward(self, at: Step, dunit_BD: Tensor) -> None:
        w, b, t, g = self.w, self.b, at.t, at.s
        ds = self._norm_backward(dunit_BD, w.unit[t], w.unit_scale[t]) + b.ds_carry
        hold, reset = self._rows(t, HOLD), self._rows(t, RESET)
        if hold is not None:
            b.ds_carry.copy_(torch.where(hold, ds, 0.0))
            ds = torch.where(hold, 0.0, ds + b.dc)
        else:
            b.ds_carry.zero_()
            ds = ds + b.dc
        b.ddrive[t] = ds
        gate = torch.sigmoid(b.ground_y[g].to(self.wide) + w.folded.ground_bias_D)
        before = w.predicted[t] if reset is None else w.predicted[t].masked_fill(reset, 0.0)
        b.dground[g] = ds * before * gate * (1.0 - gate)
        dc = ds * gate
        if hold is not None and reset is not None:
            dc = torch.where(hold, b.dc, dc).masked_fill(reset, 0.0)
            b.ds_carry.masked_fill_(reset, 0.0)
        b.dc.copy_(dc)

    def ground_backward(self, at: Step, dunit_BD: Tensor) -> None:
        b, t, g = self.b, at.t, at.s
        through = self._norm_backward(dunit_BD, b.ground_in[g], b.ground_scale[g])
        reset = self._rows(t, RESET)
        b.dc += through if reset is None else through.masked_fill(reset, 0.0)
        if t:
            b.dc += b.dpredicted[t - 1]


def grounded_loop_fused(
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
    return run_window(
        TorchEngine, drive_BTD, params, predicted_BD, grounded_BD, memory_BHKU, hold_BT, reset_BT,
        observe,
    )  # fmt: skip
