"""The parameters of one grounded block, as plain tensors.

All matrices are stored (out, in), as ``nn.Linear`` stores them: ``y = x @ W.T``.

Legend: D d_state, F d_ffn, H memory heads, K d_key, U d_val.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["GroundParams", "GroundedParams", "PredictParams", "ReadParams", "WriteParams"]


class GroundParams(NamedTuple):
    """Grounding: the gate on the prediction (fg_* in the published code)."""

    norm_D: Tensor
    gate_DD: Tensor
    gate_bias_D: Tensor


class WriteParams(NamedTuple):
    """The memory's write (write_* in the published code)."""

    norm_D: Tensor
    key_PD: Tensor  # P = H·K
    key_bias_P: Tensor
    value_QD: Tensor  # Q = H·U
    beta_HD: Tensor
    decay_HD: Tensor
    A_log_H: Tensor
    dt_bias_H: Tensor


class ReadParams(NamedTuple):
    """The memory's read in one layer (read_* in the published code)."""

    norm_D: Tensor
    query_PD: Tensor
    query_bias_P: Tensor
    gate_QD: Tensor
    out_norm_Q: Tensor
    out_DQ: Tensor


class PredictParams(NamedTuple):
    """One layer of the prediction (pg_*, ffn_* in the published code)."""

    gate_norm_D: Tensor
    gate_DD: Tensor
    gate_bias_D: Tensor
    ffn_norm_D: Tensor
    ffn_in_2FD: Tensor
    ffn_out_DF: Tensor
    read: ReadParams | None


class GroundedParams(NamedTuple):
    """One grounded block: grounding, an optional memory of H heads, and L prediction layers."""

    ground: GroundParams
    write: WriteParams | None
    layers: tuple[PredictParams, ...]

    @property
    def n_heads(self) -> int:
        return 0 if self.write is None else self.write.A_log_H.shape[0]

    @property
    def d_state(self) -> int:
        return self.ground.norm_D.shape[0]

    @property
    def d_key(self) -> int:
        return 0 if self.write is None else self.write.key_PD.shape[0] // self.n_heads

    @property
    def d_val(self) -> int:
        return 0 if self.write is None else self.write.value_QD.shape[0] // self.n_heads
