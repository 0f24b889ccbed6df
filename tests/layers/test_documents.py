"""Places, previous tokens and document starts, against a plain walk over each row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from palimpsest.layers.documents import first_readable, place_in_document, previous_ids

B, T = 6, 13


def masks(seed: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hold = torch.rand(B, T, generator=generator) < 0.4
    reset = torch.rand(B, T, generator=generator) < 0.2
    ids = torch.randint(0, 50, (B, T), generator=generator)
    return hold if seed % 3 else None, reset if seed % 2 else None, ids


@pytest.mark.parametrize("seed", range(12))
def test_places_and_previous_tokens(seed: int) -> None:
    hold, reset, ids = masks(seed)
    position, last = torch.arange(B) * 3, torch.tensor([-1, 7, 8, -1, 9, 10])
    place, after = place_in_document(position, T, hold, reset)
    previous, last_after = previous_ids(ids, last, hold, reset)
    for b in range(B):
        count, latest = int(position[b]), int(last[b])
        for t in range(T):
            if reset is not None and reset[b, t]:
                count, latest = 0, -1
            assert place[b, t] == count
            assert previous[b, t] == latest
            if hold is None or not hold[b, t]:
                count, latest = count + 1, int(ids[b, t])
        assert after[b] == count
        assert last_after[b] == latest


@pytest.mark.parametrize("seed", range(4))
def test_first_readable(seed: int) -> None:
    _, reset, _ = masks(seed)
    first = torch.tensor([0, 2, 5, 1, 0, 3])
    got = first_readable(first, T, 5, reset)
    for b in range(B):
        start = int(first[b])
        for t in range(T):
            if reset is not None and reset[b, t]:
                start = 5 + t
            assert got[b, t] == start
