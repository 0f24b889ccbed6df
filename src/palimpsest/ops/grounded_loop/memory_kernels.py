"""The memory's backward in the window form as numba kernels.

The equations are those of chunks.py; arrays are numpy views of the window's buffers (bf16 as
uint16).

Legend: D d_state, F d_ffn, H heads, K d_key, U d_val, Q = H·U, S steps of a block, t a step of the
window, s the same step in the block, [lo, hi) its chunk in the block.
"""

from __future__ import annotations

import math
from typing import Any

from palimpsest.ops.grounded_loop.backward_kernels import swiglu_backward
from palimpsest.ops.grounded_loop.forward_kernels import (
    HOLD,
    RESET,
    _add_rows,
    _axpy,
    _copy,
    _dot,
    _fill,
    _read_one,
    _read_two,
    _unit_relu,
)
from palimpsest.ops.simd import exp, get, jit, put, sigmoid, softplus

__all__ = [
    "enter_chunk",
    "leave_chunk",
    "memory_mix",
    "recompute_outputs",
    "recompute_rows",
    "write",
]


@jit
def _fill2(out: Any, value: Any) -> None:
    for i in range(out.shape[0]):
        _fill(out[i], value)


@jit
def _copy2(out: Any, x: Any) -> None:
    for i in range(out.shape[0]):
        _copy(out[i], x[i])


@jit
def _times(
    memory_KU: Any, x_U: Any, out_K: Any, lo: int, s: int, keys_SK: Any, updates_SU: Any,
    G_S: Any, one: Any,
) -> None:  # fmt: skip
    """out = M x, the memory after step s of the block (lo − 1: the chunk's start)."""
    zero = one - one
    carry = exp(G_S[s]) if s >= lo else one
    K = out_K.shape[0]
    for i in range(0, K - 3, 4):  # four rows share the loads of x
        m0, m1, m2, m3 = memory_KU[i], memory_KU[i + 1], memory_KU[i + 2], memory_KU[i + 3]
        a0, a1, a2, a3 = zero, zero, zero, zero
        for u in range(x_U.shape[0]):
            a0 += m0[u] * x_U[u]
            a1 += m1[u] * x_U[u]
            a2 += m2[u] * x_U[u]
            a3 += m3[u] * x_U[u]
        out_K[i], out_K[i + 1] = carry * a0, carry * a1
        out_K[i + 2], out_K[i + 3] = carry * a2, carry * a3
    for i in range(K - K % 4, K):
        out_K[i] = carry * _dot(memory_KU[i], x_U, zero)
    for i in range(lo, s + 1):
        c = exp(G_S[s] - G_S[i]) * _dot(updates_SU[i], x_U, zero)
        _axpy(out_K, c, keys_SK[i])


@jit
def _through_unit(dx: Any, x: Any, scale: Any, dy: Any, one: Any) -> None:
    """dy through x = l2(relu(y)); relu's mask is x > 0."""
    zero = one - one
    along = _dot(dx, x, zero)
    for i in range(x.shape[0]):
        v = scale * (dx[i] - x[i] * along)
        put(dy, i, zero if x[i] <= zero else v)


@jit
def memory_mix(
    t: int, s: int, lo: int, y: Any, dz: Any, dy: Any, z: Any, outputs: Any, queries: Any,
    douts: Any, query_scale: Any, phi: Any, memory: Any, keys: Any, updates: Any, decay: Any,
    flags: Any, scratch: Any, at: Any, one: Any, rms_eps: Any, per_q: Any,
) -> None:  # fmt: skip
    """Through z = [silu(a) · b | silu(r) · norm(Mᵀq)]: dy of a, b, r and q; dout of the chunk."""
    D, F, H, K, U, c_query, c_gate, _, _, _, _ = at
    Q = H * U
    zero = one - one
    dq, out, dout = scratch[0, :K], scratch[1, :Q], scratch[2, :Q]
    for row in range(dz.shape[0]):
        y_N, dz_Z, dy_N, z_Z = y[t, row], dz[row], dy[s, row], z[s, row]
        if flags[t, row] & HOLD:
            for i in range(D, c_gate + Q):
                put(dy_N, i, zero)
            for i in range(F + Q):
                put(z_Z, i, zero)
            for h in range(H):
                _fill(douts[row, h, s], zero)
            continue
        swiglu_backward(y_N, dz_Z, dy_N, z_Z, D, F, one)
        for h in range(H):
            _copy(out[h * U : h * U + U], outputs[row, h, s])
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
            dout_U, q_K = douts[row, h, s], queries[row, h, s]
            _copy(dout_U, dout[h * U : h * U + U])
            _times(
                memory[row, h], dout_U, dq, lo, s, keys[row, h], updates[row, h], decay[row, h], one
            )
            phi[row, h] += _dot(dq, q_K, zero)
            columns = dy_N[c_query + h * K : c_query + h * K + K]
            _through_unit(dq, q_K, query_scale[row, h, s], columns, one)


@jit
def recompute_rows(
    origin: int, starts: Any, y: Any, key_input: Any, key_bias: Any, rate: Any, dt_bias: Any,
    keys: Any, key_scale: Any, updates: Any, decay: Any, memories: Any, flags: Any, at: Any,
    one: Any, l2_eps: Any, low: int, high: int,
) -> None:  # fmt: skip
    """A block's keys, updates, decay, and the memory at each chunk's start and at the end.

    Chunk c of the block is the steps [starts[c], starts[c + 1]); memories[0] is given.
    Rows [low, high), so that threads can share a block's work.
    """
    _, _, H, K, U, _, _, c_value, c_beta, c_decay, c_key = at
    zero = one - one
    for row in range(low, high):
        for h in range(H):
            G_S, keys_SK, updates_SU = decay[row, h], keys[row, h], updates[row, h]
            bias, at_k, at_v = key_bias[h * K : h * K + K], c_key + h * K, c_value + h * U
            for c in range(starts.shape[0] - 1):
                total = zero
                for s in range(starts[c], starts[c + 1]):
                    t = origin + s
                    y_N, flag, key, update = y[t, row], flags[t, row], keys_SK[s], updates_SU[s]
                    if flag & RESET:
                        _fill2(memories[c, row, h], zero)
                        _fill(key, zero)
                        key_scale[row, h, s] = _unit_relu(key, bias, key, one, l2_eps)
                    elif t:
                        given = y[t - 1, row, at_k : at_k + K]
                        key_scale[row, h, s] = _unit_relu(given, bias, key, one, l2_eps)
                    else:
                        first = key_input[row, h * K : h * K + K]
                        key_scale[row, h, s] = _unit_relu(first, bias, key, one, l2_eps)
                    if flag & HOLD:
                        _fill(update, zero)
                    else:
                        beta = sigmoid(get(y_N, c_beta + h))
                        error = y_N[at_v : at_v + U]
                        for u in range(U):
                            update[u] = beta * get(error, u)
                        total += rate[h] * softplus(get(y_N, c_decay + h) + dt_bias[h])
                    G_S[s] = total
                after = memories[c + 1, row, h]
                _copy2(after, memories[c, row, h])
                _add_rows(after, keys_SK, updates_SU, G_S, starts[c], starts[c + 1], one)


@jit
def recompute_outputs(
    origin: int, starts: Any, y: Any, query_bias: Any, queries: Any, query_scale: Any,
    outputs: Any, keys: Any, updates: Any, decay: Any, memories: Any, at: Any, one: Any,
    l2_eps: Any, low: int, high: int,
) -> None:  # fmt: skip
    """A block's queries and what they read, of one layer."""
    _, _, H, K, U, c_query, _, _, _, _, _ = at
    zero = one - one
    for row in range(low, high):
        for h in range(H):
            G_S, keys_SK, updates_SU = decay[row, h], keys[row, h], updates[row, h]
            bias, at_q = query_bias[h * K : h * K + K], c_query + h * K
            for c in range(starts.shape[0] - 1):
                lo, hi, memory = starts[c], starts[c + 1], memories[c, row, h]
                for s in range(lo, hi):
                    given = y[origin + s, row, at_q : at_q + K]
                    query_scale[row, h, s] = _unit_relu(
                        given, bias, queries[row, h, s], one, l2_eps
                    )
                for s in range(lo, hi - 1, 2):  # two steps share the loads of M
                    _read_two(
                        memory, queries[row, h, s], queries[row, h, s + 1], outputs[row, h, s],
                        outputs[row, h, s + 1], zero,
                    )  # fmt: skip
                if (hi - lo) % 2:
                    _read_one(memory, queries[row, h, hi - 1], outputs[row, h, hi - 1], zero)
                for s in range(lo, hi):
                    query, out = queries[row, h, s], outputs[row, h, s]
                    carry = exp(G_S[s])
                    for u in range(U):
                        out[u] *= carry
                    for i in range(lo, s + 1):
                        weight = exp(G_S[s] - G_S[i]) * _dot(keys_SK[i], query, zero)
                        _axpy(out, weight, updates_SU[i])


@jit
def enter_chunk(lam: Any, memory: Any, phi: Any, one: Any) -> None:
    """φ = ⟨Λ, M⟩ at the chunk's end."""
    for row in range(lam.shape[0]):
        for h in range(lam.shape[1]):
            total = one - one
            for k in range(lam.shape[2]):
                total += _dot(lam[row, h, k], memory[row, h, k], one - one)
            phi[row, h] = total


@jit
def leave_chunk(
    t: int, lo: int, hi: int, lam: Any, keys: Any, decay: Any, queries: Any, douts: Any, ws: Any,
    flags: Any, one: Any,
) -> None:  # fmt: skip
    """Λ at the chunk's start, cleared for rows that reset there."""
    for row in range(lam.shape[0]):
        if flags[t, row] & RESET:
            for h in range(lam.shape[1]):
                _fill2(lam[row, h], one - one)
            continue
        for h in range(lam.shape[1]):
            lam_KU, G_S, w_SU, keys_SK = lam[row, h], decay[row, h], ws[row, h], keys[row, h]
            carry = exp(G_S[hi - 1])
            for k in range(lam_KU.shape[0]):
                lam_U = lam_KU[k]
                for u in range(lam_U.shape[0]):
                    lam_U[u] *= carry
            for i in range(lo, hi):
                before = exp(G_S[i - 1]) if i > lo else one
                now, key, w_U = exp(G_S[i]), keys_SK[i], w_SU[i]
                q_K, do_U = queries[0, row, h, i], douts[0, row, h, i]
                for k in range(lam_KU.shape[0]):
                    lam_U, a, b = lam_KU[k], now * q_K[k], before * key[k]
                    for u in range(lam_U.shape[0]):
                        lam_U[u] += a * do_U[u] - b * w_U[u]
                for layer in range(1, queries.shape[0]):
                    q_K, do_U = queries[layer, row, h, i], douts[layer, row, h, i]
                    for k in range(lam_KU.shape[0]):
                        _axpy(lam_KU[k], now * q_K[k], do_U)


@jit
def _both_sides(lam_KU: Any, k_K: Any, u_U: Any, du_U: Any, dk_K: Any, one: Any) -> None:
    """Λᵀk and Λu in one pass over Λ."""
    zero = one - one
    _fill(du_U, zero)
    K = k_K.shape[0]
    for i in range(0, K - 1, 2):
        k0, k1, row0, row1, a0, a1 = k_K[i], k_K[i + 1], lam_KU[i], lam_KU[i + 1], zero, zero
        for u in range(u_U.shape[0]):
            du_U[u] += k0 * row0[u] + k1 * row1[u]
        for u in range(u_U.shape[0]):  # no store here: see simd.py
            a0 += row0[u] * u_U[u]
            a1 += row1[u] * u_U[u]
        dk_K[i], dk_K[i + 1] = a0, a1
    if K % 2:
        _axpy(du_U, k_K[K - 1], lam_KU[K - 1])
        dk_K[K - 1] = _dot(lam_KU[K - 1], u_U, zero)


@jit
def write(
    t: int, s: int, lo: int, hi: int, y: Any, dy: Any, rate: Any, dt_bias: Any, dkey: Any,
    dkey_bias: Any, dA_log: Any, lam: Any, queries: Any, douts: Any, ws: Any, phi: Any,
    key_scale: Any, memory: Any, keys: Any, updates: Any, decay: Any, flags: Any,
    scratch: Any, at: Any, one: Any,
) -> None:  # fmt: skip
    """Through M ← e^g M + β k ⊗ (v − Mᵀk): dy of v, β, decay and the key; w = β·du."""
    _, _, H, K, U, _, _, c_value, c_beta, c_decay, c_key = at
    zero = one - one
    du, dk, mw = scratch[0, :U], scratch[1, :K], scratch[2, :K]
    for row in range(dkey.shape[0]):
        y_N, dy_N, dkey_P = y[t, row], dy[s, row], dkey[row]
        _copy(dy_N[c_key : c_key + H * K], dkey_P)
        if flags[t, row] & HOLD:
            for i in range(c_value, c_key):
                put(dy_N, i, zero)
            for i in range(H * K):
                put(dkey_P, i, zero)
            for h in range(H):
                _fill(ws[row, h, s], zero)
            continue
        for h in range(H):
            G_S, keys_SK, updates_SU, w_SU = (
                decay[row, h],
                keys[row, h],
                updates[row, h],
                ws[row, h],
            )
            key, update, now = keys_SK[s], updates_SU[s], G_S[s]
            _both_sides(lam[row, h], key, update, du, dk, one)
            carry = exp(G_S[hi - 1] - now)
            for u in range(U):
                du[u] *= carry
            for i in range(K):
                dk[i] *= carry
            for layer in range(queries.shape[0]):
                for i in range(s, hi):
                    c = exp(G_S[i] - now)
                    q_K, do_U = queries[layer, row, h, i], douts[layer, row, h, i]
                    _axpy(du, c * _dot(q_K, key, zero), do_U)
                    _axpy(dk, c * _dot(do_U, update, zero), q_K)
            for i in range(s + 1, hi):
                c = exp(G_S[i - 1] - now)
                _axpy(du, -c * _dot(keys_SK[i], key, zero), w_SU[i])
                _axpy(dk, -c * _dot(w_SU[i], update, zero), keys_SK[i])
            beta = sigmoid(get(y_N, c_beta + h))
            w_U, at_v = w_SU[s], c_value + h * U
            error_U, dvalue_U = y_N[at_v : at_v + U], dy_N[at_v : at_v + U]
            dbeta = zero
            for u in range(U):  # no store here: see simd.py
                dbeta += du[u] * get(error_U, u)
            for u in range(U):
                w_U[u] = beta * du[u]
            for u in range(U):
                put(dvalue_U, u, w_U[u])
            _times(memory[row, h], w_U, mw, lo, s - 1, keys_SK, updates_SU, G_S, one)
            dg = phi[row, h] - _dot(update, du, zero)
            phi[row, h] = dg - _dot(mw, key, zero)
            step = get(y_N, c_decay + h) + dt_bias[h]
            dA_log[h] += dg * rate[h] * softplus(step)
            put(dy_N, c_beta + h, dbeta * beta * (one - beta))
            put(dy_N, c_decay + h, dg * rate[h] * sigmoid(step))
            for i in range(K):
                dk[i] -= mw[i]
            _through_unit(dk, key, key_scale[row, h, s], mw, one)
            bias_K, dkey_K = dkey_bias[h * K : h * K + K], dkey_P[h * K : h * K + K]
            for i in range(K):
                bias_K[i] += mw[i]
            for i in range(K):
                put(dkey_K, i, mw[i])
            if flags[t, row] & RESET:
                for i in range(K):
                    put(dkey_K, i, zero)
