"""The immutable tree of tensors: what one does with it, and its file."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import palimpsest
from palimpsest.errors import InputError, StateError
from palimpsest.state import State


@dataclass(frozen=True)
class LayerState(State):
    kind: ClassVar[str] = "test-layer"

    keys: Tensor


@dataclass(frozen=True)
class TreeState(State):
    """Everything a state may hold: tensors, states, tuples of them, plain values."""

    kind: ClassVar[str] = "test-tree"

    memory: Tensor
    position: Tensor
    layers: tuple[LayerState, ...]
    pair: tuple[Tensor, Tensor]
    window: int
    label: str


def tree(batch: int = 3, seed: int = 0) -> TreeState:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=rng)

    return TreeState(
        memory=normal(2, 5),
        position=torch.arange(batch),
        layers=(LayerState(normal(4)), LayerState(normal(0, 7))),
        pair=(normal(6), normal(1)),
        window=9,
        label="a label",
    )


def assert_equal(one: State, two: State) -> None:
    assert type(one) is type(two)
    for (name, a), (other, b) in zip(one.named_tensors(), two.named_tensors(), strict=True):
        assert name == other
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name


def test_names_sizes_and_bytes() -> None:
    state = tree()
    names = [name for name, _ in state.named_tensors()]
    assert names == ["memory", "position", "layers.0.keys", "layers.1.keys", "pair.0", "pair.1"]
    assert state.batch_size == 3
    assert state.nbytes == 3 * (4 * (10 + 4 + 0 + 6 + 1) + 8)
    with pytest.raises(StateError, match="without tensors"):
        _ = State().batch_size


def test_fields_cannot_be_set() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree().window = 3  # type: ignore[misc]


def test_map_keeps_plain_values_and_the_tree() -> None:
    state = tree()
    doubled = state.map(lambda t: t * 2)
    assert (doubled.window, doubled.label) == (9, "a label")
    assert isinstance(doubled.layers[1], LayerState)
    assert torch.equal(doubled.layers[0].keys, state.layers[0].keys * 2)


def test_detach_clone_and_to() -> None:
    state = tree().map(lambda t: t.requires_grad_() if t.is_floating_point() else t)
    assert not any(t.requires_grad for _, t in state.detach().named_tensors())
    assert state.memory.requires_grad
    copy = state.detach().clone()
    copy.memory.zero_()
    assert state.memory.any()
    double = state.to(dtype=torch.float64)
    assert double.memory.dtype == torch.float64
    assert double.position.dtype == torch.int64, "whole numbers keep their type"
    assert state.to("meta").memory.device.type == "meta"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, [1]),
        (-1, [2]),
        ([2, 0], [2, 0]),
        ([0, 0, 1], [0, 0, 1]),
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        (torch.tensor([2, 1]), [2, 1]),
        (torch.tensor([True, False, True]), [0, 2]),
        ([], []),
    ],
    ids=str,
)
def test_select(rows: object, expected: list[int]) -> None:
    state = tree()
    chosen = state.select(rows)  # type: ignore[arg-type]
    assert chosen.position.tolist() == expected
    assert torch.equal(chosen.layers[0].keys, state.layers[0].keys[expected])


@pytest.mark.parametrize("rows", [3, -4, [0, 5], torch.tensor([9])], ids=str)
def test_select_a_row_that_does_not_exist(rows: object) -> None:
    with pytest.raises(InputError, match="3 rows"):
        tree().select(rows)  # type: ignore[arg-type]


def test_select_carries_the_gradient() -> None:
    state = tree().map(lambda t: t.requires_grad_() if t.is_floating_point() else t)
    state.select([1, 1]).memory.sum().backward()
    assert torch.equal(state.memory.grad[:, 0, 0], torch.tensor([0.0, 2.0, 0.0]))


def test_cat_undoes_select() -> None:
    state = tree()
    assert_equal(State.cat([state.select(row) for row in range(3)]), state)
    assert State.cat([state, tree(2, seed=1)]).batch_size == 5


def test_cat_of_what_does_not_belong_together() -> None:
    with pytest.raises(InputError, match="nothing to join"):
        State.cat([])
    with pytest.raises(StateError, match=r"states\[1\] is of kind 'test-layer'"):
        State.cat([tree(), LayerState(torch.zeros(3, 4))])
    wider = dataclasses.replace(tree(), memory=torch.zeros(3, 2, 6))
    with pytest.raises(StateError, match=r"memory \(2, 6\).*memory \(2, 5\)"):
        State.cat([tree(), wider])


def test_file_gives_the_same_state_and_the_same_bytes(tmp_path: Path) -> None:
    state = tree().to(dtype=torch.bfloat16)
    paths = [tmp_path / f"{i}.state" for i in range(6)]
    for path in paths:
        assert state.save(path, owner="gpnm-tiny") == path
    assert len({path.read_bytes() for path in paths}) == 1
    loaded = State.load(paths[0])
    assert_equal(loaded, state)
    assert isinstance(loaded, TreeState)
    assert (loaded.window, loaded.label) == (9, "a label")
    loaded.save(paths[1], owner="gpnm-tiny")
    assert paths[1].read_bytes() == paths[0].read_bytes()


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    one = torch.randn(3, 1)
    state = dataclasses.replace(tree(), pair=(one, one), memory=one[:, None].expand(-1, 2, 5))
    assert_equal(State.load(state.save(tmp_path / "s")), state)


def test_saving_a_state_with_gradient_history(tmp_path: Path) -> None:
    state = tree().map(lambda t: t.requires_grad_() * 2 if t.is_floating_point() else t)
    assert_equal(State.load(state.save(tmp_path / "s")), state.detach())


def damaged(tmp_path: Path, **about: object) -> Path:
    path = tree().save(tmp_path / "whole")
    tensors = load_file(path)
    described = json.loads(_metadata(path)["palimpsest-state"])
    del described["sha256"]
    described.update(about)
    save_file(tensors, path, metadata={"palimpsest-state": json.dumps(described)})
    return path


def _metadata(path: Path) -> dict[str, str]:
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    return dict(header["__metadata__"])


def test_files_that_are_not_a_state(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no such file"):
        State.load(tmp_path / "absent")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StateError, match="text: is not a complete safetensors file"):
        State.load(tmp_path / "text")
    save_file({"memory": torch.zeros(3)}, tmp_path / "weights", metadata={"format": "pt"})
    with pytest.raises(StateError, match=r"is not a state; write one with state\.save"):
        State.load(tmp_path / "weights")
    whole = tree().save(tmp_path / "cut").read_bytes()
    for length in (0, 7, 40, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(StateError, match="cut short"):
            State.load(tmp_path / "cut")


def test_state_of_another_version_or_kind(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="version 99, this palimpsest reads version 1"):
        State.load(damaged(tmp_path, version=99))
    with pytest.raises(StateError, match="kind 'unheard'"):
        State.load(damaged(tmp_path, kind="unheard"))
    with pytest.raises(StateError, match="do not fit its kind"):
        State.load(damaged(tmp_path, tree={"state": "test-tree", "fields": {"memory": {}}}))


def test_load_in_a_process_that_imported_no_model(tmp_path: Path) -> None:
    path = palimpsest.build("gpnm-tiny").init_state(2).save(tmp_path / "s.safetensors")
    program = f"import palimpsest; print(palimpsest.State.load({str(path)!r}).kind)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == palimpsest.State.load(path).kind, done.stderr
