"""``palimpsest eval MODEL throughput``: tokens a second and memory, by length and batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from palimpsest.cli.model_source import check_output_path, find_model, names_a_folder, pick_device
from palimpsest.cli.output import say
from palimpsest.errors import InputError
from palimpsest.evaluation import Precision, measure_throughput, throughput_table
from palimpsest.models import LanguageModel, build

__all__ = ["ThroughputArgs", "run"]

MOST_THREADS = 4096


@dataclass(frozen=True)
class ThroughputArgs:
    """Measure how fast a model reads, trains and writes, and how much memory it takes. Several
    models take turns within every round.

    Example:

    palimpsest eval gpnm-1m throughput --beside gpn-1m --lengths 128 1024 --batches 1 16
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL throughput")]
    """A preset's name, or the folder of a trained model."""

    beside: tuple[str, ...] = ()
    """Other models, measured in the same run."""

    lengths: tuple[int, ...] = (128, 512)
    """Tokens of a row; for decode, of the prompt."""

    batches: tuple[int, ...] = (1, 8)
    """Rows read at once."""

    phases: tuple[Literal["prefill", "training", "decode"], ...] = (
        "prefill",
        "training",
        "decode",
    )
    """prefill reads a prompt, training is a step of AdamW, decode writes token by token."""

    decode_tokens: int = 32
    """Tokens written in one measurement of decode."""

    rounds: int = 5
    """How often everything is measured; the median counts."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    threads: int | None = None
    """CPU threads. By default torch's own choice."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the result as JSON; with --beside a folder, with one file for each model."""


def run(args: ThroughputArgs) -> int:
    """Carry out the command; 0 when done."""
    names = [args.model, *args.beside]
    if len(set(names)) < len(names):
        raise InputError(f"--beside {' '.join(args.beside)}: name each model once")
    if args.threads is not None and not 1 <= args.threads <= MOST_THREADS:
        raise InputError(f"--threads {args.threads}: must be from 1 to {MOST_THREADS}")
    files = output_files(args.out, names)
    for file in files:
        check_output_path(file, "--out")
    device = pick_device(args.device)
    models = {name: load_or_build(name, device) for name in names}
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads or before)
    try:
        results = measure_throughput(
            models,
            lengths=args.lengths,
            batches=args.batches,
            phases=args.phases,
            decode_tokens=args.decode_tokens,
            rounds=args.rounds,
            precision=args.precision,
        )
    finally:
        torch.set_num_threads(before)
    for result, file in zip(results.values(), files, strict=False):
        result.save(file)  # before anything is printed: standard output may be broken
    console = Console()
    for result in results.values():
        console.print(result.table())
    console.print(throughput_table(list(results.values())))
    for file in files:
        say(f"written: {file}")
    return 0


def load_or_build(name: str, device: torch.device) -> LanguageModel:
    """A trained model where there is a path of that name, else a preset with fresh parameters."""
    if names_a_folder(name):
        return find_model(name).load(device)
    torch.manual_seed(0)
    return build(name).to(device).eval()


def output_files(out: Path | None, names: list[str]) -> list[Path]:
    """The file of each model's result, or none."""
    if out is None:
        return []
    if len(names) == 1:
        return [out]
    return [out / f"{number}-{Path(name).name}.json" for number, name in enumerate(names, 1)]
