"""What was recorded.

Legend: B batch, T time, n recorded positions of each row, N recorded positions under a mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.analysis.reducers import Reducer
from palimpsest.analysis.storage import read_index
from palimpsest.errors import InputError
from palimpsest.taps import Tap

__all__ = ["PLACES", "Tape", "open_tape"]

PLACES = "places"  # row and position of what is recorded, kept beside the taps


class Tape:
    """Recorded taps by name.

    ``tape["state.predicted"]`` is (B,n,…) over everything recorded, in the order of positions, all
    calls joined: (B,T,…) where nothing was left out. Under a mask it is (N,…), ordered by position
    and then by row. ``tape.chunks(name)`` walks through it piece by piece, and
    ``tape.result(name)`` is the statistic of a tap that was reduced.

    Attributes:
        taps: name → what it is.
        masked: whether a mask chose the positions.
        complete: False where recording went to a folder and was cut short.
    """

    def __init__(
        self,
        taps: Mapping[str, Tap],
        sources: Mapping[str, Iterable[Tensor]],
        reducers: Mapping[str, Reducer] | None = None,
        *,
        masked: bool = False,
        complete: bool = True,
    ) -> None:
        self.taps = dict(taps)
        self.masked, self.complete = masked, complete
        self._sources, self._reducers = sources, dict(reducers or {})

    @property
    def names(self) -> list[str]:
        """All recorded taps, reduced ones included."""
        return list(self.taps)

    def __contains__(self, name: object) -> bool:
        return name in self.taps

    def __iter__(self) -> Iterator[str]:
        return iter(self.taps)

    def __len__(self) -> int:
        return len(self.taps)

    def __getitem__(self, name: str) -> Tensor:
        """All that was recorded of a tap, as one tensor.

        Raises:
            InputError: a tap that was not recorded, or was reduced; no position at all; calls of
                different batch sizes.
        """
        return self._joined(name, list(self.chunks(name)))

    def _joined(self, name: str, pieces: list[Tensor]) -> Tensor:
        if not pieces:
            raise InputError(
                f"tape[{name!r}]: no position has been recorded; call the model inside the block, "
                "and look at every= and where="
            )
        if self.masked:
            return torch.cat(pieces)
        rows = sorted({piece.shape[0] for piece in pieces})
        if len(rows) > 1:
            raise InputError(
                f"tape[{name!r}]: the calls had batches of {' and '.join(map(str, rows))} rows, "
                "which make no one tensor; use tape.chunks(name), where=At(rows=…) or reduce="
            )
        return torch.cat(pieces, 1)

    def chunks(self, name: str) -> Iterator[Tensor]:
        """The recorded pieces one after another, for what does not fit into memory.

        Raises:
            InputError: a tap that was not recorded, or was reduced.
        """
        if name in self._reducers:
            raise InputError(
                f"tape[{name!r}]: reduced by {type(self._reducers[name]).__name__}, its values "
                f"were not kept; use tape.result({name!r})"
            )
        if name not in self.taps:
            raise InputError(f"tape[{name!r}]: not recorded; there is {', '.join(self.taps)}")
        return iter(self._sources[name])

    def result(self, name: str) -> Any:
        """The statistic of a reduced tap.

        Raises:
            InputError: a tap that was not reduced, or of which nothing was recorded.
        """
        if name not in self._reducers:
            reduced = ", ".join(self._reducers) or "none"
            raise InputError(f"result({name!r}): was not reduced; reduced taps: {reduced}")
        return self._reducers[name].result()

    @property
    def positions(self) -> Tensor:
        """(n) or, under a mask, (N): the positions recorded, counted over all calls."""
        return self._places(1)

    @property
    def rows(self) -> Tensor:
        """(B) or, under a mask, (N): the rows recorded, numbered as in the batch."""
        return self._places(0)

    def _places(self, column: int) -> Tensor:
        pieces = [piece.reshape(-1, 2)[:, column] for piece in self._sources[PLACES]]
        found = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.long)
        return found if self.masked else found.unique()


def open_tape(folder: str | Path) -> Tape:
    """Open what ``record(…, to=folder)`` wrote; values are read when asked for.

    Raises:
        InputError: not a tape, or a file of it that cannot be read.
    """
    index, chunks = read_index(Path(folder))
    about = {
        name: Tap(entry["shape"], entry["doc"])
        for name, entry in index["taps"].items()
        if name != PLACES
    }
    return Tape(about, chunks, masked=index["masked"], complete=index["complete"])
