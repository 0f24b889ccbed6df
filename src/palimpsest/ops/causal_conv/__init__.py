"""Causal short convolution with a streaming carry.

B batch, T positions, D input channels, E output channels, W width of the kernel.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.causal_conv.products import causal_conv_products
from palimpsest.ops.causal_conv.reference import causal_conv_reference
from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher

__all__ = ["causal_conv"]

_dispatcher = Dispatcher("causal_conv")
_dispatcher.register("reference", causal_conv_reference)
_dispatcher.register("products", causal_conv_products)


def causal_conv(
    x_BTD: Tensor,
    weight: Tensor,
    bias_E: Tensor | None = None,
    carry_BWD: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = bias + Σ_w weight[…, w] x_{t-W+1+w}: position t meets no input after itself.

    Backend chosen where none is named: ``products``. Arithmetic is in the widest dtype of the
    arguments, at least float32.

    Args:
        x_BTD: the inputs.
        weight: in the layout of :class:`torch.nn.Conv1d`, the last tap meeting the current input:
            (E, D, W) between all channels, or (D, 1, W) for each channel on its own (depthwise).
        bias_E: added to every output.
        carry_BWD: (B, W - 1, D), the inputs just before position 0, oldest first; zeros where it
            is None.
        hold: (B, T) bool, True at padding: the window does not move, and the output is 0.
        reset: (B, T) bool, True at the first position of a document: the window is cleared before
            it.
        backend: ``reference`` or ``products``.

    Returns:
        y_BTE in the dtype of ``x_BTD``, and the carry (B, W - 1, D) after the last position, in
        the dtype of the arithmetic. Both carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.

    Source:
        arXiv 2606.05175, the local convolution of the hybrids. The published code pads on both
        sides and so sees two tokens ahead; this one cannot.
    """
    if x_BTD.dim() != 3 or x_BTD.shape[1] == 0:
        raise ValueError(
            f"x_BTD has shape {tuple(x_BTD.shape)}; it must be (B, T, D) with at least one position"
        )
    batch, _, channels = x_BTD.shape
    depthwise = tuple(weight.shape[:2]) == (channels, 1)
    if weight.dim() != 3 or weight.shape[2] == 0 or not (depthwise or weight.shape[1] == channels):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; for D={channels} channels it must be "
            f"(E, {channels}, W), or depthwise ({channels}, 1, W)"
        )
    named = {"x_BTD": x_BTD, "weight": weight}
    if bias_E is not None:
        require_shape("bias_E", bias_E, "E", (weight.shape[0],))
        named["bias_E"] = bias_E
    past = weight.shape[2] - 1
    if carry_BWD is not None:
        require_shape("carry_BWD", carry_BWD, "BWD", (batch, past, channels))
        named["carry_BWD"] = carry_BWD
    dtype = arithmetic_dtype(named, hold, reset)
    if carry_BWD is None:
        carry_BWD = x_BTD.new_zeros(batch, past, channels, dtype=dtype)
    run = _dispatcher.pick(backend, lambda: "products")
    y_BTE, carry_BWD = run(
        x_BTD.to(dtype),
        weight.to(dtype),
        None if bias_E is None else bias_E.to(dtype),
        carry_BWD.to(dtype),
        hold,
        reset,
    )
    return y_BTE.to(x_BTD.dtype), carry_BWD
