"""Comparing tensors by their largest difference, relative to the largest entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

__all__ = ["assert_all_close", "assert_close", "relative_error", "wide"]


def wide(tensor: Tensor | np.ndarray) -> Tensor:
    return torch.as_tensor(tensor).detach().double()


def relative_error(
    got: Tensor | np.ndarray, want: Tensor | np.ndarray, floor: float = 0.0
) -> float:
    """max |got - want| / max(max |want|, floor); infinite where a shape or a NaN differs."""
    got, want = wide(got), wide(want)
    if got.shape != want.shape or not torch.isfinite(got).all():
        return float("inf")
    if want.numel() == 0:
        return 0.0
    error = float((got - want).abs().max())
    scale = max(float(want.abs().max()), floor)
    return error / scale if scale > 0 else (0.0 if error == 0 else float("inf"))


def assert_close(
    got: Tensor | np.ndarray,
    want: Tensor | np.ndarray,
    tolerance: float,
    what: str = "value",
    floor: float = 0.0,
) -> None:
    """Fail unless the largest difference is below ``tolerance`` of the largest entry."""
    error = relative_error(got, want, floor)
    assert error <= tolerance, (
        f"{what}: differs by {error:.2e} of its largest entry, more than {tolerance:.0e} "
        f"(shapes {tuple(got.shape)} and {tuple(want.shape)})"
    )


def assert_all_close(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float, what: str = ""
) -> None:
    """Compare two tables name by name.

    Entries far smaller than the largest of the whole table are sums that nearly cancel: their
    rounding is measured against a thousandth of that largest one.
    """
    assert got.keys() == want.keys(), f"{what}: {sorted(got.keys() ^ want.keys())}"
    floor = 1e-3 * max((float(wide(t).abs().max()) for t in want.values() if t.numel()), default=0)
    for name in _sorted(want):
        assert_close(got[name], want[name], tolerance, f"{what}{name}", floor)


def _sorted(table: Mapping[str, Tensor]) -> Iterator[str]:
    yield from sorted(table)
