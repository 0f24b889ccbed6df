"""The state of a model as an immutable tree of tensors.

A model takes a state and returns a new one; the one passed in never changes. Each architecture
declares its own frozen dataclass deriving from :class:`State`. Its fields are tensors whose
first axis is the batch, tuples of such tensors or states, or plain integers and strings.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from palimpsest.arguments import require_path, require_type
from palimpsest.errors import InputError, StateError
from palimpsest.files import read_safetensors, write_safetensors

__all__ = ["State"]

FORMAT = "palimpsest-state"
FORMAT_VERSION = 1

S = TypeVar("S", bound="State")
_classes: dict[str, type[State]] = {}


@dataclasses.dataclass(frozen=True)
class State:
    """Base class of all states. Subclasses are frozen dataclasses with ``kind`` set."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            _classes[cls.kind] = cls

    # -- walking the tree ---------------------------------------------------------------------

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors with their dotted names, in the order of declaration."""
        for field in dataclasses.fields(self):
            yield from _named(field.name, getattr(self, field.name))

    def map(self: S, change: Callable[[Tensor], Tensor]) -> S:
        """A new state with ``change`` applied to every tensor."""
        values = {f.name: _map(change, getattr(self, f.name)) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **values)

    # -- what one does with a state -----------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Rows, the first axis of every tensor."""
        for _, tensor in self.named_tensors():
            return tensor.shape[0]
        raise StateError(f"a state of kind {self.kind!r} without tensors has no batch size")

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for _, t in self.named_tensors())

    def detach(self: S) -> S:
        """Cut the gradient: truncated backpropagation is ``state.detach()`` between segments."""
        return self.map(Tensor.detach)

    def clone(self: S) -> S:
        """A copy that shares no memory with this state."""
        return self.map(Tensor.clone)

    def to(
        self: S, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> S:
        """Move to a device, convert floating-point tensors to a dtype; integers keep theirs."""
        return self.map(
            lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None)
        )

    def select(self: S, rows: Tensor | list[int] | int | slice) -> S:
        """Keep some rows of the batch, in the order given (an int keeps one row, as a batch of 1).

        Raises:
            InputError: a row that does not exist.
        """
        kinds = (Tensor, list, tuple, int, slice)
        require_type(rows, "rows", kinds, "pass row numbers: an int, a list, a slice or a tensor")
        size = self.batch_size
        if isinstance(rows, slice):
            rows = list(range(size))[rows]
        index = torch.as_tensor([rows] if isinstance(rows, int) else rows)
        if index.dtype == torch.bool:
            index = index.nonzero().flatten()
        if index.numel() and (int(index.min()) < -size or int(index.max()) >= size):
            raise InputError(f"rows={rows!r}: the state has {size} rows, numbered from 0")
        index = index.long() % max(size, 1)
        return self.map(lambda t: t.index_select(0, index.to(t.device)))

    @staticmethod
    def cat(states: list[S]) -> S:
        """Join states of one model along the batch.

        Raises:
            InputError: no states.
            StateError: states of different models.
        """
        require_type(states, "states", (list, tuple), "pass a list of states")
        for i, state in enumerate(states):
            require_type(state, f"states[{i}]", State, "pass a list of states")
        if not states:
            raise InputError("states=[]: nothing to join")
        tables = [dict(s.named_tensors()) for s in states]
        outlines = [
            (s.kind, {name: t.shape[1:] for name, t in table.items()})
            for s, table in zip(states, tables, strict=True)
        ]
        for i, outline in enumerate(outlines):
            if outline != outlines[0]:
                raise StateError(
                    f"states[{i}] is {_outline(*outline)}, states[0] is {_outline(*outlines[0])}: "
                    "only states of one model can be joined"
                )
            if _plain(states[i]) != _plain(states[0]):
                raise StateError(
                    f"states[{i}] has {_plain(states[i])}, states[0] has {_plain(states[0])}: only "
                    "states with the same settings can be joined"
                )
        parts = iter([torch.cat([table[name] for table in tables]) for name in tables[0]])
        return states[0].map(lambda _: next(parts))

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, owner: str = "") -> Path:
        """Write the state to one safetensors file, first under a temporary name.

        Args:
            path: the file to write; an existing one is replaced only when the new one is complete.
            owner: free text kept in the file, such as the model's name.
        """
        require_path(path, "path")
        about = {
            "version": FORMAT_VERSION,
            "kind": self.kind,
            "owner": owner,
            "tree": _describe(self),
        }
        path = Path(path)
        write_safetensors(path, dict(self.named_tensors()), FORMAT, about)
        return path

    @staticmethod
    def load(path: str | Path) -> State:
        """Read what :meth:`save` wrote.

        Raises:
            StateError: not a state file, of another version or kind, truncated or damaged.
        """
        require_path(path, "path", StateError)
        tensors, about, _ = read_safetensors(Path(path), StateError, FORMAT)
        if about is None:
            raise StateError(f"{path}: is not a state; write one with state.save()")
        try:
            version, kind, tree = about["version"], about["kind"], about["tree"]
        except KeyError as failure:
            raise StateError(f"{path}: its description of the state is damaged") from failure
        if version != FORMAT_VERSION:
            raise StateError(
                f"{path}: a state of version {version!r}, this palimpsest reads version "
                f"{FORMAT_VERSION}"
            )
        if kind not in _classes:  # a kind is known once its architecture's module is imported
            importlib.import_module("palimpsest.models")
        if kind not in _classes:
            raise StateError(f"{path}: state kind {kind!r} is not one of {sorted(_classes)}")
        try:
            state: State = _restore(tree, tensors)
        except (KeyError, TypeError) as failure:
            raise StateError(f"{path}: its tensors do not fit its kind {kind!r}") from failure
        return state


def _outline(kind: str, shapes: dict[str, torch.Size]) -> str:
    return f"of kind {kind!r} with " + ", ".join(f"{n} {tuple(s)}" for n, s in shapes.items())


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, State):
        for inner, tensor in value.named_tensors():
            yield f"{name}.{inner}", tensor
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _named(f"{name}.{i}", item)


def _plain(state: State) -> dict[str, int | str]:
    """The values of a state that are not tensors, such as a window, by dotted name."""
    found: dict[str, int | str] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        for i, item in enumerate(value if isinstance(value, tuple) else (value,)):
            name = f"{field.name}.{i}" if isinstance(value, tuple) else field.name
            if isinstance(item, State):
                found |= {f"{name}.{inner}": v for inner, v in _plain(item).items()}
            elif isinstance(item, (int, str)):
                found[name] = item
    return found


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, State):
        return value.map(change)
    if isinstance(value, tuple):
        return tuple(_map(change, item) for item in value)
    return value


def _describe(value: Any, name: str = "") -> Any:
    """The tree as JSON: where each tensor goes, and the plain values."""
    if isinstance(value, Tensor):
        return {"tensor": name}
    if isinstance(value, State):
        prefix = f"{name}." if name else ""
        return {
            "state": value.kind,
            "fields": {
                f.name: _describe(getattr(value, f.name), prefix + f.name)
                for f in dataclasses.fields(value)
            },
        }
    if isinstance(value, tuple):
        return {"tuple": [_describe(item, f"{name}.{i}") for i, item in enumerate(value)]}
    return {"value": value}


def _restore(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "state" in tree:
        fields = {name: _restore(sub, tensors) for name, sub in tree["fields"].items()}
        return _classes[tree["state"]](**fields)
    if "tuple" in tree:
        return tuple(_restore(item, tensors) for item in tree["tuple"])
    return tree["value"]
