"""The recurrence of a triple-latent layer, from its input projection to its output projection.

B batch, T positions, H heads, S width of the state, X = 4·H·S + 2·H columns.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.pair_memory import LOOP_ENTRIES
from palimpsest.ops.threads import numba_missing
from palimpsest.ops.triple_scan.compiled import triple_scan_numba
from palimpsest.ops.triple_scan.composed import triple_scan_composed
from palimpsest.ops.triple_scan.reference import triple_scan_reference

__all__ = ["state_width", "triple_scan"]

_dispatcher = Dispatcher("triple_scan")
_dispatcher.register("reference", triple_scan_reference)
_dispatcher.register("composed", triple_scan_composed)
_dispatcher.register("numba", triple_scan_numba, missing=numba_missing)


def triple_scan(
    projected_BTX: Tensor,
    n_heads: int,
    state_BHS: Tensor | None = None,
    pairs_BHSS: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Running state and dense pair memory of one layer, read by both queries.

    With a, b, qˡ, qʳ the tanh of the first columns and λ, γ the sigmoid of the last::

        P_t = γ_t P_{t-1} + (1 - γ_t) s_{t-1} b_tᵀ      s_t = λ_t s_{t-1} + (1 - λ_t) a_t
        out_t = (P_tᵀ qˡ_t) ⊙ qʳ_t

    The same as :func:`decay_scan` and :func:`pair_memory` with the elementwise work around them,
    which at small widths costs more than they do.

    Backend chosen where none is named: ``numba`` for tensors on a CPU, where numba is installed
    and S² ≤ 1,024; otherwise ``composed``, which calls the two ops. Arithmetic is in the widest
    dtype of the arguments, at least float32.

    Args:
        projected_BTX: the layer's projections side by side: a, b, qˡ, qʳ before their tanh, each
            H·S columns (head by head), then the logits of λ and of γ, each H columns.
        n_heads: H.
        state_BHS: the running state s before position 0; zeros where it is None.
        pairs_BHSS: the pair memory P before position 0, s side first; zeros where it is None.
        hold: (B, T) bool, True at padding: neither state changes.
        reset: (B, T) bool, True at the first position of a document: both states are cleared
            before it.
        backend: ``reference``, ``composed`` or ``numba``.

    Returns:
        out_BTHS in the dtype of ``projected_BTX``, and state_BHS and pairs_BHSS after the last
        position, in the dtype of the arithmetic. All carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        arXiv 2606.05175, the triple-latent layer.
    """
    width = state_width(projected_BTX, n_heads)
    batch = projected_BTX.shape[0]
    named = {"projected_BTX": projected_BTX}
    if state_BHS is not None:
        require_shape("state_BHS", state_BHS, "BHS", (batch, n_heads, width))
        named["state_BHS"] = state_BHS
    if pairs_BHSS is not None:
        require_shape("pairs_BHSS", pairs_BHSS, "BHSS", (batch, n_heads, width, width))
        named["pairs_BHSS"] = pairs_BHSS
    dtype = arithmetic_dtype(named, hold, reset)
    if state_BHS is None:
        state_BHS = projected_BTX.new_zeros(batch, n_heads, width, dtype=dtype)
    if pairs_BHSS is None:
        pairs_BHSS = projected_BTX.new_zeros(batch, n_heads, width, width, dtype=dtype)
    small = width * width <= LOOP_ENTRIES and projected_BTX.device.type == "cpu"
    run = _dispatcher.pick(
        backend, lambda: "numba" if small and numba_missing() is None else "composed"
    )
    out_BTHS, state_BHS, pairs_BHSS = run(
        projected_BTX.to(dtype), state_BHS.to(dtype), pairs_BHSS.to(dtype), hold, reset
    )
    return out_BTHS.to(projected_BTX.dtype), state_BHS, pairs_BHSS


def state_width(projected_BTX: Tensor, n_heads: int, n_slots: int = 0) -> int:
    """S of X = H·(4·S + 2 + R) columns; refuses a shape that is not of that form."""
    if n_heads < 1:
        raise ValueError(f"n_heads={n_heads}; it must be at least 1")
    columns = projected_BTX.shape[-1]
    if projected_BTX.dim() != 3 or projected_BTX.shape[1] == 0 or columns % n_heads:
        raise ValueError(
            f"projected_BTX has shape {tuple(projected_BTX.shape)}; it must be (B, T, X), at least "
            f"one position, with X a multiple of n_heads={n_heads}"
        )
    single = 2 + n_slots  # columns of a head that are no features
    width = (columns // n_heads - single) // 4
    if width < 1 or columns != n_heads * (4 * width + single):
        raise ValueError(
            f"projected_BTX has {columns} columns; with n_heads={n_heads} it must have "
            f"{n_heads}·(4·S + {single})"
        )
    return width
