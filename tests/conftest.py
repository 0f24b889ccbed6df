"""What every test runs under: poisoned memory, fixed seeds, one thread."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "palimpsest"

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def poisoned_memory() -> Iterator[None]:
    """Fill fresh floating-point memory with NaN, for calls that come from the package.

    What ``torch.empty`` holds is often zero by luck; a kernel that reads a place before writing
    it would pass its tests and fail elsewhere.
    """
    # torch remembers what makes tensors when this is first used: it must not be the poisoned ones,
    # or a model built on the meta device gets real weights
    with torch.device("meta"):
        torch.empty(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", _poisoned(torch.empty))
        patch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
        yield


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make_and_fill(*args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = make(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] == PACKAGE and fresh.is_floating_point():
            with torch.no_grad():
                fresh.fill_(float("nan"))
        return fresh

    return make_and_fill


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data that lies beside the repository; tests that need it skip without it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the reference data in {folder.name}/ beside the repository")
    return folder
