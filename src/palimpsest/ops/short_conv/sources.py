"""Which input each tap meets where there is padding or where documents start.

B batch, T positions, W width of the kernel, L = W - 1 + T: the window, then the inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["final_window", "tap_sources"]


def tap_sources(
    hold_BT: Tensor | None, reset_BT: Tensor | None, width: int
) -> tuple[Tensor, Tensor]:
    """Where the taps look.

    Args:
        hold_BT: True at padding; no tap looks there, and at padding no tap looks anywhere.
        reset_BT: True where a document starts; its taps do not look before it.
        width: W.

    Returns:
        sources_BTW, the place in L of the input that tap w meets at position t, -1 for none, and
        last_BW, (B, W - 1), the places that make up the window after the last position.
    """
    mask_BT = hold_BT if hold_BT is not None else reset_BT
    assert mask_BT is not None
    batch = len(mask_BT)
    past, device = width - 1, mask_BT.device
    hold_BT = torch.zeros_like(mask_BT) if hold_BT is None else hold_BT
    real_BT = ~hold_BT
    # the window, then the real inputs in order, then the padding
    order_BT = hold_BT.to(torch.int8).sort(dim=1, stable=True).indices + past
    window_BP = torch.arange(past, device=device).expand(batch, past)
    order_BL = torch.cat([window_BP, order_BT], dim=1)
    if reset_BT is None:
        document_BL = torch.zeros_like(order_BL)
    else:
        document_BL = F.pad(reset_BT.cumsum(1), (past, 0))

    def places(first: Tensor, taps: int, document: Tensor) -> Tensor:
        at = first.unsqueeze(-1) + torch.arange(taps, device=device)
        found = order_BL.gather(1, at.clamp(min=0).flatten(1)).view_as(at)
        own = document_BL.gather(1, found.flatten(1)).view_as(at) == document.unsqueeze(-1)
        return torch.where(own, found, -1)

    rank_BT = real_BT.cumsum(1) - 1
    sources_BTW = places(rank_BT, width, document_BL[:, past:])
    sources_BTW = sources_BTW.masked_fill(hold_BT.unsqueeze(-1), -1)
    last_BW = places(real_BT.sum(1, keepdim=True), past, document_BL[:, -1:]).flatten(1)
    return sources_BTW, last_BW


def final_window(window_BWC: Tensor, x_BTC: Tensor, last_BW: Tensor | None) -> Tensor:
    """The W - 1 inputs that the next position meets; ``last_BW`` None: the last ones."""
    past, channels = window_BWC.shape[1:]
    if last_BW is None:
        length = x_BTC.shape[1]
        if length >= past:  # clone: a view would keep all inputs alive with the state
            return x_BTC[:, length - past :].clone()
        return torch.cat([window_BWC[:, length:], x_BTC], dim=1)
    inputs_BLC = torch.cat([window_BWC, x_BTC], dim=1)
    index = last_BW.clamp(min=0).unsqueeze(-1).expand(-1, -1, channels)
    return inputs_BLC.gather(1, index).masked_fill((last_BW < 0).unsqueeze(-1), 0.0)
