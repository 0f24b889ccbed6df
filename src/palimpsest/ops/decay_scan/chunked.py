"""The decayed running sum by chunks, in plain PyTorch with a hand-written backward.

Inside a chunk of C positions s_t = Σ_{i≤t} exp(G_t - G_i) x_i + exp(G_t) s_0, G the running sum of
the log decays: one product with a lower-triangular matrix. The states at the chunks' ends obey the
same recurrence with the chunks' whole decays, so they are found by the same function, a level up.

B batch, T positions, H heads, S width of the state, M independent rows (B·H), N chunks,
C positions of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import (
    apply_gates,
    lowest_log_decay,
    running_sums,
    without_autocast,
)
from palimpsest.ops.first_order import first_derivatives_only

__all__ = ["chunk_sums", "decay_matrix", "decay_scan_chunked", "scan_rows"]

CHUNK = 32


def chunk_sums(log_decay_MC: Tensor) -> Tensor:
    """Running sums of log decays inside each row, -inf replaced by a finite log of zero."""
    return running_sums(log_decay_MC.clamp(min=lowest_log_decay(log_decay_MC.dtype)), -1)


def decay_matrix(sums_MC: Tensor, dtype: torch.dtype) -> Tensor:
    """D_{ti} = exp(G_t - G_i) for i ≤ t, 0 above the diagonal: (…, C) to (…, C, C).

    The upper half is masked before the exponential, which would overflow there.
    """
    size = sums_MC.shape[-1]
    above_CC = torch.full(
        (size, size), float("-inf"), dtype=sums_MC.dtype, device=sums_MC.device
    ).triu_(1)
    return (sums_MC.unsqueeze(-1) + above_CC).sub_(sums_MC.unsqueeze(-2)).to(dtype).exp_()


def scan_rows(
    values_MTS: Tensor, log_decay_MT: Tensor, initial_MS: Tensor, chunk: int = CHUNK
) -> Tensor:
    """States after every position, for M independent rows (no autograd inside; no gates).

    Args:
        values_MTS: what each position adds.
        log_decay_MT: log of what each position keeps of the state it finds.
        initial_MS: the state that position 0 finds.
        chunk: positions per chunk.

    Returns:
        states_MTS.
    """
    rows, length, width = values_MTS.shape
    if length <= chunk:
        sums_MT = chunk_sums(log_decay_MT)
        from_start_MT = sums_MT.exp().to(values_MTS.dtype)
        carried_MTS = from_start_MT.unsqueeze(-1) * initial_MS.unsqueeze(1)
        return torch.baddbmm(carried_MTS, decay_matrix(sums_MT, values_MTS.dtype), values_MTS)
    n_chunks = -(-length // chunk)
    padding = n_chunks * chunk - length
    if padding:
        values_MTS = F.pad(values_MTS, (0, 0, 0, padding))
        log_decay_MT = F.pad(log_decay_MT, (0, padding))
    sums_MNC = chunk_sums(log_decay_MT.reshape(rows, n_chunks, chunk))
    local_MNCS = torch.matmul(
        decay_matrix(sums_MNC, values_MTS.dtype), values_MTS.reshape(rows, n_chunks, chunk, width)
    )
    ends_MNS = scan_rows(
        local_MNCS[:, :-1, -1], sums_MNC[:, :-1, -1], initial_MS, chunk
    )  # the states that all chunks but the first find
    found_MNS = torch.cat([initial_MS.unsqueeze(1), ends_MNS], dim=1)
    from_start_MNC = sums_MNC.exp().to(values_MTS.dtype)
    local_MNCS.addcmul_(from_start_MNC.unsqueeze(-1), found_MNS.unsqueeze(2))
    return local_MNCS.reshape(rows, n_chunks * chunk, width)[:, :length]


def _to_rows(x_BTHS: Tensor) -> Tensor:
    batch, length, heads, width = x_BTHS.shape
    return x_BTHS.transpose(1, 2).reshape(batch * heads, length, width)


def _from_rows(x_MTS: Tensor, batch: int) -> Tensor:
    rows, length, width = x_MTS.shape
    return x_MTS.reshape(batch, rows // batch, length, width).transpose(1, 2)


class _DecayScan(torch.autograd.Function):
    """The backward is the same scan run from the end, with the decays one position later."""

    @staticmethod
    def forward(
        ctx: Any, values_BTHS: Tensor, log_decay_BTH: Tensor, initial_BHS: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, width = values_BTHS.shape
        log_decay_MT = log_decay_BTH.transpose(1, 2).reshape(batch * heads, length)
        initial_MS = initial_BHS.reshape(batch * heads, width)
        states_MTS = scan_rows(_to_rows(values_BTHS), log_decay_MT, initial_MS)
        ctx.save_for_backward(states_MTS, log_decay_MT, initial_MS)
        final_BHS = states_MTS[:, -1].reshape(batch, heads, width).clone()
        return _from_rows(states_MTS, batch), final_BHS

    @staticmethod
    @first_derivatives_only("decay_scan")
    def backward(
        ctx: Any, d_states_BTHS: Tensor, d_final_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        states_MTS, log_decay_MT, initial_MS = ctx.saved_tensors
        batch, length, heads, width = d_states_BTHS.shape
        with without_autocast(d_states_BTHS.device):
            d_final_MS = d_final_BHS.reshape(batch * heads, width)
            # the adjoint of position T-1 takes d_final undecayed, that of t the decay of t + 1
            reversed_MT = F.pad(log_decay_MT[:, 1:], (0, 1)).flip(1)
            d_MTS = scan_rows(_to_rows(d_states_BTHS).flip(1), reversed_MT, d_final_MS).flip(1)
            before_MTS = torch.cat([initial_MS.unsqueeze(1), states_MTS[:, :-1]], dim=1)
            decay_MT = log_decay_MT.exp()
            d_log_MT = (d_MTS * before_MTS).sum(-1).mul_(decay_MT)
            d_initial_MS = d_MTS[:, 0] * decay_MT[:, :1]
        return (
            _from_rows(d_MTS, batch),
            d_log_MT.reshape(batch, heads, length).transpose(1, 2),
            d_initial_MS.reshape(batch, heads, width),
        )


def decay_scan_chunked(
    values_BTHS: Tensor,
    log_decay_BTH: Tensor,
    initial_BHS: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    exclusive: bool,
) -> tuple[Tensor, Tensor]:
    """The chunkwise form; arguments as in :func:`palimpsest.ops.decay_scan.decay_scan`."""
    values_BTHS, log_decay_BTH = apply_gates(values_BTHS, log_decay_BTH, hold_BT, reset_BT)
    with without_autocast(values_BTHS.device):
        states_BTHS, final_BHS = _DecayScan.apply(values_BTHS, log_decay_BTH, initial_BHS)  # type: ignore[no-untyped-call]
        if exclusive:
            states_BTHS = torch.cat([initial_BHS.unsqueeze(1), states_BTHS[:, :-1]], dim=1)
            if reset_BT is not None:
                states_BTHS = states_BTHS.masked_fill(reset_BT[:, :, None, None], 0.0)
    return states_BTHS, final_BHS
