"""``palimpsest compare``: architectures at equal parameters, equal tokens and equal tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from palimpsest.cli.output import say
from palimpsest.compare import CompareSettings, parse_model, run_compare
from palimpsest.errors import ConfigError

__all__ = ["CompareArgs", "run"]

OPTIONS = {"optimizer.lr": "lrs", "train.seed": "seeds"}
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class CompareArgs:
    """Compare architectures: the same parameters, the same tokens in the same order, a learning
    rate chosen for each from a grid, several seeds. Interrupted, the same command goes on.

    Examples:

    palimpsest compare gpnm transformerpp gdn --train train.txt --valid valid.txt --sizes 0.3M 1M

    palimpsest compare transformer triple-latent --train t.txt --valid v.txt --steps 5000 --jobs 2

    palimpsest compare gpnm two@gpnm:n_layers=2 --train t.txt --valid v.txt --baseline gpnm
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL …")]
    """Architectures (palimpsest info lists them): name, name:field=value,… with fields that are
    given, or label@name:…"""

    train: Path
    """Training text."""

    valid: Path
    """Validation text, which also chooses the learning rates."""

    out: Path = Path("compare")
    """The folder of the results; those in it that still hold are used again."""

    sizes: tuple[str, ...] = ("0.3M",)
    """Parameters, such as 300k or 1M."""

    steps: int = 2000
    """Optimizer steps of every run."""

    batch_size: int = 16
    """Windows of a step."""

    seq_len: int = 256
    """Tokens of a window."""

    lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    """Learning rates; the best on the validation text is taken for each model and size."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the chosen rate; the first one also runs the grid."""

    baseline: str = ""
    """The model that gaps are to. By default the first."""

    warmup_steps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Linear warm-up. By default a twentieth of the steps."""

    weight_decay: float = 0.1
    """Of AdamW."""

    eval_every: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Steps between the points of a curve. By default there are 20."""

    eval_batches: int = 20
    """Batches of validation text at a point of a curve; the last figure reads all of it."""

    tokenizer: str = "bytes"
    """"bytes", a tokenizer file, or a folder that holds one."""

    prepare: Literal["none", "wikitext"] = "none"
    """wikitext: the non-empty lines as one document."""

    dropout: float = 0.0
    """Of the models that have one and whose field is not given."""

    tolerance: float = 0.01
    """Largest deviation from a size, as a share."""

    jobs: int = 1
    """Runs side by side, each in a process with its share of the threads."""

    threads: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """CPU threads of all together. By default OMP_NUM_THREADS, or all cores."""


def run(args: CompareArgs) -> int:
    """Carry out the command; 0 when done."""
    values = {name: value for name, value in vars(args).items()}
    for name in ("out", "jobs", "threads"):
        del values[name]
    values["models"] = tuple(parse_model(text) for text in args.models)
    values["sizes"] = tuple(parse_size(text) for text in args.sizes)
    run_compare(CompareSettings(**values), args.out, jobs=args.jobs, threads=args.threads)
    print((args.out / "table.md").read_text(encoding="utf-8"), end="")
    say(f"written: {args.out / 'table.md'}, table.csv, results.json and the pictures")
    return 0


def parse_size(text: str) -> int:
    """``300k``, ``0.3M`` or ``300000`` as a number of parameters.

    Raises:
        ConfigError: it is none of these.
    """
    factor = UNITS.get(text[-1:], 1.0)
    try:
        number = float(text[:-1] if text[-1:] in UNITS else text)
    except ValueError:
        number = 0.0
    if not (math.isfinite(number) and round(number * factor) >= 1):
        raise ConfigError(f"--sizes {text!r}: must be a number of parameters, such as 300k or 1M")
    return round(number * factor)
