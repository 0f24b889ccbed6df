"""The configuration of a model at a number of parameters."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from palimpsest.compare.settings import CompareSettings, ModelChoice
from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.models.matching import match
from palimpsest.models.registry import build, config_class, list_models, list_presets

__all__ = ["fields_at"]

WIDTHS = ("d_model", "d_state")  # moved to make up for what given fields add
# tried where the usual numbers leave too coarse steps of the width
HEADS = (8, 4, 2)
LAYERS = (1, -1, 2)  # beside the usual number


def fields_at(
    choice: ModelChoice, size: int, settings: CompareSettings, vocab_size: int
) -> tuple[str, dict[str, Any], int]:
    """The architecture, its fields and its parameters at a size.

    Args:
        choice: the model and the fields of it that are given.
        size: parameters wanted.
        settings: for the longest text, the dropout and the tolerance.
        vocab_size: of the tokenizer.

    Raises:
        ConfigError: no such model, or none of it within the tolerance.
    """
    known = {*list_models(), *list_presets()}
    if choice.name not in known:
        raise ConfigError(
            f"model {choice.name!r}: there is none; models: {', '.join(list_models())}; "
            f"presets: {', '.join(list_presets())}"
        )
    preset = list_presets().get(choice.name)
    name = preset.model if preset else choice.name
    given = {**(preset.fields if preset else {}), **choice.fields}
    given.pop("vocab_size", None)
    about = {field.name: field for field in dataclasses.fields(config_class(name))}
    if "dropout" in about:
        given.setdefault("dropout", settings.dropout)
    if "max_seq_len" in about:
        given["max_seq_len"] = max(settings.seq_len, int(given.get("max_seq_len", 0)))
    required = {
        key
        for key, field in about.items()
        if field.default is dataclasses.MISSING and key != "vocab_size"
    }
    try:
        if required <= given.keys():
            fields = given
            parameters = _count(name, fields, vocab_size)
        else:
            fields, parameters = _matched(name, given, size, vocab_size, settings.tolerance)
    except PalimpsestError as failure:
        raise ConfigError(f"{choice.label} at {size:,} parameters: {failure}") from failure
    if abs(parameters - size) > settings.tolerance * size:
        raise ConfigError(
            f"{choice.label} at {size:,} parameters: has {parameters:,}, which is more than "
            f"{100 * settings.tolerance:g} % away; give other fields, or --tolerance"
        )
    return name, fields, parameters


def _matched(
    name: str, given: dict[str, Any], size: int, vocab_size: int, tolerance: float
) -> tuple[dict[str, Any], int]:
    """Fields of the size; what the given ones add, such as positions, is made up for."""
    found = match(size, vocab_size, [name], n_layers=given.get("n_layers"), tolerance=tolerance)[0]
    fields = {**found.fields, **given}
    fields.pop("vocab_size", None)
    parameters = _count(name, fields, vocab_size)
    width = next((key for key in WIDTHS if key in fields and key not in given), None)
    if width is None:
        return fields, parameters
    best = fields, parameters
    heads = [fields.get("n_heads"), *(HEADS if "n_heads" in fields.keys() - given.keys() else ())]
    layers = [0, *(LAYERS if "n_layers" in fields.keys() - given.keys() else ())]
    for count, more in itertools.product(heads, layers):
        trial = dict(fields)
        if count is not None:
            trial["n_heads"] = count
        if more:
            trial["n_layers"] = fields["n_layers"] + more
        if trial.get("n_layers", 1) >= 1:
            best = _nearest(name, trial, width, size, vocab_size, tolerance, best)
        if abs(best[1] - size) <= tolerance * size:
            break
    return best


def _nearest(
    name: str,
    fields: dict[str, Any],
    width: str,
    size: int,
    vocab_size: int,
    tolerance: float,
    best: tuple[dict[str, Any], int],
) -> tuple[dict[str, Any], int]:
    """Move a width, in steps that the heads divide, to the size; the nearest so far."""
    step = max(1, int(fields.get("n_heads", 1)))
    start = fields[width] - fields[width] % step
    for direction in (step, -step):
        place = start
        while abs(best[1] - size) > tolerance * size and place + direction > 0:
            place += direction
            tried = {**fields, width: place}
            try:
                count = _count(name, tried, vocab_size)
            except ConfigError:  # a width that the heads' own parts do not allow
                continue
            if abs(count - size) < abs(best[1] - size):
                best = tried, count
            if (count - size) * direction > 0:  # past it
                break
    return best


def _count(name: str, fields: dict[str, Any], vocab_size: int) -> int:
    with torch.device("meta"):
        return build(name, **{**fields, "vocab_size": vocab_size}).num_parameters()
