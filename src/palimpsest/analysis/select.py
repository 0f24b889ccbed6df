"""Which positions are recorded.

Legend: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from palimpsest.errors import InputError

__all__ = ["At", "Call", "Chosen", "Selection", "Where"]


@dataclass(frozen=True)
class At:
    """Some rows, some positions.

    Attributes:
        rows: rows of the batch; None for all.
        positions: positions counted over all calls; None for all.
    """

    rows: Sequence[int] | None = None
    positions: Sequence[int] | range | None = None


@dataclass(frozen=True)
class Call:
    """One call of the model, as a callable ``where`` sees it.

    Attributes:
        input_ids: (B,T).
        start: positions read by earlier calls, so that step t is position start + t.
        attention_mask, reset_mask: as given to the model, or None.
    """

    input_ids: Tensor
    start: int
    attention_mask: Tensor | None = None
    reset_mask: Tensor | None = None


Where: TypeAlias = "At | Tensor | Callable[[Call], Tensor] | None"


@dataclass(frozen=True)
class Chosen:
    """What is recorded of one call.

    Attributes:
        steps: ascending steps of which something is recorded.
        rows: the rows, the same at each step; None for all.
        mask: (B,T) where rows differ from step to step, else None.
    """

    steps: Tensor
    rows: Tensor | None = None
    mask: Tensor | None = None


class Selection:
    """``every`` and ``where`` together.

    Raises:
        InputError: an ``every`` below 1, a ``where`` that is none of its kinds.
    """

    def __init__(self, every: int, where: Where) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every={every!r}: must be a whole number of at least 1")
        if isinstance(where, Tensor) and (where.ndim != 2 or where.dtype != torch.bool):
            raise InputError(
                f"where of shape {tuple(where.shape)} and dtype {where.dtype}: a mask must be "
                "boolean and (batch, positions over all calls)"
            )
        if not (where is None or isinstance(where, (At, Tensor)) or callable(where)):
            raise InputError(
                f"where={where!r}: must be a boolean mask, a function that returns one, or "
                "At(rows=…, positions=…)"
            )
        self.every, self.where = every, where

    @property
    def masked(self) -> bool:
        """Whether what is recorded is no longer (B,T,…)."""
        return self.where is not None and not isinstance(self.where, At)

    def choose(self, call: Call) -> Chosen:
        """What to record of a call.

        Raises:
            InputError: a mask or rows that do not fit the call.
        """
        batch, length = call.input_ids.shape
        step_T = torch.arange(length)
        on_T = (call.start + step_T) % self.every == 0
        if isinstance(self.where, At):
            if self.where.positions is not None:
                wanted = torch.as_tensor(list(self.where.positions), dtype=torch.long)
                on_T &= torch.isin(call.start + step_T, wanted)
            return Chosen(step_T[on_T], self._rows(self.where.rows, batch))
        if self.where is None:
            return Chosen(step_T[on_T])
        mask_BT = self._mask(call).to("cpu") & on_T
        return Chosen(step_T[mask_BT.any(0)], mask=mask_BT)

    @staticmethod
    def _rows(rows: Sequence[int] | None, batch: int) -> Tensor | None:
        if rows is None:
            return None
        wrong = [row for row in rows if not 0 <= row < batch]
        if wrong:
            raise InputError(
                f"where: row {wrong[0]} of a batch of {batch}, whose rows are 0 to {batch - 1}"
            )
        return torch.as_tensor(list(rows), dtype=torch.long)

    def _mask(self, call: Call) -> Tensor:
        batch, length = call.input_ids.shape
        stop = call.start + length
        if isinstance(self.where, Tensor):
            if self.where.shape[0] != batch or self.where.shape[1] < stop:
                raise InputError(
                    f"where of shape {tuple(self.where.shape)}: the calls so far have "
                    f"{batch} rows and {stop} positions; the mask must cover them"
                )
            return self.where[:, call.start : stop]
        assert callable(self.where)
        mask = self.where(call)
        if (
            not isinstance(mask, Tensor)
            or mask.dtype != torch.bool
            or mask.shape != (batch, length)
        ):
            found = (
                f"a tensor of shape {tuple(mask.shape)} and dtype {mask.dtype}"
                if isinstance(mask, Tensor)
                else repr(mask)
            )
            raise InputError(
                f"where returned {found}: must be boolean and {(batch, length)}, as the call's "
                "input_ids"
            )
        return mask
