"""Where a model keeps what an intervention cuts: heads, memories, feed-forward networks.

Parts are found by the names of parameters and of the state's tensors, so that a new architecture
that names its parts like the others is served by itself.

A head is cut by parameters alone: what it adds to the stream is a product of its own columns of the
output projection, so that zero columns take exactly that away, at no cost and inside every backend.
What a normed head adds is cut after the norm: the other heads are not rescaled. For Mamba-2 the
cut takes the skip D·x of the head along.

Legend: D width of the stream, H heads, Q = H·U columns of an output projection, R rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.analysis.catalogue import check_model
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = ["Head", "Memory", "Parts", "cut_heads", "frozen_heads", "map_heads", "model_parts"]

Head = tuple[int, int]  # which memory, in the order of the layers, and which of its heads
Patch = dict[str, Tensor]

_OUTPUTS = ("read.out", "delta.out", "mixer.out_proj", "mixer.out", "attention.out")
_FFNS = ("ffn_out", "ffn.fall")
_HELD = ("memories.{0}", "memory.{0}", "memory")
# no writing and no decay: a rate of exp(-200) and a gate's bias of 1e4 are exactly 0 and 1 in fp32
_STILL, _SHUT = -200.0, 1e4


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A memory with heads, or the heads of an attention.

    Attributes:
        name: the layer's place, such as "layers.0"; "" where all layers read the one memory.
        n_heads: H.
        outputs: parameters (D,Q) that take its heads to the stream, head by head.
        held: the state's tensors that hold it, their head axes; none for attention, whose cache
            has no memory of a fixed size.
    """

    name: str
    n_heads: int
    outputs: tuple[str, ...]
    held: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a model.

    Attributes:
        memories: in the order of the layers.
        ffns: parameters of the feed-forward networks' last products, biases included.
    """

    memories: tuple[Memory, ...]
    ffns: tuple[str, ...]

    @property
    def heads(self) -> list[Head]:
        """All heads."""
        return [(i, h) for i, memory in enumerate(self.memories) for h in range(memory.n_heads)]

    @property
    def held_heads(self) -> list[Head]:
        """The heads that have a memory in the state."""
        return [(i, h) for i, h in self.heads if self.memories[i].held]

    def label(self, head: Head) -> str:
        """ "head 2", with the layer where there are several memories."""
        name = self.memories[head[0]].name
        return f"head {head[1]}" if len(self.memories) == 1 else f"{name} head {head[1]}"

    def check(self, heads: Iterable[Head]) -> list[Head]:
        """The heads, sorted.

        Raises:
            InputError: none, or one that the model does not have.
        """
        found = sorted({(int(i), int(h)) for i, h in heads})
        if not self.memories:
            raise InputError("heads: this model has no heads; leave them out")
        if not found:
            raise InputError("heads=[]: name at least one, as (memory, head)")
        for i, h in found:
            if not 0 <= i < len(self.memories):
                raise InputError(
                    f"head {(i, h)}: the model has {len(self.memories)} memories, numbered from 0"
                )
            if not 0 <= h < self.memories[i].n_heads:
                raise InputError(
                    f"head {(i, h)}: memory {i} has {self.memories[i].n_heads} heads, numbered "
                    "from 0"
                )
        return found


def model_parts(model: LanguageModel) -> Parts:
    """Find the parts of a model."""
    parameters = dict(check_model(model).named_parameters())
    state = dict(model.init_state(1, device="meta").named_tensors())
    n_heads = int(getattr(model.config, "n_heads", 0))
    groups: dict[str, list[str]] = {}
    for name in parameters:
        for ending in _OUTPUTS:
            if name.endswith(f"{ending}.weight"):
                place = name.removesuffix(f".{ending}.weight")
                shared = ending == "read.out"  # every layer reads the same memory
                groups.setdefault("" if shared else place, []).append(name)
                break
    memories: list[Memory] = []
    recurrent = 0
    for place, outputs in groups.items():
        held: list[tuple[str, int]] = []
        if not outputs[0].endswith("attention.out.weight"):
            for pattern in (*_HELD, "running.{0}", "running"):
                name = pattern.format(recurrent)
                known = {n.partition(".")[0] for n, _ in held}
                if name in state and name.partition(".")[0] not in known:
                    held.append((name, 2 if state[name].ndim == 5 else 1))
            recurrent += 1
        memories.append(
            Memory(name=place, n_heads=n_heads, outputs=tuple(outputs), held=tuple(held))
        )
    endings = tuple(f"{f}.{kind}" for f in _FFNS for kind in ("weight", "bias"))
    return Parts(
        memories=tuple(memories), ffns=tuple(name for name in parameters if name.endswith(endings))
    )


def cut_heads(model: LanguageModel, heads: Iterable[Head], turn_DD: Tensor | None = None) -> Patch:
    """Parameters with which some heads add nothing, for ``palimpsest.analysis.patched``.

    Args:
        model: the model.
        heads: which.
        turn_DD: an orthogonal matrix: instead of -c, what the heads add is changed by -turn·c, as
            long but in another direction; the control of the cut.

    Raises:
        InputError: heads that the model does not have.
    """
    parts = model_parts(model)
    parameters = dict(model.named_parameters())
    patch: Patch = {}
    for i, h in parts.check(heads):
        memory = parts.memories[i]
        for name in memory.outputs:
            if name not in patch:
                patch[name] = parameters[name].detach().clone()
            width = patch[name].shape[1] // memory.n_heads
            columns = slice(h * width, (h + 1) * width)
            old_DU = parameters[name].detach()[:, columns]
            gone_DU = old_DU if turn_DD is None else turn_DD.to(old_DU) @ old_DU
            patch[name][:, columns] = old_DU - gone_DU
    return patch


def frozen_heads(model: LanguageModel, heads: Iterable[Head]) -> Patch:
    """Parameters with which the memories of some heads are neither written nor decay.

    Exact, not small: a delta-rule head writes nothing for the key 0 and keeps everything at the
    rate 0, Mamba-2 does both with the step 0, and a pair memory with the gate 1.

    Raises:
        InputError: heads that the model does not have, or whose memory cannot be frozen so.
    """
    parts = model_parts(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    patch: Patch = {}

    def change(name: str, rows: slice | int, value: float) -> None:
        if name not in patch:
            patch[name] = parameters[name].clone()
        patch[name][rows] = value

    for i, h in parts.check(heads):
        memory = parts.memories[i]
        place = f"{memory.name}." if memory.name else ""
        if "cell.write.key.weight" in parameters:
            width = parameters["cell.write.key.weight"].shape[0] // memory.n_heads
            keys = slice(h * width, (h + 1) * width)
            change("cell.write.key.weight", keys, 0.0)
            change("cell.write.key.bias", keys, -1.0)  # the key is relu of this
            change("cell.write.A_log", h, _STILL)
        elif f"{place}delta.A_log" in parameters:
            width = getattr(model.get_submodule(f"{place}delta"), "key_width")  # noqa: B009
            keys = slice((memory.n_heads + h) * width, (memory.n_heads + h + 1) * width)
            own = f"{place}delta.conv"
            mix = next(n for n in parameters if n.startswith(f"{place}delta.mix"))
            change(own if own in parameters else mix, keys, 0.0)
            change(f"{place}delta.A_log", h, _STILL)
        elif f"{place}mixer.dt_bias" in parameters:
            change(f"{place}mixer.dt_bias", h, -_SHUT)
        elif memory.held and f"{place}mixer.bias" in parameters:
            for gate in range(2):  # λ of the running state, γ of the pair memory
                change(f"{place}mixer.bias", gate * memory.n_heads + h, _SHUT)
        else:
            raise InputError(
                f"head {(i, h)} of {model.registry_name}: has no memory that could be frozen"
            )
    return patch


def map_heads(
    state: State, parts: Parts, heads: Iterable[Head], change: Mapping[str, Tensor] | None = None
) -> State:
    """A state with the memories of some heads replaced.

    Args:
        state: of the model.
        parts: of the model.
        heads: whose memories.
        change: the state's tensors by name that they are taken from; None empties them.

    Raises:
        InputError: heads that the model does not have, or none that has a memory.
    """
    table = dict(state.named_tensors())
    held = [(name, axis, h) for i, h in parts.check(heads) for name, axis in parts.memories[i].held]
    if not held:
        raise InputError("heads without a memory in the state: attention keeps a cache instead")
    for name, axis, h in held:
        old = table[name]
        source = torch.zeros_like(old) if change is None else change[name]
        index = torch.tensor([h], device=old.device)
        table[name] = old.index_copy(axis, index, source.index_select(axis, index))
    new = iter(table.values())
    return state.map(lambda _: next(new))
