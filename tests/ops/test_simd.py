"""The scalar functions of the compiled loops, inside a loop that becomes vector code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def tanh() -> Callable[[Any], Any]:
    from palimpsest.ops.simd import jit
    from palimpsest.ops.simd import tanh as scalar

    @jit
    def loop(x: Any, y: Any) -> None:
        for i in range(len(x)):
            y[i] = scalar(x[i])

    def run(x: Any) -> Any:
        y = np.empty_like(x)
        loop(x, y)
        return y

    return run


def test_tanh_is_right_to_a_few_units_in_the_last_place(tanh: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([10 ** rng.uniform(-37, 2, 200_000), rng.uniform(0, 10, 200_000)])
    x = np.concatenate([sizes, -sizes]).astype(np.float32)
    got, want = tanh(x), np.tanh(x.astype(np.float64))
    wrong = np.abs(got - want)
    assert wrong.max() < 1.5e-7
    assert (wrong / np.spacing(np.abs(want).astype(np.float32))).max() < 3
    assert np.array_equal(got[len(sizes) :], -got[: len(sizes)])


def test_tanh_at_the_ends(tanh: Callable[[Any], Any]) -> None:
    x = np.array([0, np.inf, -np.inf, 20, -20, 3e38, np.nan, 1e-42], dtype=np.float32)
    want = np.array([0, 1, -1, 1, -1, 1, np.nan, 1e-42], dtype=np.float32)
    assert np.array_equal(tanh(x), want, equal_nan=True)


def test_tanh_in_double_precision(tanh: Callable[[Any], Any]) -> None:
    x = np.linspace(-30, 30, 1001)
    assert np.allclose(tanh(x), np.tanh(x), rtol=1e-15, atol=0)
