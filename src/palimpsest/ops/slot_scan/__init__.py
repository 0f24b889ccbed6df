"""The recurrence of a triple-slot layer, from its input projection to its output projection.

B batch, T positions, H heads, S width of the state, R slots, X = H·(4·S + 2 + R) columns.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.pair_memory import LOOP_ENTRIES
from palimpsest.ops.slot_scan.compiled import slot_scan_numba
from palimpsest.ops.slot_scan.composed import slot_scan_composed
from palimpsest.ops.slot_scan.reference import slot_scan_reference
from palimpsest.ops.threads import numba_missing
from palimpsest.ops.triple_scan import state_width

__all__ = ["slot_scan"]

_dispatcher = Dispatcher("slot_scan")
_dispatcher.register("reference", slot_scan_reference)
_dispatcher.register("composed", slot_scan_composed)
_dispatcher.register("numba", slot_scan_numba, missing=numba_missing)


def slot_scan(
    projected_BTX: Tensor,
    n_heads: int,
    n_slots: int,
    state_BHS: Tensor | None = None,
    slots_B2HSR: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Running state and left and right slots of one layer, read by both queries.

    With a, b, qˡ, qʳ the tanh of the first columns, λ, γ the sigmoid of the next, and w the softmax
    of the last, head by head::

        Sˡ_t = γ_t Sˡ_{t-1} + (1 - γ_t) s_{t-1} w_tᵀ      Sʳ_t = γ_t Sʳ_{t-1} + (1 - γ_t) b_t w_tᵀ
        s_t = λ_t s_{t-1} + (1 - λ_t) a_t                 out_t = (Sˡ_tᵀ qˡ_t) ⊙ (Sʳ_tᵀ qʳ_t)

    The same as :func:`decay_scan` and one :func:`pair_memory` of both sides, with the elementwise
    work around them.

    Backend chosen where none is named: ``numba`` for tensors on a CPU, where numba is installed
    and S·R ≤ 1,024; otherwise ``composed``, which calls the two ops. Arithmetic is in the widest
    dtype of the arguments, at least float32.

    Args:
        projected_BTX: the layer's projections side by side: those of
            :func:`palimpsest.ops.triple_scan.triple_scan`, then H·R logits, head by head, of how
            much of a token goes into each slot.
        n_heads: H.
        n_slots: R.
        state_BHS: the running state s before position 0; zeros where it is None.
        slots_B2HSR: left slots (index 0) and right slots (1) before position 0; zeros where it is
            None.
        hold: (B, T) bool, True at padding: no state changes.
        reset: (B, T) bool, True at the first position of a document: all states are cleared
            before it.
        backend: ``reference``, ``composed`` or ``numba``.

    Returns:
        out_BTHR in the dtype of ``projected_BTX``, and state_BHS and slots_B2HSR after the last
        position, in the dtype of the arithmetic. All carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        arXiv 2606.05175, the triple-slot layer.
    """
    if n_slots < 1:
        raise ValueError(f"n_slots={n_slots}; it must be at least 1")
    width = state_width(projected_BTX, n_heads, n_slots)
    batch = projected_BTX.shape[0]
    named = {"projected_BTX": projected_BTX}
    if state_BHS is not None:
        require_shape("state_BHS", state_BHS, "BHS", (batch, n_heads, width))
        named["state_BHS"] = state_BHS
    if slots_B2HSR is not None:
        require_shape("slots_B2HSR", slots_B2HSR, "B2HSR", (batch, 2, n_heads, width, n_slots))
        named["slots_B2HSR"] = slots_B2HSR
    dtype = arithmetic_dtype(named, hold, reset)
    if state_BHS is None:
        state_BHS = projected_BTX.new_zeros(batch, n_heads, width, dtype=dtype)
    if slots_B2HSR is None:
        slots_B2HSR = projected_BTX.new_zeros(batch, 2, n_heads, width, n_slots, dtype=dtype)
    small = width * n_slots <= LOOP_ENTRIES and projected_BTX.device.type == "cpu"
    run = _dispatcher.pick(
        backend, lambda: "numba" if small and numba_missing() is None else "composed"
    )
    out_BTHR, state_BHS, slots_B2HSR = run(
        projected_BTX.to(dtype), state_BHS.to(dtype), slots_B2HSR.to(dtype), hold, reset
    )
    return out_BTHR.to(projected_BTX.dtype), state_BHS, slots_B2HSR
