"""The grounded loop: one state revised at every token by grounding, a memory write, a prediction.

Legend: B batch, T time, D d_state, H heads, K d_key, U d_val.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.grounded_loop.compiled import grounded_loop_numba
from palimpsest.ops.grounded_loop.fused import grounded_loop_fused
from palimpsest.ops.grounded_loop.observe import LoopView, Observe
from palimpsest.ops.grounded_loop.params import (
    GroundedParams,
    GroundParams,
    PredictParams,
    ReadParams,
    WriteParams,
)
from palimpsest.ops.grounded_loop.reference import grounded_loop_reference
from palimpsest.ops.threads import numba_missing

__all__ = [
    "GroundParams",
    "GroundedParams",
    "LoopView",
    "Observe",
    "PredictParams",
    "ReadParams",
    "WriteParams",
    "grounded_loop",
]

FEW_TOKENS = 8

_dispatcher = Dispatcher("grounded_loop")
_dispatcher.register("reference", grounded_loop_reference)
_dispatcher.register("fused", grounded_loop_fused)
_dispatcher.register("numba", grounded_loop_numba, missing=numba_missing)


def grounded_loop(
    drive_BTD: Tensor,
    params: GroundedParams,
    predicted_BD: Tensor,
    grounded_BD: Tensor,
    memory_BHKU: Tensor | None = None,
    *,
    hold_BT: Tensor | None = None,
    reset_BT: Tensor | None = None,
    backend: str | None = None,
    observe: Observe | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Run the loop over a window of tokens.

    A state stands between two tokens, after the prediction made from the last one. For each token:
    ground the prediction on it, write the memory once, predict through L layers.

    Args:
        drive_BTD: (B,T,D) the tokens' input, norm_e(E[x_t]) @ W_fuse.
        params: the block's parameters.
        predicted_BD: (B,D) the prediction carried in.
        grounded_BD: (B,D) the grounded state it was made from.
        memory_BHKU: (B,H,K,U) the memory carried in; None for a block without memory.
        hold_BT: (B,T) bool, True where the row's state is held (padding).
        reset_BT: (B,T) bool, True where the row's state is cleared before the token.
        backend: "reference", "fused" (pure PyTorch) or "numba". By default "reference" for fewer
            than 8 tokens, where folding the norms into the weights would cost more than it saves;
            otherwise "numba" on a CPU where numba is installed, and "fused" elsewhere.
        observe: called with a step and a :class:`LoopView` of what happened from that step on,
            for each part of the window in order. The reference keeps nothing to look at: beside
            it, "fused" runs once more for the view.

    Returns:
        predicted_BTD: (B,T,D) the prediction after each token (what the decoder reads).
        predicted_BD, grounded_BD, memory_BHKU: the state after the last token.

    Raises:
        InputError: shapes that do not belong together, named.

    Source: arXiv 2605.10643, section 2 (Ground, Write, Predict); the window form and its backward
    are derived in fused.py.
    """
    batch, _, width = drive_BTD.shape
    _check("drive", drive_BTD, (batch, drive_BTD.shape[1], params.d_state))
    _check("predicted", predicted_BD, (batch, width))
    _check("grounded", grounded_BD, (batch, width))
    if (memory_BHKU is None) != (params.write is None):
        raise InputError("memory must be given exactly when the block has write parameters")
    if memory_BHKU is not None:
        shape = (batch, params.n_heads, params.d_key, params.d_val)
        _check("memory", memory_BHKU, shape)
    for name, mask in (("hold", hold_BT), ("reset", reset_BT)):
        if mask is not None:
            _check(name, mask, (batch, drive_BTD.shape[1]))
            if mask.dtype != torch.bool:
                raise InputError(f"{name} of dtype {mask.dtype}: must be bool")
    run = _dispatcher.pick(backend, lambda: _automatic(drive_BTD))
    given = (drive_BTD, params, predicted_BD, grounded_BD, memory_BHKU, hold_BT, reset_BT)
    result: tuple[Tensor, Tensor, Tensor, Tensor | None]
    if observe is None or run is grounded_loop_reference:
        result = run(*given)
    else:
        result = run(*given, observe)
    if observe is not None and run is grounded_loop_reference:
        with torch.no_grad():
            grounded_loop_fused(*given, observe)
    return result


def _automatic(drive_BTD: Tensor) -> str:
    if drive_BTD.shape[1] < FEW_TOKENS:
        return "reference"
    if drive_BTD.device.type == "cpu" and numba_missing() is None:
        return "numba"
    return "fused"


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise InputError(f"{name} of shape {tuple(tensor.shape)}: must be {shape}")
