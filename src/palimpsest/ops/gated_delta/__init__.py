"""The gated delta rule: a memory that forgets, and corrects what it predicts wrongly.

B batch, T positions, H heads, K width of keys and queries, V width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.gated_delta.chunked import gated_delta_chunked
from palimpsest.ops.gated_delta.library import WIDEST, fla_missing, gated_delta_fla
from palimpsest.ops.gated_delta.reference import gated_delta_reference

__all__ = ["gated_delta"]

_dispatcher = Dispatcher("gated_delta")
_dispatcher.register("reference", gated_delta_reference)
_dispatcher.register("chunked", gated_delta_chunked)
_dispatcher.register("fla", gated_delta_fla, missing=fla_missing)


def gated_delta(
    queries_BTHK: Tensor,
    keys_BTHK: Tensor,
    values_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    initial_BHKV: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    scale: float | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """S ← exp(log_decay) S, then S ← S + k ⊗ β (v - Sᵀ k); the output is Sᵀ q · scale.

    The value that the key recalls is read from the memory that has decayed already. (GPN+M reads
    it before the decay: :mod:`palimpsest.ops.grounded_loop`.)

    Backend chosen where none is named: ``reference`` for a single position; else ``fla`` on CUDA
    where ``fla-core`` is installed and its products are no coarser than asked for: with bf16 or
    fp16 values, or with float32 ones after ``torch.set_float32_matmul_precision("high")``, since
    its float32 products are in TF32; else ``chunked``. Arithmetic is in the widest dtype of the
    arguments, at least float32 (``fla`` takes its products in the values' own).

    Args:
        queries_BTHK: what each position reads with.
        keys_BTHK: where each position writes; of norm 1, or at least β |k|² < 2, for a memory
            that does not grow.
        values_BTHV: what each position wants to be recalled.
        log_decay_BTH: log of what each position keeps of the memory, ≤ 0; -inf forgets all of it.
        beta_BTH: how far each position goes towards its value, in [0, 1].
        initial_BHKV: the memory before position 0; zeros where it is None.
        hold: (B, T) bool, True at padding: nothing is written and nothing decays there.
        reset: (B, T) bool, True at the first position of a document: the memory is cleared
            before it.
        scale: factor of the output; None takes K^-1/2.
        backend: ``reference``, ``chunked`` or ``fla``.

    Returns:
        out_BTHV in the dtype of ``values_BTHV``, and final_BHKV, the memory after the last
        position, in the dtype of the arithmetic. Both carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        arXiv 2412.06464, equation 10; the chunkwise form is that of arXiv 2406.06484 with decay.
    """
    if values_BTHV.dim() != 4 or values_BTHV.shape[1] == 0:
        raise ValueError(
            f"values_BTHV has shape {tuple(values_BTHV.shape)}; "
            "it must be (B, T, H, V) with at least one position"
        )
    batch, length, heads, width = values_BTHV.shape
    key_width = keys_BTHK.shape[-1] if keys_BTHK.dim() else 0
    require_shape("keys_BTHK", keys_BTHK, "BTHK", (batch, length, heads, key_width))
    require_shape("queries_BTHK", queries_BTHK, "BTHK", (batch, length, heads, key_width))
    require_shape("log_decay_BTH", log_decay_BTH, "BTH", (batch, length, heads))
    require_shape("beta_BTH", beta_BTH, "BTH", (batch, length, heads))
    named = {
        "values_BTHV": values_BTHV,
        "queries_BTHK": queries_BTHK,
        "keys_BTHK": keys_BTHK,
        "log_decay_BTH": log_decay_BTH,
        "beta_BTH": beta_BTH,
    }
    if initial_BHKV is not None:
        require_shape("initial_BHKV", initial_BHKV, "BHKV", (batch, heads, key_width, width))
        named["initial_BHKV"] = initial_BHKV
    dtype = arithmetic_dtype(named, hold, reset)
    if initial_BHKV is None:
        initial_BHKV = values_BTHV.new_zeros(batch, heads, key_width, width, dtype=dtype)

    def automatic() -> str:
        if length == 1:
            return "reference"
        half = values_BTHV.dtype.itemsize == 2
        coarse = half or torch.get_float32_matmul_precision() != "highest"
        suits = values_BTHV.is_cuda and dtype == torch.float32 and key_width <= WIDEST and coarse
        return "fla" if suits and fla_missing() is None else "chunked"

    run = _dispatcher.pick(backend, automatic)
    wide = values_BTHV.dtype if run is gated_delta_fla else dtype
    out_BTHV, final_BHKV = run(
        queries_BTHK.to(wide),
        keys_BTHK.to(wide),
        values_BTHV.to(wide),
        log_decay_BTH.to(dtype),
        beta_BTH.to(dtype),
        initial_BHKV.to(dtype),
        hold,
        reset,
        key_width**-0.5 if scale is None else scale,
    )
    return out_BTHV.to(values_BTHV.dtype), final_BHKV
