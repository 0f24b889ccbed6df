"""The taps that layers share: the stream, and what their matrix memories hold.

A layer shows here what it has at hand; what a memory holds after each position is followed again
from its writes, for whoever asks.

Legend: B batch, T time, D width of the stream, H heads, K width of keys, U width of values,
S state_dim, R slots, X columns of a projection.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.memory_trace import trace_memory
from palimpsest.ops.triple_scan.reference import split_columns
from palimpsest.taps import Tap, offer, offer_at, wanted

__all__ = ["EMBEDDING", "STREAM", "matrix_taps", "pair_taps", "show_matrix", "show_pairs"]

EMBEDDING = Tap("(B,T,D)", "the stream below the first layer", replaceable=True)
STREAM = {
    "read": Tap("(B,T,D)", "what the layer's mixer adds to the stream", replaceable=True),
    "ffn": Tap("(B,T,D)", "what its feed-forward network adds", replaceable=True),
    "residual": Tap("(B,T,D)", "the stream after the layer", replaceable=True),
}
_NORM, _MATRIX = "memory.norm", "memory.matrix"


def matrix_taps(norm: str, matrix: str) -> dict[str, Tap]:
    """The two taps of :func:`show_matrix`, of the shapes given."""
    return {
        _NORM: Tap(norm, "Frobenius norm of the memory after the write", "state", cheap=False),
        _MATRIX: Tap(
            matrix,
            "the memory after the write, at the positions that are recorded",
            "state",
            cheap=False,
        ),
    }


def show_matrix(
    module: nn.Module,
    keys_BTHK: Tensor,
    updates_BTHU: Tensor,
    log_decay_BTH: Tensor,
    memory_BHKU: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    beta_BTH: Tensor | None = None,
    sides: int = 0,
) -> None:
    """Offer a memory and its norms; arguments as in ``trace_memory``.

    With ``sides`` the head axis is that many memories of the same heads, side by side.
    """
    if not wanted(module, _NORM, _MATRIX):
        return

    def split(x: Tensor) -> Tensor:
        return x.unflatten(2, (sides, -1)) if sides else x

    def follow(steps: Tensor | None) -> tuple[Tensor, Tensor]:
        trace = trace_memory(
            keys_BTHK,
            updates_BTHU,
            log_decay_BTH,
            memory_BHKU,
            beta_BTH=beta_BTH,
            steps=steps,
            hold_BT=hold_BT,
            reset_BT=reset_BT,
        )
        return split(trace.norms), split(trace.memories)

    offer(module, _NORM, lambda: follow(None)[0])
    offer_at(module, _MATRIX, keys_BTHK.shape[1], lambda steps: follow(steps)[1])


def pair_taps(n_slots: int) -> dict[str, Tap]:
    """The taps of :func:`show_pairs`."""
    found = {
        "state": Tap("(B,T,H,S)", "the running state s after the position", "state"),
        "decay.state": Tap("(B,T,H)", "λ, what the running state keeps of itself"),
        "decay.pair": Tap("(B,T,H)", "γ, what the pair memory keeps of itself"),
        "left": Tap("(B,T,H,S)", "a, what the running state takes in"),
        "right": Tap("(B,T,H,S)", "b, the second half of a pair"),
        "query.left": Tap("(B,T,H,S)", "qˡ"),
        "query.right": Tap("(B,T,H,S)", "qʳ"),
    }
    if n_slots:
        found["slots"] = Tap("(B,T,H,R)", "the share of each slot in the pair")
        return {**found, **matrix_taps("(B,T,2,H)", "(B,T,2,H,S,R)")}
    return {**found, **matrix_taps("(B,T,H)", "(B,T,H,S,S)")}


def show_pairs(
    module: nn.Module,
    projected_BTX: Tensor,
    n_heads: int,
    n_slots: int,
    running_BHS: Tensor,
    memory: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
) -> None:
    """Offer what a triple-latent layer's op keeps to itself.

    Args:
        projected_BTX: the columns of a, b, qˡ, qʳ, λ, γ and the slots, before their activations.
        n_slots: R, or 0 for the memory in full.
        running_BHS, memory: the states before the first position.
    """
    projected_BTX = projected_BTX.detach()
    columns = projected_BTX.shape[-1] - n_heads * n_slots
    features, gates = split_columns(projected_BTX[..., :columns], n_heads)
    shares_BTHR = projected_BTX[..., columns:].unflatten(-1, (n_heads, -1))
    wide = running_BHS.dtype

    def states(exclusive: bool) -> Tensor:
        keep_BTH = gates[:, :, 0].to(wide)
        added = keep_BTH.neg().sigmoid().unsqueeze(-1) * features[:, :, 0].to(wide).tanh()
        given = (added, F.logsigmoid(keep_BTH), running_BHS.detach())
        return decay_scan(*given, exclusive=exclusive, hold=hold_BT, reset=reset_BT)[0]

    offer(module, "state", lambda: states(False))
    for i, name in enumerate(("decay.state", "decay.pair")):
        offer(module, name, lambda i=i: gates[:, :, i].sigmoid())  # type: ignore[misc]
    for i, name in enumerate(("left", "right", "query.left", "query.right")):
        offer(module, name, lambda i=i: features[:, :, i].tanh())  # type: ignore[misc]
    if n_slots:
        offer(module, "slots", lambda: shares_BTHR.softmax(-1))
    if not wanted(module, _NORM, _MATRIX):
        return
    found_BTHS, right_BTHS = states(True), features[:, :, 1].to(wide).tanh()
    log_decay_BTH = F.logsigmoid(gates[:, :, 1].to(wide))
    written_BTH1 = gates[:, :, 1].to(wide).neg().sigmoid().unsqueeze(-1)
    memory = memory.detach()
    if n_slots:
        update_BTHR = written_BTH1 * shares_BTHR.to(wide).softmax(-1)
        show_matrix(
            module,
            _side_by_side(found_BTHS, right_BTHS),
            _side_by_side(update_BTHR, update_BTHR),
            _side_by_side(log_decay_BTH, log_decay_BTH),
            memory.flatten(1, 2),
            hold_BT,
            reset_BT,
            sides=2,
        )
    else:
        update_BTHS = written_BTH1 * right_BTHS
        given_masks = (hold_BT, reset_BT)
        show_matrix(module, found_BTHS, update_BTHS, log_decay_BTH, memory, *given_masks)


def _side_by_side(left: Tensor, right: Tensor) -> Tensor:
    """Two (B,T,H,…) as (B,T,2H,…), the left heads first."""
    return torch.cat([left, right], 2)
