"""The gated delta rule by chunks, in plain PyTorch with a hand-written backward.

With G the running sum of the log decays inside a chunk, S the memory that the chunk finds and
D_{ti} = exp(G_t - G_i) for i ≤ t, the errors e_t = v_t - (the decayed memory)ᵀ k_t obey

    (I + A diag β) E = V - exp(G) K S,   A = strictly lower part of D ⊙ K Kᵀ

and with U = β E and P = D ⊙ Q Kᵀ

    out = exp(G) Q S + P U,   S' = exp(G_C) S + (exp(G_C - G) K)ᵀ U.

Chunks follow one another, each a handful of products over all rows. Queries lie on top of keys in
one matrix X, so that K Kᵀ and Q Kᵀ are one product, and so are both reads of S.

Backward, from the last chunk to the first, with S' for the gradient of S' and so on: the gradient
Y of the whole of U solves (I + diag β A)ᵀ Y = Pᵀ ∂out + exp(G_C - G) K ∂S'; then ∂β = e·y,
∂V = Z = β Y, and all others are products of ∂out and -Z with U, S and X. The gradient of the log
decays needs none of its own: G_t enters wherever position t reads, and -G_i wherever it writes.

A decay of 0 (-inf, or a document's start) cuts the chunk: sums of logs go on from 0 behind it, and
what lies on either side of it is masked. So no sum ever holds a number that stands for -inf.

Kept for the backward pass, in numbers per position and head: 2 K + V + K V / C.

B batch, T positions, H heads, K width of keys, V width of values, M = B·H independent rows,
N chunks, C positions of a chunk, X = 2·C rows of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import lowest_log_decay, running_sums, without_autocast
from palimpsest.ops.first_order import first_derivatives_only

__all__ = ["chunk_length", "gated_delta_chunked"]

# Positions of a chunk at most, by measurement: where the products are large enough to keep a CPU
# busy, 32 does the least work; else 64 needs the fewest calls.
LONGEST, LONGEST_OF_MANY = 64, 32
MANY_ROWS = 8


def chunk_length(length: int, rows: int, device: torch.device) -> int:
    """Positions per chunk: even parts, so that little is filled up with zeros.

    Args:
        length: T.
        rows: B·H.
        device: where the tensors are.
    """
    longest = LONGEST_OF_MANY if rows >= MANY_ROWS and device.type == "cpu" else LONGEST
    return -(-length // -(-length // longest))


def _rows(x_BTHK: Tensor, chunk: int) -> Tensor:
    """(B, T, H, K) as (N, B, H, C, K) with zeros at the end; a view unless there is padding."""
    padding = -x_BTHK.shape[1] % chunk
    if padding:
        x_BTHK = F.pad(x_BTHK, (0, 0, 0, 0, 0, padding))
    x_BNCHK = x_BTHK.reshape(len(x_BTHK), -1, chunk, *x_BTHK.shape[2:])
    return x_BNCHK.permute(1, 0, 3, 2, 4)


def _positions(x_NMCK: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of :func:`_rows`, as a copy."""
    x_NBHCK = x_NMCK.reshape(len(x_NMCK), batch, -1, *x_NMCK.shape[2:])
    return x_NBHCK.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]


@dataclass(frozen=True)
class _Decays:
    """What each position keeps, for all chunks.

    Attributes:
        sums_NMC: G; in the dtype of the arithmetic where it holds their differences well, else in
            float64.
        from_start_NMC: exp(G), 0 where the chunk's memory is cut off.
        to_end_NMC: exp(G_C - G), 0 where the chunk's end is cut off.
        whole_NM: exp(G_C), what the chunk keeps of the memory that it finds.
        document_NMC: how many cuts there are up to each position; None where there are none.
    """

    sums_NMC: Tensor
    from_start_NMC: Tensor
    to_end_NMC: Tensor
    whole_NM: Tensor
    document_NMC: Tensor | None

    @staticmethod
    def of(log_decay_NMC: Tensor, cut_NMC: Tensor | None) -> _Decays:
        document_NMC = None if cut_NMC is None else cut_NMC.cumsum(-1)
        dtype = log_decay_NMC.dtype
        sums_NMC = running_sums(log_decay_NMC, -1)
        from_start_NMC = sums_NMC.exp().to(dtype)
        to_end_NMC = (sums_NMC[..., -1:] - sums_NMC).exp_().to(dtype)
        if document_NMC is not None:
            from_start_NMC = from_start_NMC.masked_fill(document_NMC > 0, 0.0)
            to_end_NMC = to_end_NMC.masked_fill(document_NMC < document_NMC[..., -1:], 0.0)
        whole_NM = from_start_NMC[..., -1]
        return _Decays(sums_NMC, from_start_NMC, to_end_NMC, whole_NM, document_NMC)

    def between(self, n: int, above_CC: Tensor) -> Tensor:
        """D of one chunk: (M, 1, C, C), masked before the exponential."""
        sums_MC = self.sums_NMC[n]
        differences = (sums_MC.unsqueeze(-1) + above_CC).sub_(sums_MC.unsqueeze(-2))
        differences = differences.to(self.whole_NM.dtype)
        if self.document_NMC is not None:
            document_MC = self.document_NMC[n]
            apart = document_MC.unsqueeze(-1) != document_MC.unsqueeze(-2)
            differences.masked_fill_(apart, float("-inf"))
        return differences.exp_().unsqueeze(1)


def _above(decays: _Decays) -> Tensor:
    size = decays.sums_NMC.shape[-1]
    return decays.sums_NMC.new_full((size, size), float("-inf")).triu_(1)


def _scores(x_MXK: Tensor, between: Tensor) -> Tensor:
    """P and, below it, A with a diagonal that is not used: (M, 2, C, C)."""
    size = between.shape[-1]
    products_MXC = torch.matmul(x_MXK, x_MXK[:, size:].mT)
    return products_MXC.view(-1, 2, size, size).mul_(between)


def _solve(below_MCC: Tensor, right_MCV: Tensor) -> Tensor:
    """(I + below)⁻¹ right; of ``below`` only what is strictly under the diagonal is read."""
    # from the right, transposed: the library's own column order, so that nothing is copied
    solved_MVC: Tensor = torch.linalg.solve_triangular(
        below_MCC.mT, right_MCV.mT, upper=True, left=False, unitriangular=True
    )
    return solved_MVC.mT


def _solve_transposed(below_MCC: Tensor, right_MCV: Tensor) -> Tensor:
    """(I + below)⁻ᵀ right; of ``below`` only what is strictly under the diagonal is read."""
    solved_MVC: Tensor = torch.linalg.solve_triangular(
        below_MCC, right_MCV.mT, upper=False, left=False, unitriangular=True
    )
    return solved_MVC.mT


class _GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_BTHK: Tensor,
        keys_BTHK: Tensor,
        values_BTHV: Tensor,
        log_decay_BTH: Tensor,
        beta_BTH: Tensor,
        initial_BHKV: Tensor,
        cut_BTH: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, key_width = keys_BTHK.shape
        width, rows = values_BTHV.shape[-1], batch * heads
        chunk = chunk_length(length, rows, keys_BTHK.device)
        x_NMXK = _stack(_rows(queries_BTHK, chunk), _rows(keys_BTHK, chunk), scale)
        errors_NMCV = _rows(values_BTHV, chunk).flatten(1, 2).contiguous()
        if errors_NMCV.data_ptr() == values_BTHV.data_ptr():
            errors_NMCV = errors_NMCV.clone()
        decays = _Decays.of(
            _scalars(log_decay_BTH, chunk), None if cut_BTH is None else _scalars(cut_BTH, chunk)
        )
        beta_NMC = _scalars(beta_BTH, chunk)
        n_chunks = len(x_NMXK)
        above_CC = _above(decays)
        out_NMCV = torch.empty_like(errors_NMCV)
        # without a backward pass only the last memory is needed
        kept = n_chunks + 1 if any(ctx.needs_input_grad) else 2
        found_NMKV = errors_NMCV.new_empty(kept, rows, key_width, width)
        found_NMKV[0] = initial_BHKV.flatten(0, 1)
        for n in range(n_chunks):
            x_MXK, error_MCV, found_MKV = x_NMXK[n], errors_NMCV[n], found_NMKV[n % kept]
            scores = _scores(x_MXK, decays.between(n, above_CC))
            reads = (x_MXK @ found_MKV).unflatten(1, (2, chunk))
            reads *= decays.from_start_NMC[n][:, None, :, None]
            beta_MC = beta_NMC[n]
            right_MCV = error_MCV - reads[:, 1]
            error_MCV.copy_(_solve(scores[:, 1] * beta_MC.unsqueeze(1), right_MCV))
            update_MCV = error_MCV * beta_MC.unsqueeze(-1)
            torch.baddbmm(reads[:, 0], scores[:, 0], update_MCV, out=out_NMCV[n])
            written_MCV = update_MCV.mul_(decays.to_end_NMC[n].unsqueeze(-1))
            kept_MKV = found_MKV * decays.whole_NM[n, :, None, None]
            left_MKV = found_NMKV[(n + 1) % kept]
            torch.baddbmm(kept_MKV, x_MXK[:, chunk:].mT, written_MCV, out=left_MKV)
        ctx.save_for_backward(x_NMXK, errors_NMCV, beta_NMC, found_NMKV, cut_BTH)
        ctx.decays, ctx.scale, ctx.length, ctx.batch = decays, scale, length, batch
        final_BHKV = left_MKV.unflatten(0, (batch, heads)).clone()
        return _positions(out_NMCV, batch, length), final_BHKV

    @staticmethod
    @first_derivatives_only("gated_delta")
    def backward(ctx: Any, d_out_BTHV: Tensor, d_final_BHKV: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(d_out_BTHV.device):
            return _backward(ctx, d_out_BTHV, d_final_BHKV)


def _stack(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scaled queries over keys: twice (N, B, H, C, K) to (N, B·H, 2·C, K)."""
    chunks, batch, heads, size, width = keys.shape
    x = keys.new_empty(chunks, batch, heads, 2, size, width)
    torch.mul(queries, scale, out=x[:, :, :, 0])
    x[:, :, :, 1] = keys
    return x.view(chunks, batch * heads, 2 * size, width)


def _scalars(x_BTH: Tensor, chunk: int) -> Tensor:
    """(B, T, H) to (N, B·H, C)."""
    return _rows(x_BTH.unsqueeze(-1), chunk).flatten(1, 2)[..., 0].contiguous()


def _backward(ctx: Any, d_out_BTHV: Tensor, d_final_BHKV: Tensor) -> tuple[Tensor | None, ...]:
    x_NMXK, errors_NMCV, beta_NMC, found_NMKV, cut_BTH = ctx.saved_tensors
    decays, batch, length = ctx.decays, ctx.batch, ctx.length
    n_chunks, rows, chunk, width = errors_NMCV.shape
    above_CC = _above(decays)
    d_out_NBHCV = _rows(d_out_BTHV, chunk)
    d_memory_MKV = d_final_BHKV.flatten(0, 1).clone()
    d_x_NMXK = torch.empty_like(x_NMXK)
    d_values_NMCV = torch.empty_like(errors_NMCV)
    d_beta_NMC, d_sums_NMC = torch.empty_like(beta_NMC), torch.empty_like(beta_NMC)
    d_reads_MXV = errors_NMCV.new_empty(rows, 2 * chunk, width)  # ∂out over -Z
    d_out_MCV, minus_z_MCV = d_reads_MXV[:, :chunk], d_reads_MXV[:, chunk:]
    for n in reversed(range(n_chunks)):
        x_MXK, error_MCV, found_MKV = x_NMXK[n], errors_NMCV[n], found_NMKV[n]
        beta_MC1, to_end_MC1 = beta_NMC[n].unsqueeze(-1), decays.to_end_NMC[n].unsqueeze(-1)
        keys_MCK = x_MXK[:, chunk:]
        between = decays.between(n, above_CC)
        scores = _scores(x_MXK, between)
        d_out_MCV.view(batch, -1, chunk, width).copy_(d_out_NBHCV[n])
        d_update_MCV = (keys_MCK @ d_memory_MKV).mul_(to_end_MC1)
        d_update_MCV.baddbmm_(scores[:, 0].mT, d_out_MCV)
        d_update_MCV = _solve_transposed(scores[:, 1] * beta_MC1, d_update_MCV)
        d_beta_NMC[n] = torch.linalg.vecdot(d_update_MCV, error_MCV)
        torch.mul(d_update_MCV, beta_MC1, out=d_values_NMCV[n])
        torch.neg(d_values_NMCV[n], out=minus_z_MCV)
        update_MCV = error_MCV * beta_MC1

        d_scores = (d_reads_MXV @ update_MCV.mT).unflatten(1, (2, chunk)).mul_(between)
        d_scores[:, 1].diagonal(dim1=-2, dim2=-1).zero_()
        d_scores_MXC = d_scores.flatten(1, 2)
        from_start = decays.from_start_NMC[n][:, None, :, None]
        # as readers: queries, and keys that predict
        d_x_MXK = (
            (d_reads_MXV @ found_MKV.mT).unflatten(1, (2, chunk)).mul_(from_start).flatten(1, 2)
        )
        d_x_MXK.baddbmm_(d_scores_MXC, keys_MCK)
        # as writers
        d_written_MCK = (update_MCV @ d_memory_MKV.mT).mul_(to_end_MC1)
        d_written_MCK.baddbmm_(d_scores_MXC.mT, x_MXK)
        d_sums = torch.linalg.vecdot(x_MXK, d_x_MXK).view(rows, 2, chunk).sum(1)
        d_sums -= torch.linalg.vecdot(keys_MCK, d_written_MCK)
        d_sums[:, -1] += (found_NMKV[n + 1] * d_memory_MKV).sum((-1, -2))
        d_sums_NMC[n] = d_sums
        d_x_MXK[:, chunk:] += d_written_MCK
        d_x_NMXK[n] = d_x_MXK
        d_reads = (d_reads_MXV.unflatten(1, (2, chunk)) * from_start).flatten(1, 2)
        d_memory_MKV = d_memory_MKV * decays.whole_NM[n, :, None, None]
        d_memory_MKV.baddbmm_(x_MXK.mT, d_reads)
    d_x_NMXK[:, :, :chunk] *= ctx.scale
    d_log_NMC = d_sums_NMC.flip(-1).cumsum(-1).flip(-1)
    d_log_BTH = _positions(d_log_NMC.unsqueeze(-1), batch, length)[..., 0]
    if cut_BTH is not None:
        d_log_BTH = d_log_BTH.masked_fill(cut_BTH, 0.0)
    return (
        _positions(d_x_NMXK[:, :, :chunk], batch, length),
        _positions(d_x_NMXK[:, :, chunk:], batch, length),
        _positions(d_values_NMCV, batch, length),
        d_log_BTH,
        _positions(d_beta_NMC.unsqueeze(-1), batch, length)[..., 0],
        d_memory_MKV.unflatten(0, (batch, -1)),
        None,
        None,
    )


def gated_delta_chunked(
    queries_BTHK: Tensor,
    keys_BTHK: Tensor,
    values_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    initial_BHKV: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The chunkwise form; arguments as in :func:`palimpsest.ops.gated_delta.gated_delta`."""
    if hold_BT is not None:
        beta_BTH = beta_BTH.masked_fill(hold_BT.unsqueeze(-1), 0.0)
        log_decay_BTH = log_decay_BTH.masked_fill(hold_BT.unsqueeze(-1), 0.0)
    cut_BTH = log_decay_BTH.detach() < lowest_log_decay(log_decay_BTH.dtype)
    if reset_BT is not None:
        cut_BTH = cut_BTH | reset_BT.unsqueeze(-1)
    any_cut = reset_BT is not None or bool(cut_BTH.any())
    if any_cut:
        log_decay_BTH = log_decay_BTH.masked_fill(cut_BTH, 0.0)
    with without_autocast(keys_BTHK.device):
        out_BTHV, final_BHKV = _GatedDelta.apply(  # type: ignore[no-untyped-call]
            queries_BTHK,
            keys_BTHK,
            values_BTHV,
            log_decay_BTH,
            beta_BTH,
            initial_BHKV,
            cut_BTH if any_cut else None,
            scale,
        )
    return out_BTHV, final_BHKV
