"""Growing tensors: values that share room, and never change."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from palimpsest.layers.growing import Growing
from palimpsest.state import State

B, WIDTH = 3, 5


def some(length: int, seed: int = 0) -> Tensor:
    return torch.randn(B, length, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["no_grad", "inference_mode", "enable_grad"])
def mode(request: pytest.FixtureRequest) -> object:
    with getattr(torch, request.param)():
        yield request.param


def test_appending_concatenates(mode: str) -> None:
    value, whole = Growing(some(0)), some(0)
    for i, length in enumerate((3, 1, 1, 70, 1, 200, 1)):
        value, whole = value.append(some(length, i)), torch.cat([whole, some(length, i)], 1)
        assert torch.equal(value.entries, whole)
        assert value.length == whole.shape[1]
        assert value.batch_size == B


def test_two_continuations_of_one_value(mode: str) -> None:
    """Each sees its own entries, whichever was first to get the room, and so on further down."""
    root = Growing(some(0)).append(some(4)).append(some(1, 1))
    before = root.entries.clone()
    left, right = root.append(some(2, 2)), root.append(some(2, 3))
    left_longer = left.append(some(1, 4))
    right_longer = right.append(some(1, 5))
    left_other = left.append(some(1, 6))
    assert torch.equal(root.entries, before)
    for value, seeds in ((left_longer, (2, 4)), (right_longer, (3, 5)), (left_other, (2, 6))):
        want = torch.cat([before, some(2, seeds[0]), some(1, seeds[1])], 1)
        assert torch.equal(value.entries, want)


@torch.no_grad()
def test_room_is_used() -> None:
    """One token at a time must not copy what is there already."""
    value = Growing(some(10)).append(some(1))
    copies = 0
    for _ in range(1000):
        longer = value.append(some(1))
        copies += longer.entries.data_ptr() != value.entries.data_ptr()
        value = longer
    assert copies <= 7


@torch.no_grad()
def test_a_window_of_the_newest_keeps_its_room() -> None:
    value, whole, copies = Growing(some(20)), some(20), 0
    for i in range(500):
        longer = value.append(some(1, i))
        whole = torch.cat([whole, some(1, i)], 1)[:, -20:]
        start = longer.entries.untyped_storage().data_ptr()
        copies += start != value.entries.untyped_storage().data_ptr()
        value = longer.without_first(longer.length - 20)
        assert torch.equal(value.entries, whole)
    assert copies < 30


@torch.no_grad()
def test_what_is_left_of_much_gives_the_room_back() -> None:
    value = Growing(some(0)).append(some(1000)).without_first(990)
    assert torch.equal(value.entries, some(1000)[:, 990:])
    assert value.entries.untyped_storage().nbytes() == value.nbytes
    longer = value.append(some(1, 2))
    assert torch.equal(longer.entries, torch.cat([some(1000)[:, 990:], some(1, 2)], 1))


@torch.no_grad()
def test_a_part_does_not_keep_the_whole() -> None:
    whole = torch.cat([some(9), some(9, 1)], dim=2)
    value = Growing(some(0)).append(whole[..., :WIDTH])
    assert torch.equal(value.entries, some(9))
    assert value.entries.untyped_storage().nbytes() == value.nbytes


def test_gradients_flow_through_every_entry() -> None:
    first, second = some(3).requires_grad_(), some(2, 1).requires_grad_()
    value = Growing(first).append(second)
    (value.entries * some(5, 2)).sum().backward()
    assert torch.equal(first.grad, some(5, 2)[:, :3])
    assert torch.equal(second.grad, some(5, 2)[:, 3:])


def test_appending_without_gradients_leaves_saved_tensors_alone() -> None:
    """A graph that holds a prefix must still run backward after somebody generated from it."""
    with torch.no_grad():
        value = Growing(some(3)).append(some(1, 1))
    weight = torch.ones(WIDTH, requires_grad=True)
    longer = value.append(some(1, 2))
    loss = (longer.entries * weight).square().sum()
    with torch.no_grad():
        value.append(some(1, 3))
        longer.append(some(1, 4))
    loss.backward()
    assert weight.grad is not None


def test_room_of_inference_mode_is_not_written_outside_of_it() -> None:
    with torch.inference_mode():
        value = Growing(some(3)).append(some(1, 1))
    with torch.no_grad():
        longer = value.append(some(1, 2))
    assert torch.equal(longer.entries, torch.cat([some(3), some(1, 1), some(1, 2)], 1))


@torch.no_grad()
def test_wider_dtype_widens_everything() -> None:
    value = Growing(some(3)).append(some(1, 1)).append(some(1, 2).double())
    assert value.entries.dtype == torch.float64
    assert value.append(some(1)).entries.dtype == torch.float64


@torch.no_grad()
def test_only_what_is_used_is_saved_selected_and_counted(tmp_path: Path) -> None:
    value = Growing(some(3)).append(some(1, 1))
    assert value.nbytes == B * 4 * WIDTH * 4
    value.save(tmp_path / "value.state")
    assert (tmp_path / "value.state").stat().st_size < value.nbytes + 500
    loaded = State.load(tmp_path / "value.state")
    assert torch.equal(loaded.entries, value.entries)
    for changed in (value.select([2, 0]), value.detach(), value.clone(), copy.deepcopy(value)):
        longer = changed.append(some(1, 2)[: changed.batch_size])
        assert torch.equal(longer.entries[:, :4], changed.entries)
    assert torch.equal(value.append(some(1, 3)).entries[:, -1:], some(1, 3))
