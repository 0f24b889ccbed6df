"""``palimpsest demo``: everything once, on text that is already here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from palimpsest.demo import DemoSettings, run_demo

__all__ = ["DemoArgs", "run"]


@dataclass(frozen=True)
class DemoArgs:
    """Train GPN+M, GPN and a Transformer++ of equal size on the text of Python's help(), measure
    them beside gzip, bzip2 and xz, and let each write. Some minutes on two CPU cores; nothing is
    downloaded.

    Example:

    palimpsest demo --out demo-run
    """

    out: Path = Path("demo-run")
    """The demo's folder. An older demo there is replaced; any other folder is refused."""

    quick: bool = False
    """A few steps only: shows that everything works, and no good figures."""

    seed: int = 0
    """Seed of the parameters, the data's order and the samples."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 products where the CPU has instructions for them, else fp32."""


def run(args: DemoArgs) -> int:
    """Carry out the command; 0 when done, 128 + signal when stopped."""
    return run_demo(
        DemoSettings(out=args.out, quick=args.quick, seed=args.seed, precision=args.precision)
    )
