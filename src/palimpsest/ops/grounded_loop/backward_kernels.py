"""The backward steps of the window form as numba kernels: one call between two products.

The equations are those of fused.py's engine and of chunks.py; arrays are numpy views of the
window's buffers (bf16 as uint16).

Legend: T steps, B rows, D d_state, F d_ffn, H heads, K d_key, U d_val, P = H·K, Q = H·U, L layers,
C steps of a chunk, t a step, j its place in the chunk, n steps in this chunk, g a row of the group.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from palimpsest.ops.grounded_loop.forward_kernels import HOLD, RESET, _axpy, _dot
from palimpsest.ops.simd import OPTIONS, exp, get, put, sigmoid, softplus

__all__ = [
    "between",
    "ground_gate",
    "ground_norm",
    "layer_gate",
    "memory_mix",
    "plain_mix",
    "write",
]

jit = numba.njit(**OPTIONS)


@jit  # type: ignore[untyped-decorator]
def layer_gate(
    t: int, g: int, y: Any, bias: Any, below: Any, below_scale: Any, dc: Any, dy: Any, dout: Any,
    flags: Any, one: Any,
) -> None:  # fmt: skip
    """Gate's columns of dy and dout from dc; dc of the layer's input (gate path)."""
    for row in range(dc.shape[0]):
        y_D, u_D, dc_D, dy_D, do_D = y[t, row], below[t, row], dc[row], dy[g, row], dout[g, row]
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
        for i in range(D):
            gate = sigmoid(get(y_D, i) + bias[i])
            put(dy_D, i, dc_D[i] * (get(u_D, i) * rms) * gate * (one - gate))
            dc_D[i] *= gate


@jit  # type: ignore[untyped-decorator]
def _swiglu(y_N: Any, dz_Z: Any, dy_N: Any, z_Z: Any, D: int, F: int, one: Any) -> None:
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


@jit  # type: ignore[untyped-decorator]
def plain_mix(t: int, g: int, y: Any, dz: Any, dy: Any, z: Any, D: int, F: int, one: Any) -> None:
    """Through z = silu(a) · b, for a block without memory."""
    for row in range(dz.shape[0]):
        _swiglu(y[t, row], dz[row], dy[g, row], z[g, row], D, F, one)


@jit  # type: ignore[untyped-decorator]
def _times(
    memory_KU: Any, x_U: Any, out_K: Any, j: int, keys_CK: Any, updates_CU: Any, G_C: Any, one: Any
) -> None:
    """out = M_j x (j = −1: the chunk's start)."""
    zero = one - one
    carry = exp(G_C[j]) if j >= 0 else one
    for i in range(out_K.shape[0]):
        out_K[i] = carry * _dot(memory_KU[i], x_U, zero)
    for i in range(j + 1):
        c = exp(G_C[j] - G_C[i]) * _dot(updates_CU[i], x_U, zero)
        _axpy(out_K, c, keys_CK[i])


@jit  # type: ignore[untyped-decorator]
def _through_unit(dx: Any, x: Any, scale: Any, dy: Any, one: Any) -> None:
    """dy through x = l2(relu(y)); relu's mask is x > 0."""
    zero = one - one
    along = _dot(dx, x, zero)
    for i in range(x.shape[0]):
        v = scale * (dx[i] - x[i] * along)
        put(dy, i, zero if x[i] <= zero else v)


@jit  # type: ignore[untyped-decorator]
def memory_mix(
    t: int, j: int, g: int, y: Any, dz: Any, dy: Any, z: Any, outputs: Any, queries: Any,
    douts: Any, query_scale: Any, phi: Any, memory: Any, keys: Any, updates: Any, decay: Any,
    flags: Any, at: Any, one: Any, rms_eps: Any, per_q: Any,
) -> None:  # fmt: skip
    """Through z = [silu(a) · b | silu(r) · norm(Mᵀq)]: dy of a, b, r and q; dout of the chunk."""
    D, F, H, K, U, c_query, c_gate, _, _, _, _ = at
    Q = H * U
    zero = one - one
    dq = np.empty(K, memory.dtype)
    out, dout = np.empty(Q, memory.dtype), np.empty(Q, memory.dtype)
    for row in range(dz.shape[0]):
        y_N, dz_Z, dy_N, z_Z = y[t, row], dz[row], dy[g, row], z[g, row]
        if flags[t, row] & HOLD:
            for i in range(D, c_gate + Q):
                put(dy_N, i, zero)
            for i in range(F + Q):
                put(z_Z, i, zero)
            for h in range(H):
                douts[row, h, j] = zero
            continue
        _swiglu(y_N, dz_Z, dy_N, z_Z, D, F, one)
        for h in range(H):
            out[h * U : h * U + U] = outputs[row, h, j]
        factor = one / math.sqrt(_dot(out, out, zero) * per_q + rms_eps)
        r_Q, dr_Q = y_N[c_gate : c_gate + Q], dy_N[c_gate : c_gate + Q]
        dgated, gated = dz_Z[F : F + Q], z_Z[F : F + Q]
        for i in range(Q):
            r = get(r_Q, i)
            dout[i] = get(dgated, i) * r * sigmoid(r)
        for i in range(Q):
            r = get(r_Q, i)
            put(gated, i, r * sigmoid(r) * (out[i] * factor))
        for i in range(Q):
            r = get(r_Q, i)
            sig = sigmoid(r)
            put(dr_Q, i, get(dgated, i) * (out[i] * factor) * sig * (one + r * (one - sig)))
        along = _dot(dout, out, zero) * factor * factor * per_q
        for i in range(Q):
            dout[i] = factor * (dout[i] - out[i] * along)
        for h in range(H):
            dout_U, q_K = douts[row, h, j], queries[row, h, j]
            dout_U[:] = dout[h * U : h * U + U]
            _times(memory[row, h], dout_U, dq, j, keys[row, h], updates[row, h], decay[row, h], one)
            phi[row, h] += _dot(dq, q_K, zero)
            columns = dy_N[c_query + h * K : c_query + h * K + K]
            _through_unit(dq, q_K, query_scale[row, h, j], columns, one)


@jit  # type: ignore[untyped-decorator]
def _both_sides(lam_KU: Any, k_K: Any, u_U: Any, du_U: Any, dk_K: Any, one: Any) -> None:
    """Λᵀk and Λu in one pass over Λ."""
    zero = one - one
    du_U[:] = zero
    for i in range(k_K.shape[0]):
        k, row, total = k_K[i], lam_KU[i], zero
        for u in range(u_U.shape[0]):
            du_U[u] += k * row[u]
            total += row[u] * u_U[u]
        dk_K[i] = total


@jit  # type: ignore[untyped-decorator]
def write(
    t: int, j: int, g: int, n: int, y: Any, dy: Any, rate: Any, dt_bias: Any, dkey: Any,
    dkey_bias: Any, dA_log: Any, lam: Any, queries: Any, douts: Any, ws: Any, phi: Any,
    key_scale: Any, memory: Any, keys: Any, updates: Any, decay: Any, flags: Any, at: Any, one: Any,
) -> None:  # fmt: skip
    """Through M ← e^g M + β k ⊗ (v − Mᵀk): dy of v, β, decay and the key; w = β·du."""
    _, _, H, K, U, _, _, c_value, c_beta, c_decay, c_key = at
    zero = one - one
    du, dk, mw = np.empty(U, memory.dtype), np.empty(K, memory.dtype), np.empty(K, memory.dtype)
    for row in range(dkey.shape[0]):
        y_N, dy_N, dkey_P = y[t, row], dy[g, row], dkey[row]
        dy_N[c_key : c_key + H * K] = dkey_P
        if flags[t, row] & HOLD:
            for i in range(c_value, c_key):
                put(dy_N, i, zero)
            for i in range(H * K):
                put(dkey_P, i, zero)
            for h in range(H):
                ws[row, h, j] = zero
            continue
        for h in range(H):
            G_C, keys_CK, updates_CU, w_CU = decay[row, h], keys[row, h], updates[row, h], ws[row, h]
            key, update, now = keys_CK[j], updates_CU[j], G_C[j]
            _both_sides(lam[row, h], key, update, du, dk, one)
            carry = exp(G_C[n - 1] - now)
            for u in range(U):
                du[u] *= carry
            for i in range(K):
                dk[i] *= carry
            for layer in range(queries.shape[0]):
                for i in range(j, n):
                    c = exp(G_C[i] - now)
                    q_K, do_U = queries[layer, row, h, i], douts[layer, row, h, i]
                    _axpy(du, c * _dot(q_K, key, zero), do_U)
                    _axpy(dk, c * _dot(do_U, update, zero), q_K)
            for i in range(j + 1, n):
                c = exp(G_C[i - 1] - now)
                _axpy(du, -c * _dot(keys_CK[i], key, zero), w_CU[i])
                _axpy(dk, -c * _dot(w_CU[i], update, zero), keys_CK[i])
            beta = sigmoid(get(y_N, c_beta + h))
            w_U, at_v = w_CU[j], c_value + h * U
            error_U, dvalue_U = y_N[at_v : at_v + U], dy_N[at_v : at_v + U]
            dbeta = zero
            for u in range(U):
                dbeta += du[u] * get(error_U, u)
                w_U[u] = beta * du[u]
            for u in range(U):
                put(dvalue_U, u, w_U[u])
            _times(memory[row, h], w_U, mw, j - 1, keys_CK, updates_CU, G_C, one)
            dg = phi[row, h] - _dot(update, du, zero)
            phi[row, h] = dg - _dot(mw, key, zero)
            step = get(y_N, c_decay + h) + dt_bias[h]
            dA_log[h] += dg * rate[h] * softplus(step)
            put(dy_N, c_beta + h, dbeta * beta * (one - beta))
            put(dy_N, c_decay + h, dg * rate[h] * sigmoid(step))
            for i in range(K):
                dk[i] -= mw[i]
            _through_unit(dk, key, key_scale[row, h, j], mw, one)
            bias_K, dkey_K = dkey_bias[h * K : h * K + K], dkey_P[h * K : h * K + K]
            for i in range(K):
                bias_K[i] += mw[i]
            for i in range(K):
                put(dkey_K, i, mw[i])
            if flags[t, row] & RESET:
                for i in range(K):
                    put(dkey_K, i, zero)


@jit  # type: ignore[untyped-decorator]
def _through_norm(dunit: Any, unit: Any, factor: Any, out: Any, per_d: Any, one: Any) -> None:
    """out += through unit = x · factor, factor = 1/rms(x)."""
    along = one - one
    for i in range(out.shape[0]):
        along += get(dunit, i) * get(unit, i)
    along *= per_d
    for i in range(out.shape[0]):
        out[i] += factor * (get(dunit, i) - get(unit, i) * along)


@jit  # type: ignore[untyped-decorator]
def between(
    t: int, dunit: Any, unit: Any, scale: Any, dc: Any, flags: Any, one: Any, per_d: Any
) -> None:
    """dc of the layer below, through its norm."""
    for row in range(dc.shape[0]):
        if not flags[t, row] & HOLD:
            _through_norm(dunit[row], unit[t, row], scale[t, row], dc[row], per_d, one)


@jit  # type: ignore[untyped-decorator]
def ground_gate(
    t: int, g: int, dunit: Any, unit: Any, scale: Any, dc: Any, ds_carry: Any, ddrive: Any,
    ground_y: Any, bias: Any, predicted: Any, dground: Any, flags: Any, one: Any, per_d: Any,
) -> None:  # fmt: skip
    """ds through the norm; ddrive, dground, and dc of the prediction before (gate path)."""
    zero = one - one
    for row in range(dc.shape[0]):
        flag, dc_D, ds_D, dd_D = flags[t, row], dc[row], ds_carry[row], ddrive[t, row]
        dg_D = dground[g, row]
        D = dc_D.shape[0]
        _through_norm(dunit[row], unit[t, row], scale[t, row], ds_D, per_d, one)
        if flag & HOLD:
            dd_D[:] = zero
            for i in range(D):
                put(dg_D, i, zero)
        else:
            for i in range(D):
                dd_D[i] = ds_D[i] + dc_D[i]
            ds_D[:] = zero
            if not flag & RESET:
                y_D, p_D = ground_y[g, row], predicted[t, row]
                for i in range(D):
                    gate = sigmoid(get(y_D, i) + bias[i])
                    put(dg_D, i, dd_D[i] * p_D[i] * gate * (one - gate))
                for i in range(D):
                    dc_D[i] = dd_D[i] * sigmoid(get(y_D, i) + bias[i])
        if flag & RESET:
            for i in range(D):
                put(dg_D, i, zero)
            dc_D[:] = zero
            ds_D[:] = zero


@jit  # type: ignore[untyped-decorator]
def ground_norm(
    t: int, g: int, dunit: Any, ground_in: Any, ground_scale: Any, dc: Any, dpredicted: Any,
    flags: Any, one: Any, per_d: Any,
) -> None:  # fmt: skip
    """dc of the prediction before, through the ground product, plus that output's gradient."""
    for row in range(dc.shape[0]):
        dc_D = dc[row]
        if not flags[t, row]:
            _through_norm(dunit[row], ground_in[g, row], ground_scale[g, row], dc_D, per_d, one)
        if t:
            before_D = dpredicted[t - 1, row]
            for i in range(dc_D.shape[0]):
                dc_D[i] += before_D[i]
