"""What a model refuses to read: ids, targets, masks and states that do not fit it.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.arguments import require_tensor
from palimpsest.errors import InputError, StateError
from palimpsest.state import State

__all__ = ["IGNORED", "check_ids", "check_masks", "check_state_tensors", "check_targets"]

IGNORED = -100  # a target that does not count
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def check_ids(ids_BT: Tensor, name: str, vocab_size: int, *, allow: int | None = None) -> None:
    """Require token ids.

    Args:
        ids_BT: what should be (B,T) integers in [0, vocab_size), neither B nor T zero.
        name: what an error calls it.
        vocab_size: V.
        allow: an id that may stand there too.

    Raises:
        InputError: another shape, dtype or range.
    """
    require_tensor(ids_BT, name)
    if ids_BT.ndim != 2 or ids_BT.shape[0] < 1 or ids_BT.shape[1] < 1:
        raise InputError(
            f"{name} of shape {tuple(ids_BT.shape)}: must be (batch, length) with both at least 1"
        )
    _check_integers(ids_BT, name)
    if ids_BT.is_meta:
        raise InputError(f"{name} is on the meta device, which holds no values; pass ids on a CPU")
    low, high = (int(v) for v in ids_BT.aminmax())
    if allow is not None and low == allow:
        kept = ids_BT[ids_BT != allow]
        low = int(kept.min()) if kept.numel() else 0
    if low < 0 or high >= vocab_size:
        worst = low if low < 0 else high
        raise InputError(
            f"{name} contains {worst}: ids must be in [0, {vocab_size}), the "
            "model's vocab_size; use the tokenizer that the model was trained with"
        )


def check_targets(
    targets_BT: Tensor, ids_BT: Tensor, hold_BT: Tensor | None, vocab_size: int
) -> Tensor:
    """(B,T) int64 targets, those of padding ignored.

    Raises:
        InputError: not aligned with the ids, or neither ids nor -100.
    """
    require_tensor(targets_BT, "targets")
    if targets_BT.shape != ids_BT.shape:
        raise InputError(
            f"targets of shape {tuple(targets_BT.shape)}: must be aligned with input_ids, "
            f"{tuple(ids_BT.shape)}; position t of the targets is what position t predicts"
        )
    _check_integers(targets_BT, "targets")
    targets_BT = targets_BT.long()  # an unsigned -100 would be a valid id
    if hold_BT is not None:
        targets_BT = targets_BT.masked_fill(hold_BT, IGNORED)
    check_ids(targets_BT, "targets", vocab_size, allow=IGNORED)
    return targets_BT


def check_masks(
    attention_mask: Tensor | None, reset_mask: Tensor | None, ids_BT: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Where the state is held and where it is cleared, (B,T) bool each; None for nowhere.

    A mask of attention is kept even if it holds nothing: looking would make a GPU wait.

    Raises:
        InputError: a mask of another shape than the ids.
    """
    real_BT = _as_bool(attention_mask, "attention_mask", ids_BT)
    reset_BT = _as_bool(reset_mask, "reset_mask", ids_BT)
    if reset_BT is not None and not bool(reset_BT.any()):
        reset_BT = None
    return None if real_BT is None else ~real_BT, reset_BT


def check_state_tensors(
    state: State, empty: State, device: torch.device, registry_name: str
) -> None:
    """Require the tensors of a model's own states, on its device.

    Args:
        state: of the right kind and batch.
        empty: the model's state before any token, in which an axis that grows has length 0.
        device: the model's.
        registry_name: what an error calls the model.

    Raises:
        StateError: names what differs.
    """
    expected, found = dict(empty.named_tensors()), dict(state.named_tensors())
    for name in expected.keys() | found.keys():
        want = expected[name].shape if name in expected else None
        have = found[name].shape if name in found else None
        if (
            want is None
            or have is None
            or len(want) != len(have)
            or any(w not in (0, h) for w, h in zip(want, have, strict=True))
        ):
            raise StateError(
                f"state.{name} of shape {have and tuple(have)}: {registry_name} with this "
                f"configuration needs {want and tuple(want)} (0: any length); "
                "the state belongs to another model"
            )
        if found[name].device != device:
            raise StateError(
                f"state.{name} is on {found[name].device} and the model on {device}: "
                f"use state.to({str(device)!r})"
            )


def _check_integers(ids: Tensor, name: str) -> None:
    if ids.dtype not in INTEGERS:
        raise InputError(f"{name} of dtype {ids.dtype}: must be integers, such as torch.long")


def _as_bool(mask: Tensor | None, name: str, ids_BT: Tensor) -> Tensor | None:
    if mask is None:
        return None
    require_tensor(mask, name)
    if mask.shape != ids_BT.shape:
        raise InputError(
            f"{name} of shape {tuple(mask.shape)}: must have the shape of input_ids, "
            f"{tuple(ids_BT.shape)}"
        )
    return mask.bool()
