"""Configurations of several architectures with as many parameters as each other.

Each architecture says with a :class:`~palimpsest.models.scaling.Scaling` which sizes go together.
Here its main width is found by bisection, on models without memory for their weights; then one more
field is moved to land closer.
"""

from __future__ import annotations

import bisect
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from palimpsest.arguments import require_type
from palimpsest.errors import ConfigError, InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.registry import build, list_models, model_class
from palimpsest.models.scaling import Scaling

__all__ = ["Match", "match"]

LEAST, MOST = 100_000, 200_000_000
DEPTHS = (0, 1, -1, 2, -2)  # layers beside the usual number, in the order in which they are tried


@dataclass(frozen=True, kw_only=True)
class Match:
    """One architecture at the size asked for.

    Attributes:
        name: the architecture.
        fields: its fields: ``build(name, **fields)`` makes the model.
        parameters: how many it has, tied ones counted once.
        deviation: parameters / those asked for - 1.
        length: tokens after which state and operations are taken: those asked for, or the
            architecture's longest text where that is shorter.
        state_bytes: bytes of the state of one text after ``length`` tokens.
        flops: operations of a forward pass over ``length`` tokens by part, see
            ``LanguageModel.flops``.
    """

    name: str
    fields: dict[str, Any]
    parameters: int
    deviation: float
    length: int
    state_bytes: int
    flops: dict[str, int]

    @property
    def flops_per_token(self) -> float:
        """Operations of a forward pass over ``length`` tokens, a token."""
        return sum(self.flops.values()) / self.length


def match(
    params: int,
    vocab_size: int,
    names: Iterable[str] | str,
    *,
    n_layers: int | None = None,
    length: int = 2048,
    tolerance: float = 0.01,
) -> list[Match]:
    """Find a configuration of each architecture with a given number of parameters.

    Args:
        params: parameters wanted, embeddings and head included, from 100,000 to 200,000,000.
        vocab_size: token ids.
        names: architectures, see ``list_models``; or the name of one.
        n_layers: layers of each; None takes as many as a model of that width usually has, or one
            or two more or fewer where that comes closer.
        length: tokens for which state and operations are given.
        tolerance: largest deviation, as a part of ``params``.

    Returns:
        One :class:`Match` for each name, in their order.

    Raises:
        InputError: an unknown name, or sizes that are out of range.
        ConfigError: an architecture has no configuration so close; the nearest is named.
    """
    require_type(names, "names", Iterable, "pass a list of architectures")
    names = [names] if isinstance(names, str) else list(names)
    if isinstance(params, bool) or not isinstance(params, int) or not LEAST <= params <= MOST:
        raise InputError(f"params={params!r}: must be a whole number from {LEAST:,} to {MOST:,}")
    for name, value in (("vocab_size", vocab_size), ("n_layers", n_layers), ("length", length)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= 1):
            raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    require_type(tolerance, "tolerance", (int, float), "pass a part, such as 0.01 for 1 %")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance={tolerance!r}: must be above 0 and below 1")
    return [_match(name, params, vocab_size, n_layers, length, tolerance) for name in names]


def _match(
    name: str, params: int, vocab_size: int, n_layers: int | None, length: int, tolerance: float
) -> Match:
    if name not in list_models():
        near = difflib.get_close_matches(str(name), list_models(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{name!r}: no such architecture; {hint}there are {', '.join(list_models())}"
        )
    rule = model_class(name).scaling
    if rule is None:
        raise InputError(
            f"{name!r}: declare `scaling = Scaling(...)` on its class, the rule by which its sizes "
            "grow (palimpsest.models.scaling)"
        )
    if n_layers is not None and "n_layers" not in rule.fields(rule.widths[0], n_layers):
        raise InputError(f"n_layers={n_layers}: {name!r} has no field n_layers; leave it out")
    search = _Search(name, rule, params, vocab_size)
    found: list[_Candidate] = []
    for shift in DEPTHS if n_layers is None else (0,):
        found += search.nearest(n_layers, shift)
        if any(abs(candidate.deviation) <= tolerance for candidate in found):
            break
    best = min(found, key=lambda c: (max(abs(c.deviation), tolerance), c.strain))
    model = search.built(best.fields)
    deviation = model.num_parameters() / params - 1
    if abs(deviation) > tolerance:
        shown = ", ".join(f"{key}={value}" for key, value in best.fields.items())
        raise ConfigError(
            f"params={params:,}: no {name} within {tolerance:.1%} of it"
            f"{'' if n_layers is None else f' with n_layers={n_layers}'}; the nearest has "
            f"{model.num_parameters():,} ({shown})"
        )
    length = min(length, model.max_length or length)
    return Match(
        name=name,
        fields=best.fields,
        parameters=model.num_parameters(),
        deviation=deviation,
        length=length,
        state_bytes=model.state_bytes(1, length),
        flops=model.flops(length),
    )


@dataclass(frozen=True)
class _Candidate:
    """A configuration, and how far it is from the usual: the first to be as near wins."""

    fields: dict[str, Any]
    deviation: float
    strain: float


class _Search:
    """One architecture's configurations around a number of parameters."""

    def __init__(self, name: str, rule: Scaling, params: int, vocab_size: int) -> None:
        self.name, self.rule, self.params, self.vocab_size = name, rule, params, vocab_size
        self._counts: dict[tuple[tuple[str, Any], ...], int] = {}

    def built(self, fields: dict[str, Any]) -> LanguageModel:
        """The model, without memory for its weights."""
        with torch.device("meta"):
            return build(self.name, **fields)

    def count(self, fields: dict[str, Any]) -> int:
        """Parameters of a configuration.

        Layers are alike, so that two shallow models tell the count of any depth.
        """
        layers: int = fields.get("n_layers", 1)  # without the field nothing is deep
        if layers <= 2:
            return self._exactly(fields)
        one, two = (self._exactly({**fields, "n_layers": depth}) for depth in (1, 2))
        return one + (layers - 1) * (two - one)

    def _exactly(self, fields: dict[str, Any]) -> int:
        key = tuple(fields.items())
        if key not in self._counts:
            self._counts[key] = self.built(fields).num_parameters()
        return self._counts[key]

    def nearest(self, n_layers: int | None, shift: int) -> list[_Candidate]:
        """The widths on both sides of the number wanted, each with its fine field moved."""
        rule = self.rule

        def sized(width: int) -> dict[str, Any]:
            layers = n_layers or max(1, rule.layers(width) + shift)
            return {"vocab_size": self.vocab_size, **rule.fields(width, layers)}

        above = bisect.bisect_left(rule.widths, self.params, key=lambda w: self.count(sized(w)))
        widths = rule.widths[max(0, above - 1) : above + 1]
        return [self._refined(sized(width), abs(shift)) for width in widths]

    def _refined(self, fields: dict[str, Any], shift: int) -> _Candidate:
        rule = self.rule
        if not rule.fine:
            return self._candidate(fields, shift)
        usual, step = fields[rule.fine], rule.fine_step
        low, high = (max(1, math.ceil(bound * usual / step)) for bound in rule.fine_range)

        def moved(value: float) -> dict[str, Any]:
            return {**fields, rule.fine: step * min(max(round(value / step), low), high)}

        # the count grows evenly with the field, or nearly: from two values to the one wanted
        least, most = moved(low * step), moved(high * step)
        slope = (self.count(most) - self.count(least)) / max(1, most[rule.fine] - least[rule.fine])
        wanted = usual + (self.params - self.count(fields)) / slope if slope else usual
        around = [fields, moved(wanted), moved(wanted - step), moved(wanted + step)]
        best = min(around, key=lambda f: abs(self.count(f) - self.params))
        return self._candidate(best, shift + abs(math.log(best[rule.fine] / usual)))

    def _candidate(self, fields: dict[str, Any], strain: float) -> _Candidate:
        return _Candidate(fields, self.count(fields) / self.params - 1, strain)
