"""Choosing the implementation of an op, and proving which one ran.

Every op has a ``reference`` backend, the plain loop over time, and one or more fast exact forms.
The op picks one by a rule written in its docstring; a caller can name another for one call
(``backend=``) or for a block of code (:func:`force_backend`), and :func:`backend_calls` counts what
ran, so that a test cannot pass on the wrong path by accident.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from palimpsest.arguments import require_type
from palimpsest.errors import InputError, PalimpsestError

__all__ = ["BackendUnavailableError", "Dispatcher", "backend_calls", "force_backend"]

EVERY_OP = "*"

_forced: ContextVar[dict[str, str] | None] = ContextVar("palimpsest_forced_backends", default=None)
_calls: Counter[tuple[str, str]] = Counter()
_dispatchers: dict[str, Dispatcher] = {}


class BackendUnavailableError(PalimpsestError, RuntimeError):
    """The backend exists, but cannot run here (a package or a device is missing)."""


@dataclass(frozen=True)
class _Backend:
    run: Callable[..., Any]
    missing: Callable[[], str | None]


def _nothing_missing() -> str | None:
    return None


class Dispatcher:
    """The backends of one op.

    Args:
        op: the op's public name; it is the key of :func:`force_backend` and :func:`backend_calls`.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self._backends: dict[str, _Backend] = {}
        _dispatchers[op] = self

    def register(
        self,
        name: str,
        run: Callable[..., Any],
        *,
        missing: Callable[[], str | None] = _nothing_missing,
    ) -> None:
        """Add a backend.

        Args:
            name: what a user calls it.
            run: the implementation; all backends of an op share one signature.
            missing: returns None where the backend can run, otherwise one sentence that says what
                is missing and how to get it.
        """
        if name in self._backends:
            raise ValueError(f"op {self.op!r} already has a backend {name!r}")
        self._backends[name] = _Backend(run, missing)

    def names(self) -> tuple[str, ...]:
        """All backends, whether or not they can run here."""
        return tuple(self._backends)

    def available(self) -> tuple[str, ...]:
        """The backends that can run here."""
        return tuple(name for name, b in self._backends.items() if b.missing() is None)

    def pick(self, backend: str | None, automatic: Callable[[], str]) -> Callable[..., Any]:
        """The implementation to call now; counts the choice.

        Args:
            backend: the caller's explicit choice, or None.
            automatic: the op's own rule, asked only where neither the caller nor
                :func:`force_backend` has chosen.

        Raises:
            InputError: the op has no backend of that name.
            BackendUnavailableError: it has, but it cannot run here.
        """
        name = backend or self._forced_name() or automatic()
        found = self._backends.get(name)
        if found is None:
            raise InputError(
                f"backend={name!r}: op {self.op!r} has the backends {', '.join(self._backends)}"
            )
        reason = found.missing()
        if reason is not None:
            raise BackendUnavailableError(f"backend={name!r} of op {self.op!r}: {reason}")
        _calls[self.op, name] += 1
        return found.run

    def _forced_name(self) -> str | None:
        forced = _forced.get()
        if forced is None:
            return None
        if self.op in forced:
            return forced[self.op]
        everywhere = forced.get(EVERY_OP)
        return everywhere if everywhere in self._backends else None


@contextmanager
def force_backend(everywhere: str | None = None, /, **by_op: str) -> Iterator[None]:
    """Force backends inside a ``with`` block.

    Args:
        everywhere: a backend for every op that has one of this name (others choose as usual).
        by_op: op name = backend name; an op named here must have that backend.

    Raises:
        InputError: an op or a backend that does not exist.

    Example::

        with palimpsest.ops.force_backend("reference"):
            out = model(ids)
    """
    for wanted in (everywhere, *by_op.values()):
        if wanted is not None:
            require_type(wanted, "backend", str, "pass the name of a backend")
    _import_every_op()
    known = {name for d in _dispatchers.values() for name in d.names()}
    if everywhere is not None and everywhere not in known:
        raise InputError(f"backend {everywhere!r} is not one of {', '.join(sorted(known))}")
    for op, name in by_op.items():
        if op not in _dispatchers:
            raise InputError(f"op {op!r} is not one of {', '.join(sorted(_dispatchers))}")
        if name not in _dispatchers[op].names():
            raise InputError(
                f"backend={name!r}: op {op!r} has {', '.join(_dispatchers[op].names())}"
            )
    merged = dict(_forced.get() or {})
    if everywhere is not None:
        merged = {EVERY_OP: everywhere}
    merged.update(by_op)
    token = _forced.set(merged)
    try:
        yield
    finally:
        _forced.reset(token)


def reference_everywhere() -> bool:
    """Whether the innermost :func:`force_backend` chose "reference" for all ops."""
    return (_forced.get() or {}).get(EVERY_OP) == "reference"


def backend_calls() -> Counter[tuple[str, str]]:
    """How often each (op, backend) ran in this process; a copy, so that two can be subtracted."""
    return Counter(_calls)


def _import_every_op() -> None:
    """An op is known once its package is imported, which nothing may have done so far."""
    ops = importlib.import_module("palimpsest.ops")
    for found in pkgutil.iter_modules(ops.__path__):
        if found.ispkg:
            importlib.import_module(f"palimpsest.ops.{found.name}")


def elsewhere(op: str) -> str:
    """The backend of an op that runs on any device: a fast one, or the reference."""
    rest = [n for n in _dispatchers[op].names() if n not in ("reference", "numba", "fla")]
    return rest[0] if rest else "reference"


def dispatchers() -> dict[str, Dispatcher]:
    """All ops by name (for ``palimpsest info`` and the tests)."""
    _import_every_op()
    return dict(_dispatchers)
