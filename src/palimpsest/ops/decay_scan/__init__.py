"""Decayed running sum: the running state of the triple-latent family.

B batch, T positions, H heads, S width of the state.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.decay_scan.arguments import (
    compute_dtype,
    require_float,
    require_mask,
    require_shape,
)
from palimpsest.ops.decay_scan.chunked import decay_scan_chunked
from palimpsest.ops.decay_scan.compiled import decay_scan_numba
from palimpsest.ops.decay_scan.reference import decay_scan_reference
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.threads import numba_missing

__all__ = ["decay_scan"]

_dispatcher = Dispatcher("decay_scan")
_dispatcher.register("reference", decay_scan_reference)
_dispatcher.register("chunked", decay_scan_chunked)
_dispatcher.register("numba", decay_scan_numba, missing=numba_missing)


def decay_scan(
    values_BTHS: Tensor,
    log_decay_BTH: Tensor,
    initial_BHS: Tensor | None = None,
    *,
    exclusive: bool = False,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """A running state with one scalar decay per head: s_t = exp(log_decay_t) · s_{t-1} + x_t.

    The triple-latent state s_t = λ_t s_{t-1} + (1 - λ_t) a_t is values (1 - λ) a and log decay
    log λ. Its pair memory needs the state each token *finds*, s_{t-1}: ``exclusive=True``.

    Backend chosen where none is named: ``numba`` for tensors on a CPU where numba is installed,
    otherwise ``chunked``. Arithmetic is in the widest dtype of the arguments, at least float32.

    Args:
        values_BTHS: what each position adds to the state, x.
        log_decay_BTH: log of the decay, ≤ 0; -inf forgets everything.
        initial_BHS: the state before position 0; zeros where it is None.
        exclusive: return the state that each position finds (after its reset, before its write)
            instead of the one that it leaves.
        hold: (B, T) bool, True at padding: the state passes through unchanged.
        reset: (B, T) bool, True at the first position of a document: the state is cleared before
            it.
        backend: ``reference``, ``chunked`` or ``numba``.

    Returns:
        states_BTHS in the dtype of ``values_BTHS``, and final_BHS, the state after the last
        position, in the dtype of the arithmetic. Both carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        arXiv 2606.05175, the running state of the layer.
    """
    if values_BTHS.dim() != 4 or values_BTHS.shape[1] == 0:
        raise ValueError(
            f"values_BTHS has shape {tuple(values_BTHS.shape)}; "
            "it must be (B, T, H, S) with at least one position"
        )
    batch, length, heads, width = values_BTHS.shape
    require_float("values_BTHS", values_BTHS, values_BTHS)
    require_shape("log_decay_BTH", log_decay_BTH, "BTH", (batch, length, heads))
    require_float("log_decay_BTH", log_decay_BTH, values_BTHS)
    require_mask("hold", hold, batch, length)
    require_mask("reset", reset, batch, length)
    if initial_BHS is not None:
        require_shape("initial_BHS", initial_BHS, "BHS", (batch, heads, width))
        require_float("initial_BHS", initial_BHS, values_BTHS)
    dtype = compute_dtype(values_BTHS, log_decay_BTH, initial_BHS)
    if initial_BHS is None:
        initial_BHS = values_BTHS.new_zeros(batch, heads, width, dtype=dtype)
    run = _dispatcher.pick(backend, lambda: "numba" if _prefers_numba(values_BTHS) else "chunked")
    states_BTHS, final_BHS = run(
        values_BTHS.to(dtype),
        log_decay_BTH.to(dtype),
        initial_BHS.to(dtype),
        hold,
        reset,
        exclusive,
    )
    return states_BTHS.to(values_BTHS.dtype), final_BHS


def _prefers_numba(values_BTHS: Tensor) -> bool:
    return values_BTHS.device.type == "cpu" and numba_missing() is None
