"""Throughput of a forward pass, and counted operations.

Source: Xiao, arXiv 2606.05175. Ratios of the published program were measured on two CPU cores.
"""

from __future__ import annotations

from typing import Any

from palimpsest.reproduce.experiments import FlopsExperiment, ThroughputExperiment
from palimpsest.reproduce.table import Column, Row, Table
from palimpsest.reproduce.tables.triple import PAPER, SIZES

__all__ = ["FLOPS", "THROUGHPUT"]

LENGTHS = (64, 128, 256, 512)
COUNTED = (64, 128, 512)
LONG: dict[str, Any] = {**SIZES, "max_seq_len": 512}
S8: dict[str, Any] = {**LONG, "state_dim": 8}


def _speeds(rates: dict[int, float], times: dict[int, float]) -> dict[str, float]:
    return {f"tokens_per_s_{n}": rate for n, rate in rates.items()} | {
        f"over_transformer_{n}": ratio for n, ratio in times.items()
    }


THROUGHPUT = Table(
    name="throughput",
    title="Forward pass, batch 8, 20 timed iterations",
    source=PAPER,
    columns=(
        *(
            Column(
                metric=f"tokens_per_s_{n}",
                title=f"tok/s at {n}",
                published_title="published (Apple MPS)",
                style="integer",
            )
            for n in LENGTHS
        ),
        *(
            Column(
                metric=f"over_transformer_{n}",
                title=f"time ÷ Transformer's at {n}",
                published_title="published program (2 CPU cores)",
                style="ratio",
            )
            for n in LENGTHS
        ),
    ),
    experiments=(ThroughputExperiment(lengths=LENGTHS, reference=LONG),),
    rows=(
        Row(
            label="Transformer",
            model="transformer",
            fields=LONG,
            published=_speeds({64: 602_684, 512: 344_185}, {64: 1.0, 512: 1.0}),
        ),
        Row(
            label="Triple-Hybrid",
            model="triple-hybrid",
            fields=S8,
            published=_speeds({64: 18_433, 512: 18_870}, {64: 10.7, 512: 2.5}),
        ),
        Row(
            label="Gated Hybrid",
            model="gated-hybrid",
            fields=S8,
            published=_speeds({64: 5_659, 512: 4_910}, {64: 15.9, 512: 3.9}),
        ),
    ),
    seeds=(0,),
    notes=(
        "The published speeds are those of another machine (Apple MPS); only the ratios compare. "
        "Here each row is timed in turn with the Transformer, one forward each, and rates and "
        "ratios are of the medians; each row has the whole machine, whatever --jobs says.",
        "The convolution is causal in these rows; its padding does not change the work.",
    ),
)


def _mflop(paper: tuple[float, ...]) -> dict[str, float]:
    return {f"mflop_paper_{n}": figure for n, figure in zip(COUNTED, paper, strict=True)}


FLOPS = Table(
    name="flops",
    title="Operations of a forward pass (MFLOP, 2 per multiply-add)",
    source=PAPER,
    columns=(
        *(
            Column(metric=f"mflop_paper_{n}", title=f"paper's convention, T = {n}", style="tenths")
            for n in COUNTED
        ),
        *(
            Column(metric=f"mflop_full_{n}", title=f"full count, T = {n}", style="tenths")
            for n in COUNTED
        ),
    ),
    experiments=(FlopsExperiment(lengths=COUNTED),),
    rows=(
        Row(
            label="Transformer",
            model="transformer",
            fields=LONG,
            published=_mflop((24.1, 54.6, 369.3)),
        ),
        Row(
            label="Triple-Hybrid",
            model="triple-hybrid",
            fields=S8,
            published=_mflop((21.8, 43.5, 174.0)),
        ),
        Row(
            label="Gated Hybrid",
            model="gated-hybrid",
            fields={**S8, "init": "published"},
            published=_mflop((25.8, 52.1, 220.9)),
        ),
    ),
    seeds=(0,),
    notes=(
        "The paper counts dominant terms only, with its kernel-5 convolution at 10·T·d². The full "
        "count is the package's own (palimpsest.models.flops): what the equations of each "
        "recurrence do.",
    ),
)
