"""``palimpsest eval MODEL positions``: the loss by position in the window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from palimpsest.cli.model_source import check_output_path, find_model, pick_device
from palimpsest.cli.output import say
from palimpsest.errors import InputError
from palimpsest.evaluation import Precision, evaluate_positions, plot_positions

__all__ = ["PositionsArgs", "run"]


@dataclass(frozen=True)
class PositionsArgs:
    """Measure the loss by position in the window: does context help to the end of it?

    Example:

    palimpsest eval runs/book positions --text other.txt --seq-len 1024 --plot positions.png
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL positions")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    text: Path
    """What to read: a file or folder (.txt, .jsonl, .json, each also .gz)."""

    seq_len: int = 512
    """Tokens of a window; the state is reset at each."""

    spacing: Literal["log", "equal"] = "log"
    """log: positions 1, 2, 3–4, 5–8, …. equal: --buckets of equal width."""

    buckets: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """How many, for --spacing equal. By default 8."""

    max_windows: int | None = None
    """Only the first so many windows of the text."""

    batch_size: int = 8
    """Windows read at once; changes the result by rounding only."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    predict: Literal["next", "current"] | None = None
    """How predictions align with tokens (see palimpsest eval). By default as the run was
    trained."""

    bos: Literal["auto", "document", "window", "none"] = "auto"
    """Where a begin token is read. auto: before each document, where the tokenizer has one."""

    prepare: Literal["none", "wikitext"] = "none"
    """wikitext: the non-empty lines as one document."""

    field: str = "text"
    """The field of a JSON object that holds the text."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default the model's own."""

    window: int | None = None
    """Tokens of context that attention reads; 0 for all. By default the length that the model was
    trained on, which the result says."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the result as JSON."""

    plot: Path | None = None
    """Also draw the curve, as a PNG (needs matplotlib)."""


def run(args: PositionsArgs) -> int:
    """Carry out the command; 0 when done."""
    source = find_model(args.model)
    if args.buckets is not None and args.spacing != "equal":
        raise InputError(f"--buckets {args.buckets}: is for --spacing equal; log has its own")
    check_output_path(args.out, "--out")
    check_output_path(args.plot, "--plot")
    model = source.load(pick_device(args.device), args.window)
    result = evaluate_positions(
        model,
        source.tokenizer(args.tokenizer),
        args.text,
        seq_len=args.seq_len,
        spacing=args.spacing,
        buckets=8 if args.buckets is None else args.buckets,
        predict=args.predict or source.predict,
        bos=args.bos,
        max_windows=args.max_windows,
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
    if args.plot is not None:
        plot_positions([result], args.plot)
    console = Console()
    console.print(result.table())
    console.print(result.by_position())
    for path in (args.out, args.plot):
        if path is not None:
            say(f"written: {path}")
    return 0
