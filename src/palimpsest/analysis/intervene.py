"""Changing what a model does while it runs: a tensor at a tap, the state, parameters.

Everything is undone when the block ends, also by an error. What a block changes it changes for
every thread that uses the model, except ``intervene``, which is heard in its own thread only.

Legend: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from palimpsest.analysis.catalogue import check_model, places, resolve, taps
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from palimpsest.taps import listen, moved

__all__ = ["edit_state", "intervene", "patched"]

Change = Callable[[Tensor], Tensor]
Edit = Callable[[State, int], State]


@contextmanager
def intervene(model: LanguageModel, changes: Mapping[str, Change]) -> Iterator[None]:
    """Replace tensors at taps while the block runs.

    Gradients flow through what the functions return. A recorder that was started before sees what
    was computed, one that is started inside sees what took its place.

    Args:
        model: the model.
        changes: tap or pattern → a function from the tensor (B,T,…) to one like it. Only taps whose
            ``replaceable`` is true; for the others edit the state or patch a parameter.

    Raises:
        InputError: an unknown tap, one that can only be looked at, or a function that returns
            another shape or dtype.
    """
    known = taps(model)
    chosen: dict[str, Change] = {}
    for pattern, change in changes.items():
        for name in resolve(model, [pattern], "intervene"):
            if not known[name].replaceable:
                able = [n for n, tap in known.items() if tap.replaceable]
                raise InputError(
                    f"intervene: {name!r} can be recorded but not replaced; use edit_state or "
                    f"patched, declare the tap with replaceable=True, or take one of those that "
                    f"are: {', '.join(able) or 'none'}"
                )
            chosen[name] = change
    with listen(_Replacer(model, chosen)):
        yield


class _Replacer:
    """The listener (palimpsest.taps.Listener) that changes what it hears."""

    def __init__(self, model: LanguageModel, changes: Mapping[str, Change]) -> None:
        names_of = places(model)
        self._changes = {
            (id(module), full.removeprefix(names_of[id(module)])): (full, change)
            for module in model.modules()
            for full, change in changes.items()
            if full.startswith(names_of[id(module)])
        }

    def wants(self, module: nn.Module, name: str) -> bool:
        return (id(module), name) in self._changes

    def take(self, module: nn.Module, name: str, tensor: Tensor, first: int) -> Tensor:
        full, change = self._changes[id(module), name]
        new = change(tensor)
        if not isinstance(new, Tensor) or new.shape != tensor.shape or new.dtype != tensor.dtype:
            found = (
                f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else type(new).__name__
            )
            raise InputError(
                f"intervene: the function for {full!r} returned {found}: must return a tensor like "
                f"its input, {tuple(tensor.shape)} {tensor.dtype}"
            )
        return new

    def steps(self, module: nn.Module, name: str, length: int, first: int) -> Tensor:
        return torch.zeros(0, dtype=torch.long)

    def made(
        self, module: nn.Module, name: str, tensor: Tensor, first: int, steps: Tensor | None
    ) -> None:
        return None

    def moved(self, module: nn.Module, first: int) -> None:
        return None


@contextmanager
def edit_state(model: LanguageModel, edit: Edit, *, every: int = 1) -> Iterator[None]:
    """Change the state between tokens while the block runs, for every architecture.

    The model reads ``every`` tokens, its state is edited, and it reads on from there: what comes
    out of a call, gradients included, is that of the calls one would write by hand. Positions are
    counted over all calls in the block, so that it does not matter how a text is cut.

    Args:
        model: the model.
        edit: from the state and the number of positions read to a state of the same kind; it must
            not change the one it is given.
        every: edit where this number divides the positions read. One token at a time is the
            slowest; long segments run at the speed of the model.

    Raises:
        InputError: not a model, or ``every`` below 1.
        StateError: an edit that returns a state of another model.
    """
    check_model(model)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InputError(f"every={every!r}: must be a whole number of at least 1")
    encode, read = model.encode, 0

    def in_pieces(
        input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        nonlocal read
        length, low, features = input_ids.shape[1], 0, []
        while low < length:
            high = min(low + every - (read + low) % every, length)
            moved(model, low)
            cut = slice(low, high)
            part, state = encode(
                input_ids[:, cut],
                state,
                None if hold_BT is None else hold_BT[:, cut],
                None if reset_BT is None else reset_BT[:, cut],
            )
            features.append(part)
            if (read + high) % every == 0:
                state = edit(state, read + high)
                model.check_state(state, len(input_ids))
            low = high
        read += length
        return torch.cat(features, 1), state

    own = vars(model)
    around = own.get("encode")  # of an edit around this one
    own["encode"] = in_pieces
    try:
        yield
    finally:
        if around is None:
            del own["encode"]
        else:
            own["encode"] = around


@contextmanager
def patched(model: LanguageModel, values: Mapping[str, Tensor | float]) -> Iterator[None]:
    """Give parameters other values while the block runs; afterwards they are what they were.

    Values are written into the parameters: take the gradients of a loss in the same block.

    Args:
        model: the model.
        values: name (``model.named_parameters()``) → a tensor of the parameter's shape, or one
            number for all entries, such as ``{"cell.layers.0.ffn_out.weight": 0.0}``, which cuts
            the feed-forward network of a GPN.

    Raises:
        InputError: an unknown parameter, or a tensor of another shape.
    """
    parameters = dict(check_model(model).named_parameters())
    for name, value in values.items():
        if name not in parameters:
            raise InputError(
                f"patched: {model.registry_name} has no parameter {name!r}; it has "
                f"{', '.join(parameters)}"
            )
        if isinstance(value, Tensor) and value.shape not in ((), parameters[name].shape):
            raise InputError(
                f"patched: {name!r} given as {tuple(value.shape)}: must be "
                f"{tuple(parameters[name].shape)}, or one number"
            )
    kept = {name: parameters[name].detach().clone() for name in values}
    try:
        with torch.no_grad():
            for name, value in values.items():
                new = torch.as_tensor(value).to(parameters[name])
                parameters[name].copy_(new.expand_as(parameters[name]))
        yield
    finally:
        with torch.no_grad():
            for name, old in kept.items():
                parameters[name].copy_(old)
