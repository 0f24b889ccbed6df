"""The WikiText-2 byte rows of arXiv 2606.05175, beside the published figures.

    python benchmarks/wikitext_rows.py --train wiki.train.raw --valid wiki.valid.raw \\
        --out docs/results/wikitext-rows.json
    python benchmarks/wikitext_rows.py … --rows gated-hybrid --steps 2000 --seeds 7

Protocol: UTF-8 bytes; the split's non-empty lines, stripped, joined by line feeds, between BOS and
EOS; uniformly random windows of 128, batch 16, AdamW at 3e-4, weight decay 0.05 on everything,
clipping at 1, dropout 0.1, no schedule. Validation on the first windows of 128 in order; bits per
byte is the mean cross-entropy divided by ln 2. Seeds: ``torch.manual_seed`` for weights and
dropout, a generator of the same seed for the windows. A row that is in the JSON file already is
not trained again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import palimpsest
from common import header
from palimpsest.files import write_json
from palimpsest.models import LanguageModel
from palimpsest.models.registry import is_causal
from palimpsest.text import ByteTokenizer, Corpus, RandomWindowSampler, load_corpus
from palimpsest.text.batches import consecutive_windows

LENGTH, BATCH, LR, WEIGHT_DECAY = 128, 16, 3e-4, 0.05
SEEDS = (7, 19, 29)
WINDOWS = (1024, 2048)  # of the specification's comparison of convolutions, and of the paper


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model of the tables.

    Attributes:
        name: what ``--rows`` and the table call it.
        model, fields: what is built.
        parameters: the published count, which must be met exactly; None where it is ours.
        paper: published bits per byte, on the whole training split.
        measured: of the published program on a tenth of the training split, first 1,024 windows.
    """

    name: str
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    paper: float | None = None
    measured: float | None = None

    @property
    def causal(self) -> bool:
        return is_causal(self.model, {**SIZES, **self.fields})


SIZES: dict[str, Any] = {"vocab_size": 259, "d_model": 64, "n_layers": 3, "n_heads": 4}
SAME, PUBLISHED = {"conv_padding": "same"}, {"init": "published"}
S8, S16 = {"state_dim": 8}, {"state_dim": 16}

ROWS = [
    Row(name="transformer", model="transformer", parameters=174_848, paper=5.124, measured=5.152),
    Row(
        name="triple-latent S16",
        model="triple-latent",
        fields=S16,
        parameters=187_928,
        paper=5.022,
        measured=5.040,
    ),
    Row(
        name="triple-slot S16",
        model="triple-slot",
        fields=S16,
        parameters=188_024,
        paper=5.041,
        measured=5.061,
    ),
    Row(
        name="triple-hybrid S16",
        model="triple-hybrid",
        fields=S16,
        parameters=208_472,
        measured=5.034,
    ),
    Row(
        name="triple-hybrid S16, same",
        model="triple-hybrid",
        fields={**S16, **SAME},
        parameters=208_472,
        paper=4.766,
        measured=4.788,
    ),
    Row(name="triple-hybrid S8", model="triple-hybrid", fields=S8, parameters=177_752),
    Row(
        name="triple-hybrid S8, same",
        model="triple-hybrid",
        fields={**S8, **SAME},
        parameters=177_752,
        paper=4.806,
    ),
    Row(
        name="gated-hybrid S8, published start",
        model="gated-hybrid",
        fields={**S8, **PUBLISHED},
        parameters=214_939,
        measured=4.272,
    ),
    Row(
        name="gated-hybrid S8, published start, same",
        model="gated-hybrid",
        fields={**S8, **PUBLISHED, **SAME},
        parameters=214_939,
        paper=3.595,
        measured=3.611,
    ),
    Row(name="gated-hybrid S8, stable start", model="gated-hybrid", fields=S8),
    Row(
        name="triple-latent d60 S16",
        model="triple-latent",
        fields={**S16, "d_model": 60},
        parameters=170_424,
        paper=5.114,
    ),
    Row(
        name="triple-slot d60 S16",
        model="triple-slot",
        fields={**S16, "d_model": 60},
        parameters=170_520,
        paper=5.126,
    ),
    Row(
        name="triple-hybrid d56 S16",
        model="triple-hybrid",
        fields={**S16, "d_model": 56},
        parameters=169_424,
    ),
    Row(
        name="triple-hybrid d56 S16, same",
        model="triple-hybrid",
        fields={**S16, **SAME, "d_model": 56},
        parameters=169_424,
        paper=5.067,
    ),
]


def build(row: Row) -> LanguageModel:
    """The row's model, whose size must be the published one."""
    fields = {**SIZES, **row.fields}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")  # every table says so
        model = palimpsest.build(row.model, **fields, max_seq_len=LENGTH, dropout=0.1)
    if row.parameters not in (None, model.num_parameters()):
        raise AssertionError(f"{row.name}: {model.num_parameters()} parameters, {row.parameters}")
    return model


def optimizer_of(model: LanguageModel) -> torch.optim.AdamW:
    """Weight decay on everything, as published; a learned temperature keeps its own rate."""
    groups = model.param_groups(LR, WEIGHT_DECAY)
    for group in groups:
        if group["lr"] == LR:
            group["weight_decay"] = WEIGHT_DECAY
    return torch.optim.AdamW(groups, lr=LR, fused=True)


def train(row: Row, corpus: Corpus, seed: int, steps: int) -> LanguageModel:
    """The row's model after some steps."""
    torch.manual_seed(seed)
    model = build(row)
    optimizer = optimizer_of(model)
    sampler = RandomWindowSampler(corpus, LENGTH, BATCH, seed=seed)
    for step in range(steps):
        inputs, targets = sampler.batch_at(step)
        model(inputs, targets=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def bits_per_byte(model: LanguageModel, corpus: Corpus, whole: bool) -> dict[str, float]:
    """Over the first windows of the split, and over all of them where asked."""
    model.eval()
    windows: list[float] = []
    available = (corpus.num_tokens - 1) // LENGTH
    limit = None if whole else min(max(WINDOWS), available)
    for inputs, targets in consecutive_windows(corpus, LENGTH, BATCH, limit=limit):
        losses_BT = model(inputs, targets=targets).token_losses
        windows += losses_BT.double().mean(1).tolist()
    cuts = {str(n): n for n in WINDOWS if n <= len(windows)}
    if whole or not cuts:
        cuts["all"] = len(windows)
    return {name: statistics.fmean(windows[:n]) / math.log(2) for name, n in cuts.items()}


def describe(path: Path, corpus: Corpus) -> dict[str, Any]:
    """What was read."""
    return {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "file_bytes": path.stat().st_size,
        "tokens": corpus.num_tokens,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All rows and seeds that the file does not have yet, each written as soon as it is done."""
    tokenizer = ByteTokenizer()
    training = load_corpus(args.train, tokenizer, prepare="wikitext")
    validation = load_corpus(args.valid, tokenizer, prepare="wikitext")
    protocol = {
        "train": describe(args.train, training),
        "valid": describe(args.valid, validation),
        "length": LENGTH,
        "batch": BATCH,
        "lr": LR,
        "weight_decay": WEIGHT_DECAY,
        "clip_norm": 1.0,
        "dropout": 0.1,
        "dtype": "float32",
    }
    result: dict[str, Any] = {**header(), "protocol": protocol, "runs": []}
    if args.out and args.out.exists():
        result = json.loads(args.out.read_text())
        if result["protocol"] != protocol:
            raise SystemExit(f"{args.out}: has another protocol or text; choose another file")
    for seed in args.seeds:
        for row in ROWS:
            key = {"row": row.name, "steps": args.steps, "seed": seed}
            if args.rows and not any(part in row.name for part in args.rows):
                continue
            if any(key.items() <= run.items() for run in result["runs"]):
                continue
            began = time.perf_counter()
            model = train(row, training, seed, args.steps)
            trained = time.perf_counter()
            run = {
                **key,
                "causal": row.causal,
                "model": row.model,
                "config": model.config.to_dict(),
                "parameters": model.num_parameters(),
                "bits_per_byte": bits_per_byte(model, validation, args.whole),
                "train_seconds": round(trained - began, 1),
                "commit": header()["commit"],
            }
            result["runs"].append(run)
            if args.out:
                write_json(args.out, result)
            shown = ", ".join(f"{n}: {v:.3f}" for n, v in run["bits_per_byte"].items())
            print(
                f"{row.name}, seed {seed}, {args.steps} steps: {shown} "
                f"({trained - began:.0f} s + {time.perf_counter() - trained:.0f} s)",
                flush=True,
            )
    return result


def show(result: dict[str, Any], markdown: bool) -> None:
    """Mean ± standard deviation over seeds, the published figure, and what is not causal."""
    protocol = result["protocol"]
    table = Table(
        title=f"validation bits per byte, trained on {protocol['train']['file']} "
        f"({protocol['train']['file_bytes']:,} bytes), commit {result['commit']}",
        box=box.MARKDOWN if markdown else box.HEAVY_HEAD,
    )
    for column in ("row", "parameters", "steps", "seeds", "1,024 windows", "2,048 windows", "all",
                   "paper", "published program", "note"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("row", "note") else "right")
    steps = sorted({run["steps"] for run in result["runs"]})
    for count in steps:
        for row in ROWS:
            runs = [r for r in result["runs"] if r["row"] == row.name and r["steps"] == count]
            if not runs:
                continue
            cells = []
            for name in ("1024", "2048", "all"):
                values = [r["bits_per_byte"][name] for r in runs if name in r["bits_per_byte"]]
                spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
                cells.append(f"{statistics.fmean(values):.3f}{spread}" if values else "")
            known = [row.paper, row.measured] if count == 80 else [None, None]
            published = ["" if figure is None else f"{figure:.3f}" for figure in known]
            seeds = ", ".join(str(r["seed"]) for r in runs)
            note = "" if row.causal else "not causal"
            table.add_row(
                row.name,
                f"{runs[0]['parameters']:,}",
                str(count),
                seeds,
                *cells,
                *published,
                note,
            )
    Console(width=180).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="WikiText-2 raw, training")
    parser.add_argument("--valid", type=Path, required=True, help="WikiText-2 raw, validation")
    parser.add_argument("--rows", nargs="*", help="only rows whose names contain one of these")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--whole", action="store_true", help="also validate on the whole split")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="JSON; rows in it are not trained again")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    show(measure(args), args.markdown)


if __name__ == "__main__":
    main()
