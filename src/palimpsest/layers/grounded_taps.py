"""The taps of a grounded block: which there are, and handing them out after a window.

Legend: B batch, T time, D d_state, E d_emb, H heads, K d_key, U d_val.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from palimpsest.ops.grounded_loop import LoopView, Observe
from palimpsest.taps import Tap, offer, offer_at, wanted

__all__ = ["block_taps", "observer"]

Makers = dict[str, tuple[Tap, Callable[[LoopView], Tensor]]]

_BLOCK: Makers = {
    "state.grounded": (
        Tap("(B,T,D)", "the state after grounding on the token", "state"),
        LoopView.grounded,
    ),
    "gate.ground": (
        Tap("(B,T,D)", "the gate that grounding puts on the prediction", "state"),
        LoopView.ground_gate,
    ),
}
_WRITE: Makers = {
    "memory.key": (
        Tap("(B,T,H,K)", "key of the write, from the state one step before", "state"),
        LoopView.key,
    ),
    "memory.value": (Tap("(B,T,H,U)", "value of the write", "state"), LoopView.value),
    "memory.error": (
        Tap("(B,T,H,U)", "the value less what the memory predicted for the key", "state"),
        LoopView.error,
    ),
    "memory.beta": (Tap("(B,T,H)", "β, the strength of the write", "state"), LoopView.beta),
    "memory.log_decay": (
        Tap("(B,T,H)", "logarithm of what the memory keeps of itself", "state"),
        LoopView.log_decay,
    ),
    "memory.norm": (
        Tap("(B,T,H)", "Frobenius norm of the memory after the write", "state"),
        LoopView.memory_norm,
    ),
}
_LAYER: dict[str, tuple[Tap, Callable[[LoopView, int], Tensor]]] = {
    "gate.predict": (
        Tap("(B,T,D)", "the layer's gate on its input", "state"),
        LoopView.predict_gate,
    ),
    "ffn": (Tap("(B,T,D)", "what the layer's SwiGLU adds", "state"), LoopView.ffn),
    "residual": (
        Tap("(B,T,D)", "the layer's output", "state"),
        LoopView.residual,
    ),
}
_READ: dict[str, tuple[Tap, Callable[[LoopView, int], Tensor]]] = {
    "query": (Tap("(B,T,H,K)", "the layer's query", "state"), LoopView.query),
    "memory_read": (
        Tap(
            "(B,T,H,U)",
            "what the query finds in the memory, before norm and gate",
            "state",
            cheap=False,
        ),
        LoopView.memory_read,
    ),
    "read_gate": (
        Tap("(B,T,H,U)", "the gate on what is read", "state"),
        LoopView.read_gate,
    ),
    "read": (Tap("(B,T,D)", "what the layer's read adds", "state"), LoopView.read),
}
_LAST = Tap("(B,T,D)", "the last layer's output, which is state.predicted", "state", cheap=False)
_MATRIX = "memory.matrix"


def _makers(n_layers: int, memory: bool) -> Makers:
    """Name → the tap and how it is made from a view."""
    found = {**_BLOCK, **(_WRITE if memory else {})}
    of_a_layer = {**_LAYER, **(_READ if memory else {})}
    for i in range(n_layers):
        for name, (about, make) in of_a_layer.items():
            if name == "residual" and i == n_layers - 1:
                about = _LAST
            found[f"layers.{i}.{name}"] = about, _of_layer(make, i)
    return found


def _of_layer(make: Callable[[LoopView, int], Tensor], layer: int) -> Callable[[LoopView], Tensor]:
    return lambda view: make(view, layer)


def block_taps(n_layers: int, memory: bool) -> dict[str, Tap]:
    """The taps of a block that come from inside its loop."""
    found = {name: about for name, (about, _) in _makers(n_layers, memory).items()}
    if memory:
        doc = "the memory after the write, at the positions that are recorded"
        found[_MATRIX] = Tap("(B,T,H,K,U)", doc, "state", cheap=False)
    return found


def observer(model: nn.Module, n_layers: int, memory: bool) -> Observe | None:
    """What hands a window's taps out, or None where nobody wants any of them."""
    makers = _makers(n_layers, memory)
    if not wanted(model, *makers, _MATRIX):
        return None

    def observe(first: int, view: LoopView) -> None:
        for name, (_, make) in makers.items():
            offer(model, name, partial(make, view), first)
        offer_at(model, _MATRIX, view.length, view.memory_at, first)

    return observe
