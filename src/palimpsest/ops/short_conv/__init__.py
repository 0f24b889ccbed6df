"""Causal depthwise convolution over a few positions, with a streaming window.

B batch, T positions, C channels, W width of the kernel.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.short_conv.compiled import short_conv_numba
from palimpsest.ops.short_conv.reference import short_conv_reference
from palimpsest.ops.short_conv.taps import short_conv_taps
from palimpsest.ops.threads import numba_missing

__all__ = ["short_conv"]

_dispatcher = Dispatcher("short_conv")
_dispatcher.register("reference", short_conv_reference)
_dispatcher.register("taps", short_conv_taps)
_dispatcher.register("numba", short_conv_numba, missing=numba_missing)


def short_conv(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor | None = None,
    window_BWC: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = bias + Σ_w weight[:, w] ⊙ x_{t-W+1+w}: each channel on its own, nothing from later.

    For convolutions between channels, see :func:`palimpsest.ops.causal_conv.causal_conv`.

    Backend chosen where none is named: ``numba`` for tensors on a CPU, where numba is installed;
    otherwise ``taps``. Arithmetic is in the widest dtype of the arguments, at least float32.

    Args:
        x_BTC: the inputs.
        weight_CW: one kernel per channel; the last tap meets the current input.
        bias_C: added to every output.
        window_BWC: (B, W - 1, C), the inputs just before position 0, oldest first; zeros where it
            is None.
        hold: (B, T) bool, True at padding: the window does not move, and the output is 0.
        reset: (B, T) bool, True at the first position of a document: the window is cleared before
            it.
        backend: ``reference``, ``taps`` or ``numba``.

    Returns:
        y_BTC in the dtype of ``x_BTC``, and the window (B, W - 1, C) after the last position, in
        the dtype of the arithmetic. Both carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        The short convolutions of Mamba (arXiv 2312.00752) and Gated DeltaNet (arXiv 2412.06464).
    """
    if x_BTC.dim() != 3 or x_BTC.shape[1] == 0:
        raise ValueError(
            f"x_BTC has shape {tuple(x_BTC.shape)}; it must be (B, T, C) with at least one position"
        )
    batch, _, channels = x_BTC.shape
    if weight_CW.dim() != 2 or weight_CW.shape[0] != channels or weight_CW.shape[1] == 0:
        raise ValueError(
            f"weight_CW has shape {tuple(weight_CW.shape)}; it must be (C={channels}, W) with W at "
            "least 1"
        )
    named = {"x_BTC": x_BTC, "weight_CW": weight_CW}
    if bias_C is not None:
        require_shape("bias_C", bias_C, "C", (channels,))
        named["bias_C"] = bias_C
    past = weight_CW.shape[1] - 1
    if window_BWC is not None:
        require_shape("window_BWC", window_BWC, "BWC", (batch, past, channels))
        named["window_BWC"] = window_BWC
    dtype = arithmetic_dtype(named, hold, reset)
    if bias_C is None:
        bias_C = x_BTC.new_zeros(channels, dtype=dtype)
    if window_BWC is None:
        window_BWC = x_BTC.new_zeros(batch, past, channels, dtype=dtype)
    compiles = x_BTC.device.type == "cpu" and numba_missing() is None
    run = _dispatcher.pick(backend, lambda: "numba" if compiles else "taps")
    y_BTC, window_BWC = run(
        x_BTC.to(dtype), weight_CW.to(dtype), bias_C.to(dtype), window_BWC.to(dtype), hold, reset
    )
    return y_BTC.to(x_BTC.dtype), window_BWC
