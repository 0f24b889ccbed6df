"""``palimpsest study``: everything that is measured about a model's state, on one text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from palimpsest.analysis.battery import BatterySettings, run_battery
from palimpsest.analysis.default_token import count_tokens
from palimpsest.cli import output
from palimpsest.cli.model_source import find_model, pick_device
from palimpsest.evaluation import check_tokenizer
from palimpsest.text import load_corpus

__all__ = ["StudyArgs", "run"]


@dataclass(frozen=True)
class StudyArgs:
    """Study a model's state: geometry, mean state, horizons, effective context, interventions.

    Interventions remove, freeze, swap or disturb parts of the state and of the model, each beside
    random controls. The folder gets battery.json and figures.

    Example:

    palimpsest study runs/book --text other.txt --out runs/book-study
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    text: Path
    """What to read (.txt, .jsonl, .json, each also .gz); best what it was not trained on."""

    out: Path
    """Folder for the results."""

    train_text: Path | None = None
    """What the model was trained on, for the correlation of the mean state with token counts."""

    length: int = 256
    """Tokens of a window, which is read from an empty state."""

    blocks: int = 32
    """Windows that interventions read, spread evenly over the text."""

    draws: int = 4
    """Random controls of each intervention."""

    batch_size: int = 32
    """Windows read at once; memories are exchanged between those."""

    seed: int = 0
    """Of everything random."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default the model's own."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""


def run(args: StudyArgs) -> int:
    """Carry out the command; 0 when done."""
    settings = BatterySettings(
        length=args.length,
        blocks=args.blocks,
        draws=args.draws,
        batch_size=args.batch_size,
        seed=args.seed,
    )
    source = find_model(args.model)
    model = source.load(pick_device(args.device))
    tokenizer = source.tokenizer(args.tokenizer)
    check_tokenizer(model, tokenizer, source.trained_with)
    ids = load_corpus(args.text, tokenizer, bos=False, eos=False).tokens
    unigram = None
    if args.train_text is not None:
        trained_on = load_corpus(args.train_text, tokenizer, bos=False, eos=False).tokens
        unigram = count_tokens(trained_on, model.config.vocab_size)

    def say(part: str) -> None:
        print(f"{part} …", file=sys.stderr, flush=True)

    found = run_battery(
        model,
        torch.as_tensor(ids).long(),
        tokenizer=tokenizer,
        unigram=unigram,
        settings=settings,
        source=args.model,
        data=str(args.text),
        out=args.out,
        say=say,
    )
    console = Console()
    console.print(found.table())
    console.print(found.interventions.table())
    output.say(f"written: {args.out}")
    return 0
