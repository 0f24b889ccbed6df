"""``palimpsest bench``: how fast each backend of a model is, side by side, on this machine.

All backends take turns within each round, so that whatever else the machine does falls on all of
them; what is reported is the median over the rounds, and the ratios are what one should read.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from palimpsest.cli.info import missing_backends
from palimpsest.cli.model_source import check_output_path, find_model, names_a_folder, pick_device
from palimpsest.cli.output import say
from palimpsest.errors import InputError
from palimpsest.evaluation import Precision, inference
from palimpsest.evaluation.inference import dtype_label
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.throughput import training_step, wait_for
from palimpsest.files import write_json
from palimpsest.models import LanguageModel, build
from palimpsest.ops import backend_calls, force_backend
from palimpsest.ops.dispatch import dispatchers
from palimpsest.provenance import code_commit, software_versions
from palimpsest.streams import plain

__all__ = ["BenchArgs", "run"]

SCHEMA = "palimpsest-bench"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BenchArgs:
    """Compare the backends of a model: tokens per second of training and of a forward pass.

    Example:

    palimpsest bench gpnm-1m --batch 16 --length 128 --precision fp32
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|RUN")]
    """A preset's name, or the folder of a trained model."""

    batch: int = 16
    """Rows of a batch."""

    length: int = 128
    """Tokens of a row."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    rounds: int = 5
    """How often everything is measured; the median counts."""

    threads: int | None = None
    """CPU threads. By default torch's own choice."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the figures as JSON."""


@dataclass(frozen=True)
class Plan:
    """One choice of backends: the automatic one, or a backend forced for one op or for all."""

    op: str
    backend: str

    def forced(self) -> contextlib.AbstractContextManager[None]:
        if self == AUTOMATIC:
            return contextlib.nullcontext()
        if self == REFERENCE:
            return force_backend(self.backend)
        return force_backend(**{self.op: self.backend})


AUTOMATIC = Plan("all", "automatic")
REFERENCE = Plan("all", "reference")


def run(args: BenchArgs) -> int:
    """Carry out the command; 0 when done."""
    for name in ("batch", "length", "rounds"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name} {getattr(args, name)}: must be at least 1")
    if args.threads is not None and args.threads < 1:
        raise InputError(f"--threads {args.threads}: must be at least 1")
    check_output_path(args.out, "--out")
    device = pick_device(args.device)
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads or before)
    try:
        torch.manual_seed(0)
        if names_a_folder(args.model):
            model = find_model(args.model).load(device)
        else:
            model = build(args.model).to(device)
        facts = measure(model, args)
    finally:
        torch.set_num_threads(before)
    if args.out is not None:  # before anything is printed: standard output may be broken
        write_json(args.out, facts)
    show(facts, Console())
    if args.out is not None:
        say(f"written: {args.out}")
    return 0


def measure(model: LanguageModel, args: BenchArgs) -> dict[str, Any]:
    """All figures, as they are written to JSON."""
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, args.length + 1)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator).to(model.device)
    phases: dict[str, Callable[[], None]] = {
        "forward": lambda: _forward(model, ids, args.precision),
        "training": training_step(model, ids, args.precision),
    }
    for phase in phases.values():  # compiles what is compiled, and says what is used
        phase()
    calls = backend_calls()
    phases["training"]()
    used = {op: name for op, name in backend_calls() - calls}
    plans = [REFERENCE, AUTOMATIC]
    for op in sorted(used):
        names = dispatchers()[op].available()
        if len(names) > 1:
            plans += [Plan(op, name) for name in names]

    seconds: dict[tuple[Plan, str], list[float]] = {(p, n): [] for p in plans for n in phases}
    with track("measuring", len(seconds) * (args.rounds + 1), unit="steps") as advance:
        for round_number in range(args.rounds + 1):
            for (plan, name), times in seconds.items():
                with plan.forced():
                    start = time.perf_counter()
                    phases[name]()
                    wait_for(model.device)
                    took = time.perf_counter() - start
                if round_number:  # the first round warms each backend up
                    times.append(took)
                advance(1)

    tokens = args.batch * args.length
    rates = {key: tokens / statistics.median(times) for key, times in seconds.items()}
    rows = []
    for plan in plans:
        row: dict[str, Any] = {"op": plan.op, "backend": plan.backend}
        base = Plan(plan.op, "reference")
        for name in phases:
            row[f"{name}_tokens_per_s"] = rates[plan, name]
            row[f"{name}_seconds"] = seconds[plan, name]
            if (base, name) in rates:
                row[f"{name}_over_reference"] = rates[plan, name] / rates[base, name]
        rows.append(row)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "model": args.model,
        "architecture": model.registry_name,
        "parameters": model.num_parameters(),
        "batch": args.batch,
        "length": args.length,
        "dtype": dtype_label(model, args.precision),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "rounds": args.rounds,
        "automatic": used,
        "missing": {op: missing_backends(op) for op in sorted(used) if missing_backends(op)},
        "versions": software_versions(),
        "commit": code_commit(),
        "rows": rows,
    }


def _forward(model: LanguageModel, ids: torch.Tensor, precision: Precision) -> None:
    with inference(model, precision):
        model(ids[:, :-1], targets=ids[:, 1:])


def show(facts: dict[str, Any], console: Console) -> None:
    """The header that makes the figures mean something, and the table."""
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    console.print(
        f"{plain(facts['model'])} ({facts['architecture']}, {facts['parameters']:,} parameters), "
        f"batch {facts['batch']} × {facts['length']} tokens, {facts['dtype']}, "
        f"{facts['device']}, {facts['threads']} threads; {versions}",
        highlight=False,
    )
    console.print(
        f"median of {facts['rounds']} rounds; forward: the loss without gradients; training: "
        "forward, backward and one step of AdamW; × is over the reference; the rows of one op "
        "leave the others to the automatic choice",
        highlight=False,
    )
    table = Table()
    for name in ("op", "backend"):
        table.add_column(name)
    for name in ("forward tok/s", "×", "training tok/s", "×"):
        table.add_column(name, justify="right")
    for row in facts["rows"]:
        cells = [row["op"], row["backend"]]
        for phase in ("forward", "training"):
            ratio = row.get(f"{phase}_over_reference")
            cells += [
                f"{row[f'{phase}_tokens_per_s']:,.0f}",
                "" if ratio is None else f"{ratio:.2f}",
            ]
        table.add_row(*cells)
    console.print(table)
    chosen = ", ".join(f"{op}: {name}" for op, name in sorted(facts["automatic"].items()))
    console.print(f"chosen automatically: {chosen}", highlight=False)
    for op, reasons in facts["missing"].items():
        for name, reason in reasons.items():
            print(f"not here: {name} of {op}: {reason}", file=sys.stderr)
