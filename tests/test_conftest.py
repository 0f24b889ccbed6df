"""The poison works: for the package's own calls, and for nobody else's."""

from __future__ import annotations

import pytest
import torch

PROGRAMS = (
    "torch.empty(3)",
    "torch.empty((2, 3), dtype=torch.bfloat16)",
    "torch.empty_like(torch.zeros(3, dtype=torch.float64))",
    "torch.zeros(3).new_empty(4)",
    "torch.empty(3, requires_grad=True)",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_fresh_memory_of_the_package_is_nan(program: str) -> None:
    fresh = eval(program, {"__name__": "palimpsest.ops.some_kernel", "torch": torch})
    assert fresh.isnan().all()


def test_whole_numbers_and_other_callers_are_left_alone() -> None:
    names = {"__name__": "palimpsest.ops.some_kernel", "torch": torch}
    assert eval("torch.empty(3, dtype=torch.long)", names).dtype == torch.int64
    torch.full((64,), 7.0)  # whatever memory comes next, nothing fills it with NaN
    assert not torch.empty(64).isnan().all()


def test_one_thread_and_a_fixed_seed() -> None:
    assert torch.get_num_threads() == 1
    first = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(3))
