"""What a matrix memory holds after every position, from its writes, without stepping through them.

For M_t = exp(g_t) M_{t-1} + k_t u_tᵀ and a chunk of steps that starts from M₀, with G the sum of g
since then and R_ti = exp(G_t - G_i) for i ≤ t,

    M_t = exp(G_t) M₀ + Σ_i R_ti k_i u_iᵀ
    p_t = (exp(g_t) M_{t-1})ᵀ k_t = exp(G_t) M₀ᵀ k_t + Σ_{i<t} R_ti (k_t·k_i) u_i
    ‖M_t‖² = exp(2 G_t) ‖M₀‖² + Σ_i R_ti² (2 p_i·u_i + ‖k_i‖² ‖u_i‖²)

so that reads and norms are products of a chunk's rows. All exponents are ≤ 0. Exact up to rounding,
in any dtype, without gradients.

Legend: B batch, T positions, H heads, K width of keys, U width of values, C steps of a chunk,
n chosen positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Trace", "trace_memory"]

CHUNK = 32  # measured: 16 to 64 are alike, 128 takes twice as long


@dataclass
class Trace:
    """What was asked for.

    Attributes:
        reads: for each queries given (B,T,H,U), Mᵀq after the position's write.
        norms: (B,T,H) Frobenius norms after each position.
        memories: (B,n,H,K,U) after each chosen position.
        updates: (B,T,H,U) the rows u, as given or as solved for.
        final: (B,H,K,U) after the last position.
    """

    reads: list[Tensor]
    norms: Tensor
    memories: Tensor
    updates: Tensor
    final: Tensor


@torch.no_grad()
def trace_memory(
    keys_BTHK: Tensor,
    updates_BTHU: Tensor,
    log_decay_BTH: Tensor,
    memory_BHKU: Tensor,
    *,
    beta_BTH: Tensor | None = None,
    queries: Sequence[Tensor] = (),
    steps: Tensor | None = None,
    hold_BT: Tensor | None = None,
    reset_BT: Tensor | None = None,
    chunk: int = CHUNK,
) -> Trace:
    """Follow a memory through a window.

    Args:
        keys_BTHK: k.
        updates_BTHU: u; with ``beta_BTH`` the values v of the gated delta rule instead, whose
            updates are u = β (v - (exp(g) M)ᵀ k), solved for a chunk at once.
        log_decay_BTH: g ≤ 0.
        memory_BHKU: the memory before the first position.
        beta_BTH: β.
        queries: (B,T,H,K) each.
        steps: (n) ascending positions whose memory is wanted.
        hold_BT: True where nothing is written and nothing decays.
        reset_BT: True where the memory is cleared before the position.
        chunk: C.

    Returns:
        A :class:`Trace` in the memory's dtype.
    """
    wide = memory_BHKU.dtype
    rows = [x.to(wide).transpose(1, 2).contiguous() for x in (keys_BTHK, updates_BTHU, *queries)]
    decay_BHT = log_decay_BTH.to(wide).transpose(1, 2)
    beta_BHT = None if beta_BTH is None else beta_BTH.to(wide).transpose(1, 2)
    if hold_BT is not None:
        decay_BHT = decay_BHT.masked_fill(hold_BT[:, None], 0.0)
        if beta_BHT is None:
            rows[1] = rows[1].masked_fill(hold_BT[:, None, :, None], 0.0)
        else:
            beta_BHT = beta_BHT.masked_fill(hold_BT[:, None], 0.0)
    chosen = torch.zeros(0, dtype=torch.long) if steps is None else steps
    reads = [torch.empty_like(updates_BTHU, dtype=wide) for _ in queries]
    made = updates_BTHU if beta_BTH is None else torch.empty_like(updates_BTHU, dtype=wide)
    norms_BTH, memories = torch.empty_like(log_decay_BTH, dtype=wide), []
    for lo in range(0, keys_BTHK.shape[1], chunk):
        hi = min(lo + chunk, keys_BTHK.shape[1])
        key, update, *asks = (x[:, :, lo:hi] for x in rows)
        ratio, carry = _weights(decay_BHT[..., lo:hi], reset_BT, lo, hi)
        of_start = (key @ memory_BHKU).mul_(carry[..., None])
        mixing = (key @ key.mT).mul_(ratio)
        square = mixing.diagonal(dim1=-2, dim2=-1).clone()  # ‖k‖², for R_tt is 1
        mixing.tril_(-1)
        if beta_BHT is not None:
            b = beta_BHT[..., lo:hi, None]
            system = (b * mixing).add_(torch.eye(hi - lo, dtype=wide, device=key.device))
            update = torch.linalg.solve_triangular(
                system, b * (update - of_start), upper=False, unitriangular=True
            )
        found = torch.baddbmm(of_start.flatten(0, 1), mixing.flatten(0, 1), update.flatten(0, 1))
        gain = (found.view_as(update).mul_(2.0).addcmul_(square[..., None], update) * update).sum(
            -1
        )
        start = carry.square() * memory_BHKU.square().sum((-1, -2)).unsqueeze(-1)
        total = start + (ratio.square() @ gain[..., None]).squeeze(-1)
        norms_BTH[:, lo:hi] = total.clamp_(min=0.0).sqrt_().transpose(1, 2)
        if beta_BHT is not None:
            made[:, lo:hi] = update.transpose(1, 2)
        here = chosen[(chosen >= lo) & (chosen < hi)] - lo
        for s in here.tolist():
            memories.append(_after(s, ratio, carry, key, update, memory_BHKU))
        for read, ask in zip(reads, asks, strict=True):
            of_chunk = (ask @ key.mT).mul_(ratio) @ update
            of_chunk.addcmul_(ask @ memory_BHKU, carry[..., None])
            read[:, lo:hi] = of_chunk.transpose(1, 2)
        memory_BHKU = _after(hi - lo - 1, ratio, carry, key, update, memory_BHKU)
    none = memory_BHKU[:, None][:, :0]
    return Trace(
        reads=reads,
        norms=norms_BTH,
        memories=torch.stack(memories, 1) if memories else none,
        updates=made,
        final=memory_BHKU,
    )


def _weights(decay_BHC: Tensor, reset_BT: Tensor | None, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """R (B,H,C,C), zero above the diagonal and across a reset, and what is left of M₀ (B,H,C)."""
    total = decay_BHC.cumsum(-1)
    ratio = (total[..., :, None] - total[..., None, :]).clamp_(max=0.0).exp_().tril_()
    carry = total.exp()
    if reset_BT is not None:
        document_BC = reset_BT[:, lo:hi].long().cumsum(1)
        ratio = ratio * (document_BC[:, None, :, None] == document_BC[:, None, None, :])
        carry = carry * (document_BC == 0)[:, None]
    return ratio, carry


def _after(
    s: int, ratio: Tensor, carry: Tensor, key: Tensor, update: Tensor, memory: Tensor
) -> Tensor:
    """(B,H,K,U) the memory after step s of a chunk."""
    weighted = key[:, :, : s + 1] * ratio[:, :, s, : s + 1, None]
    return carry[:, :, s, None, None] * memory + weighted.mT @ update[:, :, : s + 1]
