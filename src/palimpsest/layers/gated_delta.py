"""The gated delta layer: short convolutions, a memory that corrects itself, a gated output.

Legend: B batch, T time, D d_model, H heads, K width of a key, V width of a value, W width of the
convolution's kernel, C = 2·H·K + H·V channels of queries, keys and values side by side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.init import decay_rates, linear, step_biases
from palimpsest.layers.memory_taps import matrix_taps, show_matrix
from palimpsest.layers.norm import RMSNorm
from palimpsest.ops.gated_delta import gated_delta
from palimpsest.ops.short_conv import short_conv
from palimpsest.taps import Tap, listening, tap

__all__ = ["GatedDelta"]

L2_EPS = 1e-6


class GatedDelta(nn.Module):
    """What each position reads from a gated delta-rule memory.

    q, k, v = silu(conv(n W_mix)), q and k of norm 1; β = σ(n W_β), log α = -exp(A_log) ·
    softplus(n W_α + dt_bias), one of each per head; o = gated_delta(q, k, v, log α, β); the output
    is (norm(o) ⊙ silu(n W_gate)) W_out with the norm over each head. No biases.

    ``mix`` holds the rows of q, k and v, head by head, ``rates`` those of β and α; ``conv`` (C,W)
    is one kernel per channel. Matrices start normal with std 0.02, the kernels uniform within
    1/√W, A_log = log U(0,16), and dt_bias such that softplus(dt_bias) is log-uniform from 1e-3 to
    0.1.

    Args:
        d_model: D.
        n_heads: H.
        key_width: K.
        value_width: V.
        conv_size: W; 0 leaves the convolution out.
        norm_eps: what the output's norm adds to the mean square.
        out_std: standard deviation with which W_out starts.

    Source:
        arXiv 2412.06464, section 3.4.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        key_width: int,
        value_width: int,
        conv_size: int = 4,
        norm_eps: float = 1e-6,
        out_std: float = 0.02,
    ) -> None:
        super().__init__()
        self.n_heads, self.key_width, self.value_width = n_heads, key_width, value_width
        self.channels = n_heads * (2 * key_width + value_width)
        self.mix = linear(d_model, self.channels)
        self.gate = linear(d_model, n_heads * value_width)
        self.rates = linear(d_model, 2 * n_heads)
        self.conv = nn.Parameter(torch.empty(self.channels, conv_size)) if conv_size else None
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.norm = RMSNorm(value_width, norm_eps)
        self.out = linear(n_heads * value_width, d_model, std=out_std)
        with torch.no_grad():
            self.A_log.copy_(decay_rates(n_heads))
            self.dt_bias.copy_(step_biases(n_heads))
            if self.conv is not None:
                draw = torch.empty(self.conv.shape, dtype=torch.float32, device=self.conv.device)
                self.conv.copy_(draw.uniform_(-(conv_size**-0.5), conv_size**-0.5))

    def forward(
        self,
        n_BTD: Tensor,
        memory_BHKV: Tensor,
        window_BWC: Tensor | None,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What each position reads (B,T,D), and memory and window after the last position.

        Args:
            n_BTD: the normed input.
            memory_BHKV: the memory before position 0.
            window_BWC: the last W - 1 inputs of the convolution; None without one.
            hold_BT: True at padding.
            reset_BT: True where a document starts.
        """
        mixed_BTC = self.mix(n_BTD)
        if self.conv is not None:
            mixed_BTC, window_BWC = short_conv(
                mixed_BTC, self.conv, None, window_BWC, hold=hold_BT, reset=reset_BT
            )
        keys = 2 * self.n_heads * self.key_width
        qk, v = F.silu(mixed_BTC).split([keys, self.channels - keys], dim=-1)
        q_BTHK, k_BTHK = _unit(qk.unflatten(-1, (2 * self.n_heads, -1))).chunk(2, dim=2)
        beta_BTH, log_decay_BTH = self._rates(n_BTD)
        v_BTHV = v.unflatten(-1, (self.n_heads, -1))
        if listening():
            self._show(q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH)
            rates = (log_decay_BTH, memory_BHKV, hold_BT, reset_BT, beta_BTH)
            show_matrix(self, k_BTHK, v_BTHV, *rates)
        read_BTHV, memory_BHKV = gated_delta(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            log_decay_BTH,
            beta_BTH,
            memory_BHKV,
            hold=hold_BT,
            reset=reset_BT,
        )
        read_BTHV = tap(self, "memory_read", read_BTHV)
        gate_BTHV = F.silu(self.gate(n_BTD)).unflatten(-1, (self.n_heads, -1))
        gate_BTHV = tap(self, "read_gate", gate_BTHV)
        gated_BTHV = (self.norm(read_BTHV) * gate_BTHV).to(n_BTD.dtype)
        return self.out(gated_BTHV.flatten(2)), memory_BHKV, window_BWC

    def _show(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> None:
        tap(self, "query", q)
        tap(self, "memory.key", k)
        tap(self, "memory.value", v)
        tap(self, "memory.beta", beta)
        tap(self, "memory.log_decay", log_decay)

    def describe_taps(self) -> dict[str, Tap]:
        return {
            "query": Tap("(B,T,H,K)", "the read's query, of norm 1", "state"),
            "memory.key": Tap("(B,T,H,K)", "key of the write, of norm 1", "state"),
            "memory.value": Tap("(B,T,H,V)", "value of the write"),
            "memory.beta": Tap("(B,T,H)", "β, the strength of the write", "state"),
            "memory.log_decay": Tap(
                "(B,T,H)", "logarithm of what the memory keeps of itself", "state"
            ),
            "memory_read": Tap(
                "(B,T,H,V)", "what each head reads, before norm and gate", replaceable=True
            ),
            "read_gate": Tap("(B,T,H,V)", "the gate on what is read", replaceable=True),
            **matrix_taps("(B,T,H)", "(B,T,H,K,V)"),
        }

    def _rates(self, n_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """β and the log decay (B,T,H), in at least fp32."""
        wide = torch.promote_types(n_BTD.dtype, torch.float32)
        beta_BTH, step_BTH = self.rates(n_BTD).to(wide).chunk(2, dim=-1)
        steps_BTH = F.softplus(step_BTH + self.dt_bias.to(wide))
        return beta_BTH.sigmoid(), -self.A_log.to(wide).exp() * steps_BTH


def _unit(x: Tensor) -> Tensor:
    """x / sqrt(sum(x²) + 1e-6) over the last axis, in at least fp32."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
