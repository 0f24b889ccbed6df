"""The backward steps of the window form as numba kernels: gates, norms and the SwiGLU.

The equations are those of fused.py's engine; arrays are numpy views of the window's buffers (bf16
as uint16). The memory's backward is in memory_kernels.py.

Legend: D d_state, F d_ffn, t a step of the window, s the same step in its block.
"""

from __future__ import annotations

from typing import Any

from palimpsest.ops.grounded_loop.forward_kernels import HOLD, RESET, _fill
from palimpsest.ops.simd import get, jit, put, sigmoid

__all__ = ["between", "ground_gate", "ground_norm", "layer_gate", "plain_mix", "swiglu_backward"]


@jit
def layer_gate(
    t: int, s: int, y: Any, bias: Any, below: Any, below_scale: Any, dc: Any, dy: Any, dout: Any,
    flags: Any, one: Any,
) -> None:  # fmt: skip
    """Gate's columns of dy and dout from dc; dc of the layer's input (gate path)."""
    for row in range(dc.shape[0]):
        y_D, u_D, dc_D, dy_D, do_D = y[t, row], below[t, row], dc[row], dy[s, row], dout[s, row]
        D = dc_D.shape[0]
        if flags[t, row] & HOLD:
            for i in range(D):
                put(dy_D, i, one - one)
            for i in range(D):
                put(do_D, i, one - one)
            continue
        for i in range(D):
            put(do_D, i, dc_D[i])
        rms = one / below_scale[t, row]
        for i in range(D):  # two loops: a loop over more arrays would not vectorise
            gate = sigmoid(get(y_D, i) + bias[i])
            put(dy_D, i, dc_D[i] * (get(u_D, i) * rms) * gate * (one - gate))
        for i in range(D):
            dc_D[i] *= sigmoid(get(y_D, i) + bias[i])


@jit
def swiglu_backward(y_N: Any, dz_Z: Any, dy_N: Any, z_Z: Any, D: int, F: int, one: Any) -> None:
    a, b = y_N[D : D + F], y_N[D + F : D + F + F]
    da, db = dy_N[D : D + F], dy_N[D + F : D + F + F]
    for i in range(F):  # two loops: a loop over more arrays would not vectorise
        x = get(a, i)
        sig = sigmoid(x)
        put(da, i, get(dz_Z, i) * get(b, i) * sig * (one + x * (one - sig)))
    for i in range(F):
        x = get(a, i)
        act = x * sigmoid(x)
        put(db, i, get(dz_Z, i) * act)
        put(z_Z, i, act * get(b, i))


@jit
def plain_mix(t: int, s: int, y: Any, dz: Any, dy: Any, z: Any, D: int, F: int, one: Any) -> None:
    """Through z = silu(a) · b, for a block without memory."""
    for row in range(dz.shape[0]):
        swiglu_backward(y[t, row], dz[row], dy[s, row], z[s, row], D, F, one)


@jit
def _through_norm(dunit: Any, unit: Any, factor: Any, out: Any, per_d: Any, one: Any) -> None:
    """out += through unit = x · factor, factor = 1/rms(x)."""
    along = one - one
    for i in range(out.shape[0]):
        along += get(dunit, i) * get(unit, i)
    along *= per_d
    for i in range(out.shape[0]):
        out[i] += factor * (get(dunit, i) - get(unit, i) * along)


@jit
def between(
    t: int, dunit: Any, unit: Any, scale: Any, dc: Any, flags: Any, one: Any, per_d: Any
) -> None:
    """dc of the layer below, through its norm."""
    for row in range(dc.shape[0]):
        if not flags[t, row] & HOLD:
            _through_norm(dunit[row], unit[t, row], scale[t, row], dc[row], per_d, one)


@jit
def ground_gate(
    t: int, s: int, dunit: Any, unit: Any, scale: Any, dc: Any, ds_carry: Any, ddrive: Any,
    ground_y: Any, bias: Any, predicted: Any, dground: Any, flags: Any, one: Any, per_d: Any,
) -> None:  # fmt: skip
    """ds through the norm; ddrive, dground, and dc of the prediction before (gate path)."""
    zero = one - one
    for row in range(dc.shape[0]):
        flag, dc_D, ds_D, dd_D = flags[t, row], dc[row], ds_carry[row], ddrive[t, row]
        dg_D = dground[s, row]
        D = dc_D.shape[0]
        _through_norm(dunit[row], unit[t, row], scale[t, row], ds_D, per_d, one)
        if flag & HOLD:
            _fill(dd_D, zero)
            for i in range(D):
                put(dg_D, i, zero)
        else:
            for i in range(D):
                dd_D[i] = ds_D[i] + dc_D[i]
            _fill(ds_D, zero)
            if not flag & RESET:
                y_D, p_D = ground_y[s, row], predicted[t, row]
                for i in range(D):
                    gate = sigmoid(get(y_D, i) + bias[i])
                    put(dg_D, i, dd_D[i] * p_D[i] * gate * (one - gate))
                for i in range(D):
                    dc_D[i] = dd_D[i] * sigmoid(get(y_D, i) + bias[i])
        if flag & RESET:
            for i in range(D):
                put(dg_D, i, zero)
            _fill(dc_D, zero)
            _fill(ds_D, zero)


@jit
def ground_norm(
    t: int, s: int, dunit: Any, ground_in: Any, ground_scale: Any, dc: Any, dpredicted: Any,
    flags: Any, one: Any, per_d: Any,
) -> None:  # fmt: skip
    """dc of the prediction before, through the ground product, plus that output's gradient."""
    for row in range(dc.shape[0]):
        dc_D = dc[row]
        if not flags[t, row]:
            _through_norm(dunit[row], ground_in[s, row], ground_scale[s, row], dc_D, per_d, one)
        if t:
            before_D = dpredicted[t - 1, row]
            for i in range(dc_D.shape[0]):
                dc_D[i] += before_D[i]
