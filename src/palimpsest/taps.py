"""Where one can look inside a model while it runs.

A module says ``tap(self, "query", query_BTHK)`` where the quantity exists anyway, and
``offer(self, "memory.norm", make)`` where it has to be computed for whoever asks. While nobody
listens, a call is a function call and one comparison. A listener knows a tap by the module that
it comes from, so that a second model that runs meanwhile is not mistaken for the first.

``describe_taps()`` of a module names its taps; ``palimpsest.analysis`` has the listeners.

Legend: B batch, T time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

__all__ = [
    "Listener",
    "Tap",
    "Tapped",
    "hears",
    "listen",
    "listening",
    "moved",
    "offer",
    "offer_at",
    "tap",
    "wanted",
]

TapType = Literal["product", "state", "int64"]


@dataclass(frozen=True)
class Tap:
    """What a tap gives.

    Attributes:
        shape: its axes, such as "(B,T,H,K)"; the first two are always batch and time.
        doc: what it is.
        dtype: "product" is the dtype of the matrix products, "state" that of states, at least fp32.
        cheap: whether it is recorded when no taps are named. The others cost a recurrence of
            their own, or much memory.
        replaceable: whether what a listener returns takes its place.
    """

    shape: str
    doc: str
    dtype: TapType = "product"
    cheap: bool = True
    replaceable: bool = False


class Tapped(Protocol):
    """A module with taps."""

    def describe_taps(self) -> dict[str, Tap]:
        """Its taps by name, without the place of the module in the model."""


class Listener(Protocol):
    """Who takes what comes out of the taps; ``first`` is the step of the call that it starts at."""

    def wants(self, module: nn.Module, name: str) -> bool:
        """Whether it takes a tap at all."""

    def steps(self, module: nn.Module, name: str, length: int, first: int) -> Tensor:
        """The steps that it takes of a tap which is computed for chosen steps only."""

    def take(self, module: nn.Module, name: str, tensor: Tensor, first: int) -> Tensor:
        """Take a tensor (B,T,…) and return it, or what takes its place."""

    def made(
        self, module: nn.Module, name: str, tensor: Tensor, first: int, steps: Tensor | None
    ) -> None:
        """Take a tensor that nobody else holds, for all steps or for those that were asked for."""

    def moved(self, module: nn.Module, first: int) -> None:
        """The call goes on piece by piece; what follows starts at this step."""


_lock = threading.Lock()
_count = 0  # listeners in any thread: the only thing that a tap looks at while nobody listens
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("palimpsest_taps", default=())


def listening() -> bool:
    """Whether anybody may be listening; to guard a group of taps with one comparison."""
    return _count > 0


def tap(module: nn.Module, name: str, tensor: Tensor, first: int = 0) -> Tensor:
    """Show a tensor that exists anyway.

    Args:
        module: whose tap it is.
        name: as in its ``describe_taps``.
        tensor: (B,T,…).
        first: the step of the call at which it starts.

    Returns:
        The tensor, or what a listener put in its place.
    """
    if _count:
        for listener in _listeners.get():
            if listener.wants(module, name):
                tensor = listener.take(module, name, tensor, first)
    return tensor


def offer(module: nn.Module, name: str, make: Callable[[], Tensor], first: int = 0) -> None:
    """Offer a tensor that is made only where somebody wants it; ``make`` returns a new one."""
    if _count:
        takers = [x for x in _listeners.get() if x.wants(module, name)]
        if takers:
            tensor = make()
            for listener in takers:
                own = tensor if listener is takers[0] else tensor.clone()
                listener.made(module, name, own, first, None)


def offer_at(
    module: nn.Module, name: str, length: int, make: Callable[[Tensor], Tensor], first: int = 0
) -> None:
    """Offer a large tensor step by step.

    Args:
        length: T, of which the listeners choose steps.
        make: from (n) ascending steps below T to a new tensor (B,n,…).
    """
    if _count:
        for listener in _listeners.get():
            if listener.wants(module, name):
                steps = listener.steps(module, name, length, first)
                if len(steps):
                    listener.made(module, name, make(steps), first, steps)


def wanted(module: nn.Module, *names: str) -> bool:
    """Whether anybody wants one of some taps."""
    return _count > 0 and any(x.wants(module, n) for x in _listeners.get() for n in names)


def moved(module: nn.Module, first: int) -> None:
    """Tell the listeners at which step of the call the next piece of it starts."""
    if _count:
        for listener in _listeners.get():
            listener.moved(module, first)


def hears(listener: Listener) -> bool:
    """Whether a listener listens to this thread."""
    return any(x is listener for x in _listeners.get())


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Let a listener hear the taps of this thread while the block runs.

    Listeners hear in the order in which they came, each what the one before it returned.
    """
    global _count
    token = _listeners.set((*_listeners.get(), listener))
    with _lock:
        _count += 1
    try:
        yield
    finally:
        with _lock:
            _count -= 1
        _listeners.reset(token)
