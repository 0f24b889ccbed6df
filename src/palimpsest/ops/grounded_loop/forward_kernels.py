"""The forward steps of the window form as numba kernels: one call between two products.

Arrays are numpy views of the window's buffers (bf16 as uint16). ``at`` holds the column offsets
(D, F, H, K, U, query, read_gate, value, beta, decay, key).

Legend: D d_state, F d_ffn, H heads, K d_key, U d_val, Q = H·U, S steps of a chunk, t a step, j its
place in the chunk.
"""

from __future__ import annotations

import math
from typing import Any

from palimpsest.ops.simd import exp, get, jit, put, sigmoid, softplus

__all__ = ["flush", "ground", "memory_mix", "plain_mix", "predict", "predict_last"]

HOLD, RESET = 1, 2


@jit
def _fill(out: Any, value: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = value


@jit
def _copy(out: Any, x: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i]


@jit
def ground(
    t: int, y: Any, bias: Any, predicted: Any, drive: Any, s: Any, unit: Any, scale: Any,
    flags: Any, one: Any, eps: Any, per_d: Any,
) -> None:  # fmt: skip
    """s = σ(y + b) · predicted + drive; unit = s / rms(s)."""
    for row in range(s.shape[0]):
        flag = flags[t, row]
        y_D, p_D, d_D, s_D, u_D = y[row], predicted[t, row], drive[t, row], s[row], unit[t, row]
        if flag == 0:
            for i in range(s_D.shape[0]):
                s_D[i] = p_D[i] * sigmoid(get(y_D, i) + bias[i]) + d_D[i]
        elif flag == RESET:
            _copy(s_D, d_D)
        elif flag == HOLD | RESET:
            _fill(s_D, one - one)
        _unit(s_D, u_D, scale[t], row, one, eps, per_d)


@jit
def _unit(x: Any, out: Any, scale: Any, row: int, one: Any, eps: Any, per_d: Any) -> None:
    """out = x / sqrt(mean(x²) + eps), and the factor."""
    total = one - one
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    factor = one / math.sqrt(total * per_d + eps)
    scale[row] = factor
    for i in range(x.shape[0]):
        put(out, i, x[i] * factor)


@jit
def _swiglu(y_N: Any, z_Z: Any, D: int, F: int) -> None:
    a, b = y_N[D : D + F], y_N[D + F : D + F + F]
    for i in range(F):
        x = get(a, i)
        put(z_Z, i, x * sigmoid(x) * get(b, i))


@jit
def plain_mix(t: int, y: Any, z: Any, D: int, F: int) -> None:
    """z = silu(a) · b, for a block without memory."""
    for row in range(z.shape[0]):
        _swiglu(y[t, row], z[row], D, F)


@jit
def _unit_relu(x: Any, bias: Any, out: Any, one: Any, eps: Any) -> Any:
    """out = l2(relu(x + bias)), and the factor."""
    zero = one - one
    total = zero
    for i in range(out.shape[0]):  # no store here: see simd.py
        v = get(x, i) + bias[i]
        v = zero if v <= zero else v
        total += v * v
    factor = one / math.sqrt(total + eps)
    for i in range(out.shape[0]):
        v = get(x, i) + bias[i]
        out[i] = zero if v <= zero else v * factor
    return factor


@jit
def _read_two(memory_KU: Any, q_K: Any, k_K: Any, from_q: Any, from_k: Any, zero: Any) -> None:
    """Mᵀq and Mᵀk in one pass over M, two rows at a time."""
    K, U = memory_KU.shape
    _fill(from_q, zero)
    _fill(from_k, zero)
    for i in range(0, K - 1, 2):
        q0, q1, k0, k1 = q_K[i], q_K[i + 1], k_K[i], k_K[i + 1]
        m0, m1 = memory_KU[i], memory_KU[i + 1]
        for u in range(U):
            from_q[u] += q0 * m0[u] + q1 * m1[u]
            from_k[u] += k0 * m0[u] + k1 * m1[u]
    if K % 2:
        q0, k0, m0 = q_K[K - 1], k_K[K - 1], memory_KU[K - 1]
        for u in range(U):
            from_q[u] += q0 * m0[u]
            from_k[u] += k0 * m0[u]


@jit
def _read_one(memory_KU: Any, q_K: Any, from_q: Any, zero: Any) -> None:
    """Mᵀq."""
    _fill(from_q, zero)
    for i in range(memory_KU.shape[0]):
        q0, m0 = q_K[i], memory_KU[i]
        for u in range(from_q.shape[0]):
            from_q[u] += q0 * m0[u]


@jit
def _dot(a: Any, b: Any, zero: Any) -> Any:
    total = zero
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@jit
def _axpy(out: Any, c: Any, x: Any) -> None:
    for i in range(out.shape[0]):
        out[i] += c * x[i]


@jit
def _add_rows(
    out_KU: Any, keys_SK: Any, updates_SU: Any, G_S: Any, lo: int, hi: int, one: Any
) -> None:
    """A chunk's rows into the memory of its start: M ← e^G M + Σ_i e^(G − G_i) k_i u_iᵀ."""
    G = G_S[hi - 1]
    carry = exp(G)
    for k in range(out_KU.shape[0]):
        row = out_KU[k]
        for u in range(row.shape[0]):
            row[u] *= carry
    for i in range(lo, hi - 1, 2):
        w0, w1 = exp(G - G_S[i]), exp(G - G_S[i + 1])
        u0, u1 = updates_SU[i], updates_SU[i + 1]
        for k in range(out_KU.shape[0]):
            row, c0, c1 = out_KU[k], w0 * keys_SK[i, k], w1 * keys_SK[i + 1, k]
            for u in range(row.shape[0]):
                row[u] += c0 * u0[u] + c1 * u1[u]
    if (hi - lo) % 2:
        for k in range(out_KU.shape[0]):
            _axpy(out_KU[k], keys_SK[hi - 1, k], updates_SU[hi - 1])


@jit
def flush(memory: Any, keys: Any, updates: Any, decay: Any, n: int, one: Any) -> None:
    """The n rows of a chunk into the memory, in place."""
    for row in range(memory.shape[0]):
        for h in range(memory.shape[1]):
            _add_rows(memory[row, h], keys[row, h], updates[row, h], decay[row, h], 0, n, one)


@jit
def memory_mix(
    t: int, j: int, first: bool, y: Any, z: Any, query_bias: Any, key_input: Any, key_bias: Any,
    rate: Any, dt_bias: Any, memory: Any, keys: Any, updates: Any, decay: Any, flags: Any,
    scratch: Any, at: Any, one: Any, rms_eps: Any, l2_eps: Any, per_q: Any,
) -> None:  # fmt: skip
    """z = [silu(a) · b | silu(r) · norm(Mᵀq)]; the first layer writes M (as rows of the chunk)."""
    D, F, H, K, U, c_query, c_gate, c_value, c_beta, c_decay, c_key = at
    Q = H * U
    zero = one - one
    key, query, read, out = scratch[0, :K], scratch[1, :K], scratch[2, :U], scratch[3, :Q]
    for row in range(z.shape[0]):
        y_N, z_Z, flag = y[t, row], z[row], flags[t, row]
        if flag & HOLD:
            for i in range(z_Z.shape[0]):
                put(z_Z, i, zero)
            if first:
                for h in range(H):
                    _fill(keys[row, h, j], zero)
                    _fill(updates[row, h, j], zero)
                    decay[row, h, j] = decay[row, h, j - 1] if j else zero
                for i in range(Q):
                    put(y_N, c_value + i, zero)
                for i in range(H * K):
                    key_input[row, i] = get(y_N, c_key + i)
            continue
        _swiglu(y_N, z_Z, D, F)
        if first and flag & RESET:
            _fill(key_input[row], zero)
        for h in range(H):
            G_C, keys_CK, updates_CU = decay[row, h], keys[row, h], updates[row, h]
            out_U = out[h * U : h * U + U]
            at_q, at_v = c_query + h * K, c_value + h * U
            _unit_relu(y_N[at_q : at_q + K], query_bias[h * K : h * K + K], query, one, l2_eps)
            if first:
                _unit_relu(
                    key_input[row, h * K : h * K + K], key_bias[h * K : h * K + K], key, one, l2_eps
                )
                _read_two(memory[row, h], query, key, out_U, read, zero)
                before = G_C[j - 1] if j else zero
                carry = exp(before) if j else one
                for u in range(U):
                    read[u] *= carry
                for i in range(j):
                    c = exp(before - G_C[i]) * _dot(keys_CK[i], key, zero)
                    _axpy(read, c, updates_CU[i])
                beta = sigmoid(get(y_N, c_beta + h))
                G_C[j] = before + rate[h] * softplus(get(y_N, c_decay + h) + dt_bias[h])
                update_U, value_U = updates_CU[j], y_N[at_v : at_v + U]
                _copy(keys_CK[j], key)
                for u in range(U):
                    read[u] = get(value_U, u) - read[u]
                for u in range(U):
                    put(value_U, u, read[u])
                for u in range(U):
                    update_U[u] = beta * read[u]
            else:
                _read_one(memory[row, h], query, out_U, zero)
            now = G_C[j]
            carry = exp(now)
            for u in range(U):
                out_U[u] *= carry
            for i in range(j + 1):
                c = exp(now - G_C[i]) * _dot(keys_CK[i], query, zero)
                _axpy(out_U, c, updates_CU[i])
        if first:
            for i in range(H * K):
                key_input[row, i] = get(y_N, c_key + i)
        factor = one / math.sqrt(_dot(out, out, zero) * per_q + rms_eps)
        gate_Q, read_Q = y_N[c_gate : c_gate + Q], z_Z[F : F + Q]
        for i in range(Q):
            r = get(gate_Q, i)
            put(read_Q, i, r * sigmoid(r) * (out[i] * factor))


@jit
def predict(
    t: int, y: Any, bias: Any, out: Any, below: Any, below_scale: Any, s: Any, first: bool,
    unit: Any, scale: Any, c: Any, one: Any, eps: Any, per_d: Any,
) -> None:  # fmt: skip
    """c = σ(y + b) · input + out for a layer that is not the last; unit = c / rms(c)."""
    for row in range(c.shape[0]):
        _layer_output(t, row, y, bias, out, below, below_scale, s, first, c[row], one)
        _unit(c[row], unit[t, row], scale[t], row, one, eps, per_d)


@jit
def _layer_output(
    t: int, row: int, y: Any, bias: Any, out: Any, below: Any, below_scale: Any, s: Any,
    first: bool, c_D: Any, one: Any,
) -> None:  # fmt: skip
    y_D, out_D = y[t, row], out[row]
    if first:
        s_D = s[row]
        for i in range(c_D.shape[0]):
            c_D[i] = sigmoid(get(y_D, i) + bias[i]) * s_D[i] + get(out_D, i)
    else:
        u_D, rms = below[t, row], one / below_scale[t, row]
        for i in range(c_D.shape[0]):
            c_D[i] = sigmoid(get(y_D, i) + bias[i]) * (get(u_D, i) * rms) + get(out_D, i)


@jit
def predict_last(
    t: int, y: Any, bias: Any, out: Any, below: Any, below_scale: Any, s: Any, first: bool,
    predicted: Any, ground_in: Any, flags: Any, scratch: Any, one: Any, eps: Any, per_d: Any,
) -> None:  # fmt: skip
    """The last layer: predicted[t + 1], and its unit as the next ground product's input."""
    for row in range(s.shape[0]):
        c_D, flag = predicted[t + 1, row], flags[t, row]
        if flag & HOLD:
            if flag & RESET:
                _fill(c_D, one - one)
            else:
                _copy(c_D, predicted[t, row])
        else:
            _layer_output(t, row, y, bias, out, below, below_scale, s, first, c_D, one)
        _unit(c_D, ground_in[row], scratch, row, one, eps, per_d)
