"""``palimpsest reproduce``: a table of a paper, published beside measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from palimpsest.cli.output import say
from palimpsest.errors import ConfigError
from palimpsest.reproduce import Scale, get_table, list_tables, run_table, write_recipes
from palimpsest.reproduce.data import check_folder

__all__ = ["ReproduceArgs", "run"]

PlainPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]


@dataclass(frozen=True)
class ReproduceArgs:
    """Measure a table of the two papers again, published figures beside measured ones. Without a
    table's name: list the tables. Interrupted, the same command goes on with what is missing.

    Examples:

    palimpsest reproduce

    palimpsest reproduce generic --train wiki.train.raw --valid wiki.valid.raw --jobs 2

    palimpsest reproduce recall-hybrid --train wiki.train.raw --valid wiki.valid.raw --seeds 7

    palimpsest reproduce grounded --scale full --out runs/grounded-130m
    """

    table: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE]", help_behavior_hint="")
    ] = ""
    """The table's name; none lists them."""

    train: PlainPath = None
    """Training text: WikiText-2 raw for the byte tables, MiniMind's corpus for minimind."""

    valid: PlainPath = None
    """Validation text."""

    tokenizer: PlainPath = None
    """A tokenizer's file or folder: MiniMind's for minimind, Llama-2's for the full scale."""

    lambada: PlainPath = None
    """LAMBADA's test file (.jsonl), measured besides at the full scale of grounded."""

    out: PlainPath = None
    """The folder of the results. By default reproduce/TABLE, -quick or -full added."""

    quick: bool = False
    """A few steps and a tiny evaluation: shows that everything runs. Labelled in every output."""

    scale: Scale = "small"
    """full: the published size of grounded, for a GPU; without one its recipes are written."""

    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N …", help_behavior_hint="")] = ()
    """Seeds in place of the table's."""

    rows: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT …", help_behavior_hint="")] = ()
    """Only rows whose labels contain one of these."""

    jobs: int = 1
    """Rows measured side by side, each in a process with its share of the threads."""

    threads: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """CPU threads of all together. By default OMP_NUM_THREADS, or all cores."""


def run(args: ReproduceArgs) -> int:
    """Carry out the command; 0 when done."""
    if not args.table:
        print("tables (palimpsest reproduce TABLE):")
        for name, title in list_tables().items():
            print(f"  {name:<20}{title}")
        return 0
    table = get_table(args.table, args.scale)
    out = args.out or _default_folder(args)
    if args.scale == "full" and table is get_table(args.table, "small"):
        raise ConfigError(f"--scale full: {args.table} has one scale only; leave the option out")
    check_folder(out)
    if args.scale == "full":
        paths = write_recipes(table, out / "recipes", rows=args.rows)
        print("recipes written; each can be launched by itself on a GPU:")
        for path in paths:
            say(f"  palimpsest train {path} --data FOLDER --tokenizer FILE --out runs/{path.stem}")
        missing = [name for name in ("train", "valid", "tokenizer") if not getattr(args, name)]
        if not args.quick and (missing or not torch.cuda.is_available()):
            needed = [f"--{name}" for name in missing]
            if not torch.cuda.is_available():
                needed.append("a CUDA GPU (this machine has none)")
            print(f"to measure the rows here, this needs: {', '.join(needed)}")
            return 0
    facts = run_table(
        args.table,
        out,
        train=args.train,
        valid=args.valid,
        tokenizer=args.tokenizer,
        lambada=args.lambada,
        scale=args.scale,
        quick=args.quick,
        seeds=args.seeds,
        rows=args.rows,
        jobs=args.jobs,
        threads=args.threads,
    )
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    picture = f" and {out / 'table.png'}" if (out / "table.png").exists() else ""
    say(f"written: {out / 'table.md'}, table.csv, results.json{picture}")
    missing_rows = [row["label"] for row in facts["rows"] if not row["available"]]
    if missing_rows:
        print(f"rows that this version cannot measure: {', '.join(missing_rows)}")
    return 0


def _default_folder(args: ReproduceArgs) -> Path:
    name = args.table + ("-full" if args.scale == "full" else "") + ("-quick" if args.quick else "")
    return Path("reproduce") / name
