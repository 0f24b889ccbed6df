"""The compiled loops of the short convolution; only loaded where numba is installed.

B batch, T positions, C channels, W width of the kernel. A row is one text of the batch. Sources
below W - 1 lie in the window, -1 is none; without any, tap w of position t meets input t + w.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from palimpsest.ops.simd import jit
from palimpsest.ops.threads import compiled

__all__ = ["backward_loop", "forward_loop"]


@jit
def _add_product(out: Any, x: Any, y: Any) -> None:
    for c in range(out.shape[0]):
        out[c] += x[c] * y[c]


@jit
def _add_both(dx: Any, dweight: Any, dy: Any, weight: Any, x: Any) -> None:
    for c in range(dy.shape[0]):
        dx[c] += weight[c] * dy[c]
        dweight[c] += x[c] * dy[c]


@jit
def _add(out: Any, x: Any) -> None:
    for c in range(out.shape[0]):
        out[c] += x[c]


@functools.cache
def forward_loop() -> Callable[..., None]:
    """y from the inputs; every tap adds to a row of the output that stays in the cache."""

    def forward(
        x_BTC: Any,
        weight_WC: Any,
        window_BPC: Any,
        bias_C: Any,
        sources_BTW: Any,
        y_BTC: Any,
        low: int,
        high: int,
    ) -> None:
        width = weight_WC.shape[0]
        past = width - 1
        for b in range(low, high):
            for t in range(x_BTC.shape[1]):
                y_C = y_BTC[b, t]
                if sources_BTW.size > 0 and sources_BTW[b, t, past] < 0:  # padding
                    y_C[:] = 0
                    continue
                y_C[:] = bias_C
                for w in range(width):
                    source = sources_BTW[b, t, w] if sources_BTW.size > 0 else t + w
                    if source >= past:
                        _add_product(y_C, weight_WC[w], x_BTC[b, source - past])
                    elif source >= 0:
                        _add_product(y_C, weight_WC[w], window_BPC[b, source])

    return compiled(forward)


@functools.cache
def backward_loop() -> Callable[..., None]:
    """Gradients of the inputs; those of weight and bias per row, to be summed."""

    def backward(
        d_y_BTC: Any,
        x_BTC: Any,
        weight_WC: Any,
        window_BPC: Any,
        sources_BTW: Any,
        d_x_BTC: Any,
        d_weights_BWC: Any,
        d_biases_BC: Any,
        d_window_BPC: Any,
        low: int,
        high: int,
    ) -> None:
        width = weight_WC.shape[0]
        past = width - 1
        for b in range(low, high):
            for t in range(x_BTC.shape[1]):
                d_x_BTC[b, t] = 0  # all that meet it come at t or later
                if sources_BTW.size > 0 and sources_BTW[b, t, past] < 0:  # padding
                    continue
                d_y_C = d_y_BTC[b, t]
                _add(d_biases_BC[b], d_y_C)
                for w in range(width):
                    source = sources_BTW[b, t, w] if sources_BTW.size > 0 else t + w
                    d_weight_C, weight_C = d_weights_BWC[b, w], weight_WC[w]
                    if source >= past:
                        at = source - past
                        _add_both(d_x_BTC[b, at], d_weight_C, d_y_C, weight_C, x_BTC[b, at])
                    elif source >= 0:
                        _add_both(
                            d_window_BPC[b, source],
                            d_weight_C,
                            d_y_C,
                            weight_C,
                            window_BPC[b, source],
                        )

    return compiled(backward)
