"""What the compiled layers' loops do to the columns of a projection; only loaded with numba.

The columns of a position are four blocks of H·S features, which take a tanh, then two blocks of H
gates, which take a sigmoid, then with slots H blocks of R logits, which take a softmax. All are
vector code here: torch's own tanh takes four times as long, its softmax over few entries more.
"""

from __future__ import annotations

from typing import Any

from palimpsest.ops.simd import exp, jit, sigmoid, tanh

__all__ = ["gates", "softmax", "squash"]


@jit
def squash(source: Any, at: int, target: Any, to: int, count: int) -> None:
    """``target[to:to + count] = tanh(source[at:at + count])``, both flat."""
    for i in range(count):
        target[to + i] = tanh(source[at + i])


@jit
def gates(source: Any, at: int, held: bool, keep: Any, write: Any) -> None:
    """What each gate keeps, σ(x), and what it writes, 1 - σ(x); at padding 1 and 0.

    1 - σ(x) is formed as σ(-x), which stays exact where a gate is nearly open.
    """
    for i in range(len(keep)):
        keep[i] = sigmoid(source[at + i])
        write[i] = sigmoid(-source[at + i])
    if held:
        keep[:] = 1
        write[:] = 0


@jit
def softmax(source: Any, at: int, target: Any, to: int, count: int) -> None:
    """``target[to:to + count] = softmax(source[at:at + count])``, both flat."""
    largest = source[at]
    for i in range(1, count):
        largest = source[at + i] if source[at + i] > largest else largest
    total = largest * 0
    for i in range(count):
        target[to + i] = exp(source[at + i] - largest)
    for i in range(count):  # no store here: see simd.py
        total += target[to + i]
    for i in range(count):
        target[to + i] /= total
