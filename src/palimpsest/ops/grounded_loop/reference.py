"""The grounded loop as its equations say it, one token at a time: the truth.

Source: arXiv 2605.10643, section 2, and the published code. Runs in any dtype, differentiable by
autograd. Under autocast the matrix products run in its dtype, and the state, norms, gates, decay
and memory in fp32, as published.

Legend: B batch, T time, D d_state, F d_ffn, H heads, K d_key, U d_val, P = H·K, Q = H·U.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.ops.grounded_loop.params import (
    GroundedParams,
    GroundParams,
    PredictParams,
    ReadParams,
    WriteParams,
)

__all__ = ["ground", "grounded_loop_reference", "l2_normalise", "predict", "rms_norm", "write"]

RMS_EPS = 1e-6
L2_EPS = 1e-12


def rms_norm(x: Tensor, weight: Tensor, eps: float = RMS_EPS) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight, in at least fp32."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def l2_normalise(x: Tensor) -> Tensor:
    """x / sqrt(sum(x²) + 1e-12): finite, with a finite gradient, at x = 0."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in the weight's dtype (autocast's where it is on), returned in x's."""
    product: Tensor = functional.linear(x.to(weight.dtype), weight).to(x.dtype)
    return product


def ground(predicted_BD: Tensor, drive_BD: Tensor, p: GroundParams) -> Tensor:
    """Ground: s = σ(norm(predicted) W_f + b_f) · predicted + drive."""
    gate_BD = torch.sigmoid(_product(rms_norm(predicted_BD, p.norm_D), p.gate_DD) + p.gate_bias_D)
    return gate_BD * predicted_BD + drive_BD


def write(memory_BHKU: Tensor, previous_BD: Tensor, grounded_BD: Tensor, p: WriteParams) -> Tensor:
    """Write: M ← exp(g) M + β k ⊗ (v − Mᵀk), the prediction read from the UNDECAYED M.

    The key comes from the grounded state one step before.
    """
    heads = p.A_log_H.shape[0]
    past_BD = rms_norm(previous_BD, p.norm_D)
    now_BD = rms_norm(grounded_BD, p.norm_D)
    key_BP = functional.relu(_product(past_BD, p.key_PD) + p.key_bias_P)
    key_BHK = l2_normalise(key_BP.unflatten(-1, (heads, -1)))
    value_BHU = _product(now_BD, p.value_QD).unflatten(-1, (heads, -1))
    beta_BH = torch.sigmoid(_product(now_BD, p.beta_HD))
    log_decay_BH = -torch.exp(p.A_log_H) * functional.softplus(
        _product(now_BD, p.decay_HD) + p.dt_bias_H
    )
    error_BHU = value_BHU - torch.einsum("bhku,bhk->bhu", memory_BHKU, key_BHK)
    update_BHKU = key_BHK[..., :, None] * (beta_BH[..., None] * error_BHU)[..., None, :]
    new_BHKU: Tensor = torch.exp(log_decay_BH)[..., None, None] * memory_BHKU + update_BHKU
    return new_BHKU


def read(memory_BHKU: Tensor, current_BD: Tensor, p: ReadParams) -> Tensor:
    """Read: (silu(norm_q(c) W_gate) · norm_o(Mᵀq)) W_o, with norm_o over the whole H·U vector."""
    heads = memory_BHKU.shape[1]
    x_BD = rms_norm(current_BD, p.norm_D)
    query_BP = functional.relu(_product(x_BD, p.query_PD) + p.query_bias_P)
    query_BHK = l2_normalise(query_BP.unflatten(-1, (heads, -1)))
    out_BQ = torch.einsum("bhku,bhk->bhu", memory_BHKU, query_BHK).flatten(-2)
    gated_BQ = functional.silu(_product(x_BD, p.gate_QD)) * rms_norm(out_BQ, p.out_norm_Q)
    return _product(gated_BQ, p.out_DQ)


def predict(grounded_BD: Tensor, memory_BHKU: Tensor | None, p: PredictParams) -> Tensor:
    """One layer: c ← σ(norm_p(c) W_p + b_p) · c + ffn + read."""
    gate_BD = torch.sigmoid(
        _product(rms_norm(grounded_BD, p.gate_norm_D), p.gate_DD) + p.gate_bias_D
    )
    a_BF, b_BF = _product(rms_norm(grounded_BD, p.ffn_norm_D), p.ffn_in_2FD).chunk(2, -1)
    out_BD = gate_BD * grounded_BD + _product(functional.silu(a_BF) * b_BF, p.ffn_out_DF)
    if p.read is not None and memory_BHKU is not None:
        out_BD = out_BD + read(memory_BHKU, grounded_BD, p.read)
    return out_BD


def _where(rows_B: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    return torch.where(rows_B.view(-1, *[1] * (then.ndim - 1)), then, otherwise)


def grounded_loop_reference(
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See :func:`palimpsest.ops.grounded_loop.grounded_loop`."""
    outputs = []
    for t in range(drive_BTD.shape[1]):
        if reset_BT is not None:
            rows_B = reset_BT[:, t]
            predicted_BD = _where(rows_B, torch.zeros_like(predicted_BD), predicted_BD)
            grounded_BD = _where(rows_B, torch.zeros_like(grounded_BD), grounded_BD)
            if memory_BHKU is not None:
                memory_BHKU = _where(rows_B, torch.zeros_like(memory_BHKU), memory_BHKU)
        new_s_BD = ground(predicted_BD, drive_BTD[:, t], params.ground)
        new_m_BHKU = memory_BHKU
        if params.write is not None and memory_BHKU is not None:
            new_m_BHKU = write(memory_BHKU, grounded_BD, new_s_BD, params.write)
        new_c_BD = new_s_BD
        for layer in params.layers:
            new_c_BD = predict(new_c_BD, new_m_BHKU, layer)
        if hold_BT is not None:
            rows_B = hold_BT[:, t]
            new_c_BD = _where(rows_B, predicted_BD, new_c_BD)
            new_s_BD = _where(rows_B, grounded_BD, new_s_BD)
            if new_m_BHKU is not None and memory_BHKU is not None:
                new_m_BHKU = _where(rows_B, memory_BHKU, new_m_BHKU)
        predicted_BD, grounded_BD, memory_BHKU = new_c_BD, new_s_BD, new_m_BHKU
        outputs.append(predicted_BD)
    return torch.stack(outputs, 1), predicted_BD, grounded_BD, memory_BHKU
