"""The grounded block as modules: who owns which parameter, and how each starts.

Source: arXiv 2605.10643; the names of the published code stand beside each part and are mapped in
``palimpsest.interop.published``.

Legend: D d_state, F d_ffn, H memory heads, K d_key, U d_val.
"""

from __future__ import annotations

import torch
from torch import nn

from palimpsest.layers.init import (
    decay_rates,
    lecun_normal_,
    normal_,
    step_biases,
    uninitialised,
)
from palimpsest.layers.norm import RMSNorm
from palimpsest.ops.grounded_loop import (
    GroundedParams,
    GroundParams,
    PredictParams,
    ReadParams,
    WriteParams,
)

__all__ = ["GroundedCell"]


def _linear(fan_in: int, out: int, *, bias: bool = False, init: str = "lecun") -> nn.Linear:
    layer = uninitialised(nn.Linear, fan_in, out, bias=bias)
    if init == "lecun":
        lecun_normal_(layer.weight)
    elif init == "zero":
        nn.init.zeros_(layer.weight)
    else:
        normal_(layer.weight, 0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Gate(nn.Module):
    """σ(norm(x) W + b), starting at one half (fg_*, pg_*)."""

    def __init__(self, d_state: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_state)
        self.proj = _linear(d_state, d_state, bias=True, init="zero")


class MemoryWrite(nn.Module):
    """The memory's write (write_*): key, value, strength β and decay of each head."""

    def __init__(self, d_state: int, n_heads: int, d_key: int, d_val: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_state)
        self.key = _linear(d_state, n_heads * d_key, bias=True)
        self.value = _linear(d_state, n_heads * d_val)
        self.beta = _linear(d_state, n_heads)
        self.decay = _linear(d_state, n_heads)
        self.A_log = nn.Parameter(decay_rates(n_heads).to(torch.get_default_dtype()))
        self.dt_bias = nn.Parameter(step_biases(n_heads).to(torch.get_default_dtype()))

    def params(self) -> WriteParams:
        return WriteParams(
            self.norm.weight,
            self.key.weight,
            self.key.bias,
            self.value.weight,
            self.beta.weight,
            self.decay.weight,
            self.A_log,
            self.dt_bias,
        )


class MemoryRead(nn.Module):
    """The memory's read in one layer (read_*)."""

    def __init__(self, d_state: int, n_heads: int, d_key: int, d_val: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_state)
        self.query = _linear(d_state, n_heads * d_key, bias=True)
        self.gate = _linear(d_state, n_heads * d_val)
        self.out_norm = RMSNorm(n_heads * d_val)
        self.out = _linear(n_heads * d_val, d_state, init="normal")

    def params(self) -> ReadParams:
        return ReadParams(
            self.norm.weight,
            self.query.weight,
            self.query.bias,
            self.gate.weight,
            self.out_norm.weight,
            self.out.weight,
        )


class PredictLayer(nn.Module):
    """One layer of the prediction (L0_*, L1_*, …): gate, SwiGLU and read, all of one input."""

    def __init__(self, d_state: int, d_ffn: int, memory: tuple[int, int, int] | None) -> None:
        super().__init__()
        self.gate = Gate(d_state)
        self.ffn_norm = RMSNorm(d_state)
        self.ffn_in = _linear(d_state, 2 * d_ffn)
        self.ffn_out = _linear(d_ffn, d_state, init="zero")
        self.read = MemoryRead(d_state, *memory) if memory is not None else None

    def params(self) -> PredictParams:
        return PredictParams(
            self.gate.norm.weight,
            self.gate.proj.weight,
            self.gate.proj.bias,
            self.ffn_norm.weight,
            self.ffn_in.weight,
            self.ffn_out.weight,
            self.read.params() if self.read is not None else None,
        )


class GroundedCell(nn.Module):
    """Ground, write, predict: the one recurrent block of a Grounded Prediction Network.

    Args:
        d_state: width of the state.
        d_ffn: hidden width of the SwiGLU.
        n_layers: prediction layers that share the one memory.
        memory: (heads, d_key, d_val), or None for a network without memory.
    """

    def __init__(
        self, d_state: int, d_ffn: int, n_layers: int, memory: tuple[int, int, int] | None
    ) -> None:
        super().__init__()
        self.ground_gate = Gate(d_state)
        self.write = MemoryWrite(d_state, *memory) if memory is not None else None
        self.layers = nn.ModuleList([PredictLayer(d_state, d_ffn, memory) for _ in range(n_layers)])

    def params(self) -> GroundedParams:
        """The parameters as the op takes them."""
        gate = self.ground_gate
        return GroundedParams(
            GroundParams(gate.norm.weight, gate.proj.weight, gate.proj.bias),
            self.write.params() if self.write is not None else None,
            tuple(layer.params() for layer in self.layers),  # type: ignore[operator]
        )
