"""The interventions on a model, each with its random controls.

Which there are:

- mean state: subtracted from the grounded state at every token (grounded networks); subtracted,
  projected out or clamped where the head reads the state (all models; in a residual stream it is
  the mean residual of the last layer). Controls: as far, along random directions.
- feed-forward network, read, each head: cut. Controls: what they add is changed by a vector as long,
  turned by a random orthogonal matrix.
- pools of heads: cut; frozen in the middle of a block (neither written nor decaying from there on);
  emptied there once; shuffled there, each text going on with the pool of another. Controls: as many
  random heads.
- memory: swapped between texts in the middle, emptied there. Control of the swap: random numbers of
  the same norm in each head.
- noise of a relative norm: in the grounded state at every token, where the head reads, and once in
  the middle in the memory. Noise is its own control.

How they are carried out: grounding adds what the token drives, s = gate ⊙ p + drive, so that a
vector taken from the drive is taken from the grounded state; what is cut is cut by parameters
(``analysis.parts``). Both run in the fused loop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from palimpsest.analysis.catalogue import taps
from palimpsest.analysis.directions import (
    GROUNDED,
    How,
    MeanState,
    add_noise,
    push,
    random_direction,
    random_turn,
)
from palimpsest.analysis.effects import Intervention
from palimpsest.analysis.intervene import intervene, patched
from palimpsest.analysis.parts import (
    Head,
    Parts,
    cut_heads,
    frozen_heads,
    map_heads,
    model_parts,
)
from palimpsest.analysis.passes import decoder_tap
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = [
    "NOISE",
    "cut_interventions",
    "mean_state_interventions",
    "memory_interventions",
    "noise_interventions",
    "pool_interventions",
]

NOISE = (0.1, 0.3, 1.0)
HOWS: tuple[tuple[How, str], ...] = (
    ("subtract", "subtracted"),
    ("project", "projected out"),
    ("clamp", "clamped"),
)
Context = AbstractContextManager[None]


def mean_state_interventions(
    model: LanguageModel, means: Mapping[str, MeanState], *, draws: int = 4, seed: int = 0
) -> list[Intervention]:
    """The mean state removed or clamped.

    Args:
        model: the model.
        means: from ``mean_states``.
        draws: random directions beside each.
        seed: of the directions.
    """
    places = [(decoder_tap(model), name, HOWS) for name in means if name != GROUNDED]
    if GROUNDED in means:
        places.insert(0, ("drive", GROUNDED, HOWS[:1]))
    found = []
    for tap, name, hows in places:
        mean_D = means[name].vector
        where = "at every grounding" if name == GROUNDED else "before decoding"
        for how, said in hows:
            title = f"mean state {said} {where}"
            for along, control in _with_directions(len(mean_D), draws, seed):
                change = push(mean_D, how, along)
                found.append(
                    Intervention(
                        name=f"{title}{control}",
                        group="mean state",
                        about=f"{how} the mean of {name} at {tap}",
                        context=functools.partial(_replaced, model, tap, change),
                        control_of=title if control else "",
                    )
                )
    return found


def cut_interventions(
    model: LanguageModel,
    *,
    heads: Sequence[Head] | None = None,
    draws: int = 4,
    seed: int = 0,
) -> list[Intervention]:
    """The feed-forward networks cut, all reads cut, and each head cut by itself.

    Args:
        model: the model.
        heads: which heads; None takes all.
        draws: random turns beside each.
        seed: of the turns.

    Raises:
        InputError: a head that the model does not have.
    """
    parts, parameters = model_parts(model), dict(model.named_parameters())
    found: list[Intervention] = []

    def add(name: str, group: str, about: str, patches: Iterator[dict[str, Tensor]]) -> None:
        for i, patch in enumerate(patches):
            found.append(
                Intervention(
                    name=f"{name}{_draw(i)}",
                    group=group,
                    about=about if i == 0 else f"as long, turned at random: {about}",
                    context=functools.partial(_patched, model, patch),
                    control_of=name if i else "",
                )
            )

    if parts.ffns:

        def without_ffn(turn_DD: Tensor | None) -> dict[str, Tensor]:
            old = {n: parameters[n].detach() for n in parts.ffns}
            if turn_DD is None:
                return {n: torch.zeros_like(p) for n, p in old.items()}
            return {n: p - turn_DD.to(p) @ p for n, p in old.items()}

        width = parameters[parts.ffns[0]].shape[0]
        turns = _turns(width, draws, seed)
        add("FFN cut", "FFN", "its last product is zero", (without_ffn(t) for t in turns))
    chosen = (parts.heads if heads is None else parts.check(heads)) if parts.memories else []
    if heads is not None and not parts.memories:
        parts.check(heads)
    if chosen:
        width = parameters[parts.memories[0].outputs[0]].shape[0]
        turns = _turns(width, draws, seed)
        every = parts.heads
        about = "the output projection of every head is zero"
        add("read cut", "read", about, (cut_heads(model, every, t) for t in turns))
        for head in chosen if len(every) > 1 else []:
            about = "its columns of the output projection are zero"
            patches = (cut_heads(model, [head], t) for t in turns)
            add(f"{parts.label(head)} cut", "head", about, patches)
    return found


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

            def add(
                what: str, about: str, i: int = i, members_are: str = members_are, **how: object
            ) -> None:
                name = f"{title} pool {what}"
                found.append(
                    Intervention(
                        name=f"{name}{_draw(i)}",
                        group="pool",
                        about=f"{about}: {members_are}",
                        control_of=name if i else "",
                        **how,  # type: ignore[arg-type]
                    )
                )

            cut, still = cut_heads(model, heads), frozen_heads(model, heads)
            add("cut", "nothing is read", context=functools.partial(_patched, model, cut))
            add(
                "frozen",
                "no write and no decay from the middle on",
                context=functools.partial(_patched, model, still),
                midway=True,
            )
            add("emptied", "zero once, in the middle", edit=functools.partial(_emptied, parts, heads))
            add(
                "shuffled",
                "that of another text, from the middle on",
                edit=functools.partial(_exchanged, parts, heads),
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
            name=f"{swap}{_draw(i)}",
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


def noise_interventions(
    model: LanguageModel, means: Mapping[str, MeanState], *, relative: Sequence[float] = NOISE
) -> list[Intervention]:
    """Noise of a norm relative to √E‖x‖², fresh at every token.

    Args:
        model: the model.
        means: from ``mean_states``, for the norms.
        relative: the shares.
    """
    found = []
    for name, mean in means.items():
        tap = "drive" if name == GROUNDED else decoder_tap(model)
        where = "at every grounding" if name == GROUNDED else "before decoding"
        found += [
            Intervention(
                name=f"noise of {share:g} {where}",
                group="noise",
                about=f"{share:g} of the norm of {name}, in a fresh direction at every token",
                context=functools.partial(_disturbed, model, tap, share * mean.rms_norm),
            )
            for share in relative
        ]
    return found


# -- how they are carried out -----------------------------------------------------------------


def _replaced(
    model: LanguageModel, tap: str, change: object, generator: torch.Generator
) -> Context:
    return intervene(model, {tap: change})  # type: ignore[dict-item]


def _disturbed(
    model: LanguageModel, tap: str, norm: float, generator: torch.Generator
) -> Context:
    return intervene(model, {tap: add_noise(norm, generator)})


def _patched(model: LanguageModel, patch: dict[str, Tensor], generator: torch.Generator) -> Context:
    return patched(model, patch)


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


def _draw(i: int) -> str:
    return f" (random {i})" if i else ""


def _with_directions(width: int, draws: int, seed: int) -> Iterator[tuple[Tensor | None, str]]:
    generator = torch.Generator().manual_seed(seed)
    yield None, ""
    for i in range(1, draws + 1):
        yield random_direction(width, generator), _draw(i)


def _turns(width: int, draws: int, seed: int) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return [None, *(random_turn(width, generator) for _ in range(draws))]


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
