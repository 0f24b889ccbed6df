"""``palimpsest eval``: perplexity and bits per byte of a text.

The other evaluations, ``palimpsest eval MODEL lambada | recall | positions | throughput``, are in
modules of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from palimpsest.cli.model_source import check_output_path, find_model, pick_device
from palimpsest.cli.output import say
from palimpsest.evaluation import Precision, Protocol, evaluate_text

__all__ = ["EvalArgs", "run"]


@dataclass(frozen=True)
class EvalArgs:
    """Measure perplexity and bits per byte of a model on a text.

    Example:

    palimpsest eval runs/book --text other.txt --protocol carried --out result.json

    Other evaluations have their name behind the model and options of their own:

    palimpsest eval MODEL lambada --help

    palimpsest eval MODEL recall --help

    palimpsest eval MODEL positions --help

    palimpsest eval MODEL throughput --help
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    text: Path
    """What to read: a file or folder (.txt, .jsonl, .json, each also .gz)."""

    protocol: Literal["windows", "strided", "carried"] = "windows"
    """windows: consecutive, the state reset at each. strided: overlapping, each counts only what is
    new. carried: one state through each document."""

    seq_len: int = 512
    """Tokens of a window (for carried: of one step of reading, which changes nothing)."""

    stride: int | None = None
    """Tokens between two strided windows. By default half a window."""

    batch_size: int = 8
    """Windows (for carried: documents) read at once; changes the result by rounding only."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    predict: Literal["next", "current"] | None = None
    """next: a position predicts the token after it. current: the published reading of Grounded
    Prediction Networks, where the first token counts too. By default as the run was trained."""

    bos: Literal["auto", "document", "window", "none"] = "auto"
    """Where a begin token is read. auto: before each document, where the tokenizer has one."""

    prepare: Literal["none", "wikitext"] = "none"
    """wikitext: the non-empty lines as one document."""

    field: str = "text"
    """The field of a JSON object that holds the text."""

    max_windows: int | None = None
    """Only the first so many windows of the text."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default the model's own."""

    window: int | None = None
    """Tokens of context that attention reads; 0 for all. By default the length that the model was
    trained on, which the result says."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the result as JSON."""


def run(args: EvalArgs) -> int:
    """Carry out the command; 0 when done."""
    source = find_model(args.model)
    protocol = Protocol(
        kind=args.protocol,
        seq_len=args.seq_len,
        stride=args.stride,
        predict=args.predict or source.predict,
        bos=args.bos,
        max_windows=args.max_windows,
    )
    check_output_path(args.out, "--out")
    model = source.load(pick_device(args.device), args.window)
    tokenizer = source.tokenizer(args.tokenizer)
    result = evaluate_text(
        model,
        tokenizer,
        args.text,
        protocol=protocol,
        batch_size=args.batch_size,
        precision=args.precision,
        prepare=args.prepare,
        field=args.field,
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
