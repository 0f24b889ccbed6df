"""Edits of a state for :func:`palimpsest.analysis.edit_state`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.state import State

__all__ = ["edit_heads"]

How = Literal["zero", "freeze", "shuffle"]


def edit_heads(
    name: str, heads: Sequence[int], how: How, *, axis: int = 1
) -> Callable[[State, int], State]:
    """An edit of some heads of one tensor of the state.

    Args:
        name: the tensor's name in ``state.named_tensors()``, such as "memory" of GPN+M or
            "memories.0" of Gated DeltaNet.
        heads: which heads.
        how: "zero" empties them; "freeze" puts back what they were at the first edit; "shuffle"
            gives each row those of the row before it: another text's memory, no less typical.
        axis: where the heads are; 2 for the slots of triple-slot, (B,2,H,S,R).

    Returns:
        An edit. One that freezes serves one block: it keeps what it saw first.

    Raises:
        InputError: an unknown ``how``; when it edits, a tensor, axis or head that is not there, or
            a batch of one row to shuffle.
    """
    if how not in ("zero", "freeze", "shuffle"):
        raise InputError(f"how={how!r}: must be 'zero', 'freeze' or 'shuffle'")
    first: list[Tensor] = []

    def edit(state: State, position: int) -> State:
        table = dict(state.named_tensors())
        if name not in table:
            raise InputError(f"edit_heads: the state has no {name!r}; it has {', '.join(table)}")
        old = table[name]
        if not 1 <= axis < old.ndim:
            raise InputError(f"axis={axis}: {name} has the axes 1 to {old.ndim - 1} after the rows")
        wrong = [head for head in heads if not 0 <= head < old.shape[axis]]
        if wrong:
            raise InputError(
                f"edit_heads: head {wrong[0]} of {old.shape[axis]}, which are numbered from 0"
            )
        index = torch.as_tensor(list(heads), dtype=torch.long, device=old.device)
        part = old.index_select(axis, index)
        if how == "zero":
            part = torch.zeros_like(part)
        elif how == "shuffle":
            if len(old) < 2:
                raise InputError("edit_heads: how='shuffle' needs a batch of at least two rows")
            part = part.roll(1, 0)
        else:
            if not first:
                first.append(part)
            part = first[0]
        new = old.index_copy(axis, index, part)
        parts = iter([new if found == name else tensor for found, tensor in table.items()])
        return state.map(lambda _: next(parts))

    return edit
