"""Interventions on the memories that a model carries, each with its random controls.

- pools of heads: cut; frozen in the middle of a block (neither written nor decaying from there on);
  emptied there once; shuffled there, each text going on with the pool of another. Controls: as
  many random heads.
- the whole memory: swapped between texts in the middle, with random numbers of the same norm in
  each head as the control; emptied there; with noise of a relative norm there.

Texts are exchanged within a forward, half a batch apart.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch

from palimpsest.analysis.effects import Intervention
from palimpsest.analysis.interventions import NOISE, draw_label, patch_context
from palimpsest.analysis.parts import (
    Head,
    Parts,
    cut_heads,
    frozen_heads,
    map_heads,
    model_parts,
)
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = ["memory_interventions", "pool_interventions"]


def pool_interventions(
    model: LanguageModel,
    pools: Mapping[str, Iterable[Head]],
    *,
    draws: int = 4,
    seed: int = 0,
) -> list[Intervention]:
    """Pools of heads cut, frozen, emptied and shuffled.

    Args:
        model: the model.
        pools: heads by the pool's name; an empty pool is left out.
        draws: random pools of the same size beside each, or as many as there are.
        seed: of the random pools.

    Raises:
        InputError: a head that the model does not have, or without a memory.
    """
    parts = model_parts(model)
    found: list[Intervention] = []
    for title, members in pools.items():
        pool = list(members)
        if not pool:
            continue
        pool = parts.check(pool)
        if any(not parts.memories[i].held for i, _ in pool):
            raise InputError(f"pool {title!r}: has heads of attention, which carry no memory")
        sets = [pool, *_other_sets(parts.held_heads, pool, draws, seed)]
        for i, heads in enumerate(sets):
            members_are = ", ".join(parts.label(head) for head in heads)
            cut, still = cut_heads(model, heads), frozen_heads(model, heads)
            for what, about, how in (
                (
                    "cut",
                    "nothing is read",
                    {"context": functools.partial(patch_context, model, cut)},
                ),
                (
                    "frozen",
                    "no write and no decay from the middle on",
                    {"context": functools.partial(patch_context, model, still), "midway": True},
                ),
                (
                    "emptied",
                    "zero once, in the middle",
                    {"edit": functools.partial(_emptied, parts, heads)},
                ),
                (
                    "shuffled",
                    "that of another text, from the middle on",
                    {"edit": functools.partial(_exchanged, parts, heads)},
                ),
            ):
                name = f"{title} pool {what}"
                found.append(
                    Intervention(
                        name=f"{name}{draw_label(i)}",
                        group="pool",
                        about=f"{about}: {members_are}",
                        control_of=name if i else "",
                        **how,
                    )
                )
    return found


def memory_interventions(
    model: LanguageModel, *, draws: int = 4, relative: Sequence[float] = NOISE
) -> list[Intervention]:
    """The whole memory swapped between texts, emptied, or with noise, in the middle of a block.

    Args:
        model: the model; one without a memory of fixed size has none of these.
        draws: random memories beside the swap.
        relative: norms of the noise, as shares of each head's own.
    """
    parts = model_parts(model)
    heads = parts.held_heads
    if not heads:
        return []
    swap = "memories of two texts swapped"
    found = [
        Intervention(
            name=swap,
            group="memory",
            about="from the middle on each text has the memory of another",
            edit=functools.partial(_exchanged, parts, heads),
        )
    ]
    found += [
        Intervention(
            name=f"{swap}{draw_label(i)}",
            group="memory",
            about="random numbers of the same norm in each head",
            edit=functools.partial(_noisy, parts, heads, 1.0, 0.0),
            control_of=swap,
        )
        for i in range(1, draws + 1)
    ]
    found.append(
        Intervention(
            name="memory emptied",
            group="memory",
            about="zero once, in the middle",
            edit=functools.partial(_emptied, parts, heads),
        )
    )
    found += [
        Intervention(
            name=f"noise of {share:g} in the memory",
            group="noise",
            about="once, in the middle, of this share of each head's norm",
            edit=functools.partial(_noisy, parts, heads, share, 1.0),
        )
        for share in relative
    ]
    return found


def _emptied(parts: Parts, heads: list[Head], state: State, generator: torch.Generator) -> State:
    return map_heads(state, parts, heads)


def _exchanged(parts: Parts, heads: list[Head], state: State, generator: torch.Generator) -> State:
    """Each row with the memory of the row half a batch on, far from it in the text."""
    rows = state.batch_size
    if rows < 2:
        raise InputError("a batch of one block: memories are exchanged between at least two")
    other = state.select([(row + rows // 2) % rows for row in range(rows)])
    return map_heads(state, parts, heads, dict(other.named_tensors()))


def _noisy(
    parts: Parts,
    heads: list[Head],
    share: float,
    kept: float,
    state: State,
    generator: torch.Generator,
) -> State:
    """Each head's memory times ``kept``, and noise of a share of its norm."""
    table = dict(state.named_tensors())
    held = {(name, axis) for i, _ in heads for name, axis in parts.memories[i].held}
    for name, axis in sorted(held):
        old = table[name]
        noise = torch.randn(old.shape, generator=generator).to(old)
        axes = tuple(range(axis + 1, old.ndim))
        size = old.norm(dim=axes, keepdim=True) / noise.norm(dim=axes, keepdim=True)
        table[name] = kept * old + share * size * noise
    return map_heads(state, parts, heads, table)


def _other_sets(heads: list[Head], pool: list[Head], draws: int, seed: int) -> list[list[Head]]:
    """Random sets of as many heads, none of them the pool itself."""
    generator = torch.Generator().manual_seed(seed)
    if len(heads) <= 12:
        every = [list(s) for s in itertools.combinations(heads, len(pool)) if list(s) != pool]
        order = torch.randperm(len(every), generator=generator).tolist()
        return [every[i] for i in order[:draws]]
    found: list[list[Head]] = []
    while len(found) < draws and len(pool) < len(heads):
        chosen = torch.randperm(len(heads), generator=generator)[: len(pool)].tolist()
        drawn = sorted(heads[i] for i in chosen)
        if drawn != pool and drawn not in found:
            found.append(drawn)
        elif len(found) >= len(heads) - 1:
            break
    return found
