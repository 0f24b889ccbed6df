"""Interventions on what flows through a model, each with its random controls.

- mean state: subtracted from the grounded state at every token (grounded networks); subtracted,
  projected out or clamped where the head reads the state (all models; in a residual stream it is
  the mean residual of the last layer). Controls: as far, along random directions.
- feed-forward network, read, exact retrieval, each head: cut. Controls: what they add is changed
  by a vector as long, turned by a random orthogonal matrix.
- noise of a relative norm: in the grounded state at every token, and where the head reads. Noise
  is its own control.

How they are carried out: grounding adds what the token drives, s = gate ⊙ p + drive, so that a
vector taken from the drive is taken from the grounded state; what is cut is cut by parameters
(``analysis.parts``). Both run in the fused loop. Interventions on memories: ``analysis.memories``.

Legend: D width of a state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from palimpsest.analysis.parts import Head, cut_heads, model_parts
from palimpsest.analysis.passes import decoder_tap
from palimpsest.models.language_model import LanguageModel

__all__ = [
    "NOISE",
    "cut_interventions",
    "draw_label",
    "mean_state_interventions",
    "noise_interventions",
    "patch_context",
]

NOISE = (0.1, 0.3, 1.0)
HOWS: tuple[tuple[How, str], ...] = (
    ("subtract", "subtracted"),
    ("project", "projected out"),
    ("clamp", "clamped"),
)
Context = AbstractContextManager[None]
Change = Callable[[Tensor], Tensor]


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
                    name=f"{name}{draw_label(i)}",
                    group=group,
                    about=about if i == 0 else f"as long, turned at random: {about}",
                    context=functools.partial(patch_context, model, patch),
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
    return found + _retrieval_cut(model, draws, seed)


def _retrieval_cut(model: LanguageModel, draws: int, seed: int) -> list[Intervention]:
    """What is retrieved exactly, in the models that do, is zero; controls as for the read."""
    names = [name for name, tap in taps(model).items() if name.endswith("retrieval.read")]
    if not names:
        return []
    found, title = [], "retrieval cut"
    width = model.head_weight().shape[1]
    for i, turn_DD in enumerate(_turns(width, draws, seed)):
        change = torch.zeros_like if turn_DD is None else functools.partial(_turned, turn_DD)
        found.append(
            Intervention(
                name=f"{title}{draw_label(i)}",
                group="read",
                about="what is retrieved is zero" if i == 0 else "changed by as much, turned",
                context=functools.partial(_replaced_all, model, names, change),
                control_of=title if i else "",
            )
        )
    return found


def _turned(turn_DD: Tensor, x_BTD: Tensor) -> Tensor:
    return x_BTD - x_BTD @ turn_DD.T.to(x_BTD)


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
    model: LanguageModel, tap: str, change: Change, generator: torch.Generator
) -> Context:
    return intervene(model, {tap: change})


def _replaced_all(
    model: LanguageModel, names: list[str], change: Change, generator: torch.Generator
) -> Context:
    return intervene(model, dict.fromkeys(names, change))


def _disturbed(model: LanguageModel, tap: str, norm: float, generator: torch.Generator) -> Context:
    return intervene(model, {tap: add_noise(norm, generator)})


def patch_context(
    model: LanguageModel, patch: dict[str, Tensor], generator: torch.Generator
) -> Context:
    return patched(model, patch)


def draw_label(i: int) -> str:
    return f" (random {i})" if i else ""


def _with_directions(width: int, draws: int, seed: int) -> Iterator[tuple[Tensor | None, str]]:
    generator = torch.Generator().manual_seed(seed)
    yield None, ""
    for i in range(1, draws + 1):
        yield random_direction(width, generator), draw_label(i)


def _turns(width: int, draws: int, seed: int) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return [None, *(random_turn(width, generator) for _ in range(draws))]
