"""``palimpsest match``: configurations of several architectures with equally many parameters."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from palimpsest.errors import InputError
from palimpsest.models.matching import Match, match
from palimpsest.models.registry import list_models

__all__ = ["MatchArgs", "run"]

OPTIONS = {"vocab_size": "vocab", "n_layers": "layers"}
SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True)
class MatchArgs:
    """Find sizes at which architectures have equally many parameters.

    Operations are those of a forward pass, two a multiply-add, logits at all positions included;
    what is counted stands in palimpsest.models.flops.

    Example:

    palimpsest match --params 1M --vocab 259 gpnm gpn triple-hybrid transformerpp
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Architectures; without any, all of them."""

    params: str = "1M"
    """Parameters wanted, embeddings and head included: a number, or with k or M behind it."""

    vocab: int = 259
    """Token ids."""

    layers: int | None = None
    """Layers of each; without it, as many as a model of that width usually has."""

    length: int = 2048
    """Tokens after which the state is weighed, and over which operations are taken."""

    tolerance: float = 0.01
    """Largest deviation of a number of parameters from the one wanted."""

    json: bool = False
    """Print JSON instead of a table."""


def run(args: MatchArgs) -> int:
    """Carry out the command; 0 when done."""
    found = match(
        _number(args.params),
        args.vocab,
        args.names or list_models(),
        n_layers=args.layers,
        length=args.length,
        tolerance=args.tolerance,
    )
    if args.json:
        facts = [{**dataclasses.asdict(m), "flops_per_token": m.flops_per_token} for m in found]
        print(json.dumps(facts, indent=2))
    else:
        _show(found, args, Console())
    return 0


def _number(text: str) -> int:
    said = re.fullmatch(r"(\d+(?:\.\d+)?)([kmKM]?)", text.replace("_", "").replace(",", ""))
    if said is None:
        raise InputError(f"--params {text}: must be a number, such as 1000000, 300k or 1.5M")
    return round(float(said[1]) * SUFFIXES[said[2].lower()])


def _show(found: list[Match], args: MatchArgs, console: Console) -> None:
    table = Table(title=f"{args.params} parameters, {args.vocab:,} token ids", title_justify="left")
    table.add_column("model", no_wrap=True)
    for number in ("parameters", "deviation", "state bytes", "FLOPs per token"):
        table.add_column(number, justify="right")
    for m in found:
        short = "" if m.length == args.length else f" at {m.length:,}"
        cells = (
            m.name,
            f"{m.parameters:,}",
            f"{m.deviation:+.2%}",
            f"{m.state_bytes:,}{short}",
            f"{m.flops_per_token:,.0f}{short}",
        )
        table.add_row(*map(escape, cells))
    console.print(table)
    console.print(
        f"state of one text after {args.length:,} tokens; operations of a forward pass over them",
        highlight=False,
    )
    for m in found:  # to be copied: not cut into lines, and no markup
        fields = ", ".join(f"{name}={value!r}" for name, value in m.fields.items())
        print(f"build({m.name!r}, {fields})")
