"""The mixer of Mamba-2: a short convolution, a scalar-decay memory (SSD), a gated norm.

Legend: B batch, T time, D d_model, I = H·P inner width, H heads, P head_dim, N state_dim,
G groups of heads that share B and C, W kernel of the convolution, C = I + 2·G·N its channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.init import decay_rates, step_biases, uniform_, uninitialised
from palimpsest.layers.memory_taps import matrix_taps, show_matrix
from palimpsest.ops.pair_memory import pair_memory
from palimpsest.ops.short_conv import short_conv
from palimpsest.taps import Tap, listening, tap

__all__ = ["SSD", "GatedNorm"]


class GatedNorm(nn.Module):
    """RMSNorm of y · silu(z), in groups of equal width; the gate comes before the norm.

    Args:
        width: I.
        groups: parts that are normed apart.
        eps: added to the mean square.
    """

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.eps = groups, eps

    def forward(self, y_BTI: Tensor, z_BTI: Tensor) -> Tensor:
        """The norm, in at least fp32."""
        gated = y_BTI * F.silu(z_BTI.to(torch.promote_types(z_BTI.dtype, torch.float32)))
        parts = gated.unflatten(-1, (self.groups, -1))
        unit = F.rms_norm(parts, parts.shape[-1:], eps=self.eps)
        return unit.flatten(-2) * self.weight


class SSD(nn.Module):
    """out(norm(y · silu(z))) with y the SSD of a convolved projection.

    One projection makes the gate z, x, B, C and a step Δ per head; x, B and C pass a causal
    convolution and SiLU. Each head keeps a matrix S (N,P):

        S_t = exp(Δ_t A) S_{t-1} + B_t (Δ_t x_t)ᵀ,   y_t = S_tᵀ C_t + D x_t

    with Δ = softplus(· + dt_bias) and A = -exp(A_log).

    Args:
        d_model: D.
        d_inner: I.
        head_dim: P, which divides I.
        state_dim: N.
        n_groups: G, which divides the heads.
        conv_size: W.
        norm_eps: of the gated norm.
        out_scale: what the output's matrix is multiplied by at the start.

    Source:
        Dao & Gu, arXiv 2405.21060; starts as its published code does.
    """

    def __init__(
        self,
        d_model: int,
        d_inner: int,
        head_dim: int,
        state_dim: int,
        n_groups: int,
        conv_size: int,
        norm_eps: float,
        out_scale: float,
    ) -> None:
        super().__init__()
        heads, shared = d_inner // head_dim, n_groups * state_dim
        self.sizes = (d_inner, shared, shared)
        self.n_groups, self.head_dim = n_groups, head_dim
        channels = d_inner + 2 * shared
        self.in_proj = uninitialised(nn.Linear, d_model, d_inner + channels + heads, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(channels, conv_size))
        self.conv_bias = nn.Parameter(torch.empty(channels))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedNorm(d_inner, n_groups, norm_eps)
        self.out_proj = uninitialised(nn.Linear, d_inner, d_model, bias=False)
        uniform_(self.in_proj.weight, d_model)
        uniform_(self.conv_weight, conv_size)
        uniform_(self.conv_bias, conv_size)
        uniform_(self.out_proj.weight, d_inner)
        with torch.no_grad():
            self.dt_bias.copy_(step_biases(heads))
            self.A_log.copy_(decay_rates(heads, low=1.0))
            self.out_proj.weight.mul_(out_scale)

    def forward(
        self,
        x_BTD: Tensor,
        window_BWC: Tensor,
        memory_BHNP: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mix positions.

        Args:
            x_BTD: the normed stream.
            window_BWC: (B,W-1,C), the convolution's last inputs.
            memory_BHNP: the heads' matrices.
            hold_BT: True at padding.
            reset_BT: True where a document starts.

        Returns:
            What is added to the stream, and the window and the memory after the last position.
        """
        inner, heads = self.sizes[0], memory_BHNP.shape[1]
        gate_BTI, mixed_BTC, step_BTH = self.in_proj(x_BTD).split(
            (inner, sum(self.sizes), heads), dim=-1
        )
        mixed_BTC, window_BWC = short_conv(
            mixed_BTC, self.conv_weight, self.conv_bias, window_BWC, hold=hold_BT, reset=reset_BT
        )
        values_BTI, keys, queries = F.silu(mixed_BTC).split(self.sizes, dim=-1)
        values_BTHP = values_BTI.unflatten(-1, (heads, self.head_dim))
        wide = memory_BHNP.dtype
        step_BTH = F.softplus(step_BTH.to(wide) + self.dt_bias.to(wide))
        keys_BTGN, queries_BTGN = (x.unflatten(-1, (self.n_groups, -1)) for x in (keys, queries))
        written_BTHP = values_BTHP * step_BTH.unsqueeze(-1)
        log_decay_BTH = -self.A_log.to(wide).exp() * step_BTH
        if listening():
            tap(self, "step", step_BTH)
            given = (keys_BTGN, written_BTHP, log_decay_BTH, memory_BHNP, hold_BT, reset_BT)
            self._show(queries_BTGN, *given)
        read_BTHP, memory_BHNP = pair_memory(
            keys_BTGN,
            written_BTHP,
            queries_BTGN,
            log_decay_BTH,
            memory_BHNP,
            hold=hold_BT,
            reset=reset_BT,
        )
        read_BTHP = tap(self, "memory_read", read_BTHP)
        read_BTHP = torch.addcmul(read_BTHP, values_BTHP, self.D.unsqueeze(-1).to(wide))
        normed_BTI = self.norm(read_BTHP.flatten(2), gate_BTI)
        added_BTD: Tensor = self.out_proj(normed_BTI.to(x_BTD.dtype))
        return added_BTD, window_BWC, memory_BHNP

    def _show(
        self,
        queries_BTGN: Tensor,
        keys_BTGN: Tensor,
        written_BTHP: Tensor,
        log_decay_BTH: Tensor,
        memory_BHNP: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> None:
        tap(self, "query", queries_BTGN)
        tap(self, "memory.key", keys_BTGN)
        tap(self, "memory.value", written_BTHP)
        tap(self, "memory.log_decay", log_decay_BTH)
        keys_BTHN = keys_BTGN.repeat_interleave(memory_BHNP.shape[1] // self.n_groups, 2)
        masks = (hold_BT, reset_BT)
        show_matrix(self, keys_BTHN, written_BTHP, log_decay_BTH, memory_BHNP, *masks)

    def describe_taps(self) -> dict[str, Tap]:
        return {
            "step": Tap("(B,T,H)", "Δ, how far each head moves", "state"),
            "query": Tap("(B,T,G,N)", "C, shared by the heads of a group"),
            "memory.key": Tap("(B,T,G,N)", "B, shared by the heads of a group"),
            "memory.value": Tap("(B,T,H,P)", "Δ x, what is written", "state"),
            "memory.log_decay": Tap(
                "(B,T,H)", "Δ A, logarithm of what the memory keeps of itself", "state"
            ),
            "memory_read": Tap(
                "(B,T,H,P)", "what each head reads, without D x", "state", replaceable=True
            ),
            **matrix_taps("(B,T,H)", "(B,T,H,N,P)"),
        }
