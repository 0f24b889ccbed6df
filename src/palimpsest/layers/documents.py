"""Where a position stands: in its document, and behind which earlier position.

Padding (``hold``) neither counts nor is met; a reset starts a document anew.

Legend: B batch, T time, N entries of a memory that grows with the text, T of them new.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["first_readable", "oldest_in_window", "place_in_document", "previous_ids"]


def place_in_document(
    position_B: Tensor, length: int, hold_BT: Tensor | None, reset_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How many tokens of its document come before each position.

    Args:
        position_B: the count before position 0.
        length: T.
        hold_BT: True at padding, which does not count.
        reset_BT: True where a document starts.

    Returns:
        place_BT, and the count after the last position.
    """
    batch, device = position_B.shape[0], position_B.device
    real_BT = torch.ones(batch, length, dtype=torch.long, device=device)
    if hold_BT is not None:
        real_BT = real_BT.masked_fill(hold_BT, 0)
    after_BT = real_BT.cumsum(1) + position_B[:, None]
    before_BT = after_BT - real_BT
    if reset_BT is not None:
        # counts never fall, so that the latest start is the largest of them
        start_BT = torch.where(reset_BT, before_BT, 0).cummax(1).values
        before_BT, after_BT = before_BT - start_BT, after_BT - start_BT
    return before_BT, after_BT[:, -1].clone()  # a state must not keep the (B,T) alive


def previous_ids(
    input_ids: Tensor, last_B: Tensor, hold_BT: Tensor | None, reset_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The token before each position in its document, -1 where there is none.

    Args:
        input_ids: (B,T).
        last_B: the last token before position 0, or -1.
        hold_BT: True at padding, which is not a token.
        reset_BT: True where a document starts.

    Returns:
        (B,T) ids, and the last token after the last position.
    """
    if hold_BT is None and reset_BT is None:
        line = torch.cat([last_B[:, None], input_ids], dim=1)
        return line[:, :-1], line[:, -1].clone()
    place_T = torch.arange(input_ids.shape[1], device=input_ids.device)
    latest_BT = place_T.expand_as(input_ids)
    if hold_BT is not None:
        latest_BT = torch.where(hold_BT, -1, latest_BT).cummax(1).values
    start_BT = torch.full_like(input_ids, -1)
    if reset_BT is not None:
        start_BT = torch.where(reset_BT, place_T, -1).cummax(1).values

    def at(index: Tensor, start: Tensor) -> Tensor:
        ids = input_ids.gather(1, index.clamp(min=0))
        ids = torch.where(index >= 0, ids, last_B[:, None])
        return torch.where(index >= start, ids, -1)

    before_BT = F.pad(latest_BT, (1, -1), value=-1)
    return at(before_BT, start_BT), at(latest_BT[:, -1:], start_BT[:, -1:])[:, 0]


def first_readable(first_B: Tensor, length: int, past: int, reset_BT: Tensor | None) -> Tensor:
    """(B,T) the index into N from which each position may read: where its document starts.

    Args:
        first_B: the same for the document that is under way before position 0.
        length: T.
        past: N - T.
        reset_BT: True where a document starts.
    """
    first_BT = first_B[:, None].expand(-1, length)
    if reset_BT is None:
        return first_BT
    place_T = torch.arange(past, past + length, device=first_B.device)
    return torch.where(reset_BT, place_T, first_BT).cummax(1).values


def oldest_in_window(real_BN: Tensor, length: int, window: int) -> Tensor:
    """(B,T+1) the index into N of the oldest token in the window of each new position.

    The last column is that of the position to come.

    Args:
        real_BN: False at padding, which does not count.
        length: T.
        window: tokens of a window, the position itself included.
    """
    count_BN = real_BN.cumsum(1)
    new_BT = count_BN[:, real_BN.shape[1] - length :]
    before_BT = torch.cat([new_BT, new_BT[:, -1:] + 1], dim=1) - window
    return torch.searchsorted(count_BN, before_BT, right=True)
