"""A tensor that gets longer with the text, as part of a state.

States never change, yet copying everything at every token would make generation quadratic. So a
longer value may lie in the spare room behind a shorter one: both are views of one buffer, and only
the value that ends at the buffer's frontier may write behind itself. A second continuation of the
same state finds the frontier moved and takes a copy; the state itself is a prefix that nobody
writes to.

Legend: B batch, N entries so far, T new entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from palimpsest.state import State

__all__ = ["Growing"]

LEAST_ROOM = 64
WASTE = 4  # times as much room as is used; while one entry comes and one goes it is at most 2


class _Buffer:
    """Room for more entries than are used, and the one place where it may be written."""

    def __init__(self, data: Tensor, used: int) -> None:
        self.data = data
        # a dictionary, because its pop is atomic: of two threads only one gets the room
        self.frontier = {used: True}


@dataclass(frozen=True)
class Growing(State):
    """Entries in the order in which they were appended.

    Attributes:
        entries: (B,N,…); saved, selected, moved and counted in bytes as this and no more.
    """

    kind: ClassVar[str] = "growing"

    entries: Tensor

    @property
    def length(self) -> int:
        """N."""
        return self.entries.shape[1]

    def append(self, new: Tensor) -> Growing:
        """These entries and new ones behind them; this value does not change.

        While gradients are recorded the result is a plain concatenation: what the graph has
        saved must never be written to.

        Args:
            new: (B,T,…). A wider dtype than before widens all entries.
        """
        if self.length == 0:
            # not the rest of a larger tensor with it; a graph keeps that one anyway
            whole = torch.is_grad_enabled() or new.untyped_storage().nbytes() == new.nbytes
            return Growing(new if whole else new.clone())
        dtype = torch.promote_types(self.entries.dtype, new.dtype)
        if torch.is_grad_enabled():
            return Growing(torch.cat([self.entries.to(dtype), new.to(dtype)], dim=1))
        buffer, end = self._home() or (None, 0)
        needed = end + new.shape[1]
        if (
            buffer is None
            or buffer.data.dtype != dtype
            or buffer.data.shape[1] < needed
            or buffer.data.is_inference() != torch.is_inference_mode_enabled()
            or buffer.frontier.pop(end, None) is None
        ):
            end, needed = self.length, self.length + new.shape[1]
            room = max(LEAST_ROOM, 2 * needed)
            shape = (self.entries.shape[0], room, *self.entries.shape[2:])
            buffer = _Buffer(self.entries.new_empty(shape, dtype=dtype), end)
            buffer.data[:, :end] = self.entries
            buffer.frontier.clear()
        buffer.data[:, end:needed] = new
        buffer.frontier[needed] = True
        start = needed - self.length - new.shape[1]
        return Growing(buffer.data[:, start:needed])._in(buffer, needed)

    def without_first(self, count: int) -> Growing:
        """These entries but the oldest ``count``, whose room is given back where it is most."""
        home, rest = self._home(), self.entries[:, count:]
        room = self.length * rest.untyped_storage().nbytes() // max(1, self.nbytes)
        if room > WASTE * max(rest.shape[1], LEAST_ROOM):
            return Growing(rest.clone())
        if home is None:  # not room to grow in: the rest of a prompt, which a graph keeps anyway
            return Growing(rest if torch.is_grad_enabled() else rest.clone())
        return Growing(rest)._in(*home)

    def _home(self) -> tuple[_Buffer, int] | None:
        """The buffer that the entries lie in and where they end; not a field, so that a value made
        by ``map`` (moved, selected, cloned) has none and copies before it grows."""
        home: tuple[_Buffer, int] | None = self.__dict__.get("_buffer_and_end")
        return home

    def _in(self, buffer: _Buffer, end: int) -> Growing:
        object.__setattr__(self, "_buffer_and_end", (buffer, end))
        return self
