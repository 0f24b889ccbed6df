"""Which taps a model has, under their full names.

A module's tap is named by the module's place: up to the layer's number where there is one, so that
``layers.0.attention`` and its ``query`` make ``layers.0.query``, else by the first part of its
name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.taps import Tap

__all__ = ["INPUT_IDS", "LOGITS", "check_model", "places", "resolve", "taps"]

INPUT_IDS, LOGITS = "input_ids", "logits"
_OF_EVERY_MODEL = {
    INPUT_IDS: Tap("(B,T)", "the tokens read", "int64"),
    LOGITS: Tap("(B,T,V)", "the logits that the call returns", cheap=False),
}


def check_model(model: object) -> LanguageModel:
    """The model itself.

    Raises:
        InputError: anything else.
    """
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"model of type {type(model).__name__}: must be a palimpsest model, from "
            "palimpsest.build or palimpsest.load"
        )
    return model


def taps(model: LanguageModel) -> dict[str, Tap]:
    """All taps of a model by name, in the order of its modules.

    Args:
        model: any model of ``palimpsest.list_models()``.

    Raises:
        InputError: not a model.
    """
    found = dict(_OF_EVERY_MODEL)
    named = places(check_model(model))
    for module in model.modules():
        describe = getattr(module, "describe_taps", None)
        if describe is not None:
            for name, about in describe().items():
                full = named[id(module)] + name
                if full in found:
                    raise ValueError(f"{type(module).__name__}: two taps are named {full!r}")
                found[full] = about
    return found


def places(model: LanguageModel) -> dict[int, str]:
    """What a tap's name starts with, by the module's ``id``."""
    found = {}
    for path, module in model.named_modules():
        parts = path.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        kept = parts[: numbers[-1] + 1] if numbers else parts[:1]
        found[id(module)] = ".".join([*kept, ""]) if path else ""
    return found


def resolve(model: LanguageModel, names: Iterable[str], what: str = "taps") -> list[str]:
    """Full names, with ``*`` standing for anything, in the order of the model's own list.

    Raises:
        InputError: a name or pattern that fits no tap of the model.
    """
    if isinstance(names, str):
        names = [names]
    known = taps(model)
    wanted: set[str] = set()
    for name in names:
        fits = [tap for tap in known if fnmatchcase(tap, name)]
        if not fits:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"{what}: {model.registry_name} has no {name!r}; {hint}it has {', '.join(known)}"
            )
        wanted.update(fits)
    return [tap for tap in known if tap in wanted]
