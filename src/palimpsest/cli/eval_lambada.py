"""``palimpsest eval MODEL lambada``: the last word of each passage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from palimpsest.cli.model_source import check_output_path, find_model, pick_device
from palimpsest.cli.output import say
from palimpsest.evaluation import Precision, evaluate_lambada

__all__ = ["LambadaArgs", "run"]


@dataclass(frozen=True)
class LambadaArgs:
    """Measure how well a model gives the last word of a passage (LAMBADA), both ways: the first
    token alone, as the Grounded Prediction Networks paper counts, and the whole word, as
    lm-evaluation-harness counts.

    Example:

    palimpsest eval runs/book lambada --data lambada_test.jsonl --out lambada.json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL lambada")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    data: str
    """A file with one object per line ({"text": …}), or "hub": EleutherAI's file through
    huggingface_hub."""

    field: str = "text"
    """The field of an object that holds the text."""

    bos: Literal["auto", "none"] = "auto"
    """auto: a begin token before each passage, where the tokenizer has one."""

    max_context: int | None = None
    """Read only so many last tokens of each context: for models that hold no more."""

    max_examples: int | None = None
    """Only the first so many passages."""

    batch_size: int = 32
    """Passages read at once; changes the result by rounding only."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default the model's own."""

    window: int | None = None
    """Tokens of context that attention reads; 0 for all. By default the length that the model was
    trained on, which the result says."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the result as JSON."""


def run(args: LambadaArgs) -> int:
    """Carry out the command; 0 when done."""
    source = find_model(args.model)
    check_output_path(args.out, "--out")
    model = source.load(pick_device(args.device), args.window)
    result = evaluate_lambada(
        model,
        source.tokenizer(args.tokenizer),
        args.data,
        field=args.field,
        bos=args.bos,
        max_context=args.max_context,
        max_examples=args.max_examples,
        batch_size=args.batch_size,
        precision=args.precision,
        source=args.model,
        seed=source.seed,
        trained_with=source.trained_with,
    )
    if args.out is not None:  # before anything is printed: standard output may be broken
        result.save(args.out)
    Console().print(result.table())
    if args.out is not None:
        say(f"written: {args.out}")
    return 0
