"""What holds the pairs of a recall task? Interventions on models that solve one, by accuracy.

    python benchmarks/state_recall.py run
    python benchmarks/state_recall.py show --markdown

Interventions in the middle act right after the pairs have been shown, so that what answers the
questions has to come from there. A run that is in the JSON file already is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import palimpsest
from common import header
from palimpsest.analysis.causal import measure_interventions
from palimpsest.analysis.effects import task_probe
from palimpsest.analysis.parts import model_parts
from palimpsest.files import write_json
from palimpsest.tasks import MQARTask, RecallTask, Task
from palimpsest.training.optimizer import make_optimizer
from palimpsest.training.recipe import OptimizerRecipe

OUT = Path("docs/results/state-recall.json")
MQAR = MQARTask(length=48, pairs=4, vocab_size=64)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the task that it is trained on; ``shown`` tokens hold the pairs."""

    name: str
    fields: dict[str, Any]
    task: Task
    shown: int
    steps: int
    lr: float
    batch: int = 64


CASES = (
    Case(
        name="gated-hybrid",
        fields={"d_model": 64, "n_layers": 3, "n_heads": 4, "state_dim": 8, "max_seq_len": 64},
        task=RecallTask(length=64),
        shown=13,
        steps=60,
        lr=3e-4,
        batch=32,
    ),
    Case(
        name="gdn",
        fields={"d_model": 64, "n_layers": 1, "n_heads": 2, "head_dim": 32, "d_ffn": 128},
        task=MQAR,
        shown=8,
        steps=250,
        lr=3e-3,
    ),
    Case(
        name="gpnm",
        fields={
            "d_state": 64, "d_emb": 32, "d_ffn": 128, "n_heads": 4, "d_key": 16, "d_val": 16,
        },
        task=MQAR,
        shown=8,
        steps=700,
        lr=3e-3,
    ),
)  # fmt: skip


def train(case: Case, seed: int, steps: int, examples: int, draws: int) -> dict[str, Any]:
    """One run; weights from ``torch.manual_seed(seed)``, examples from a generator of the seed."""
    began = time.perf_counter()
    torch.manual_seed(seed)
    model = palimpsest.build(case.name, vocab_size=case.task.vocab_size, **case.fields)
    optimizer = make_optimizer(model, OptimizerRecipe(lr=case.lr, weight_decay=0.01))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        batch = case.task.batch(case.batch, generator)
        model(batch.inputs, targets=batch.labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    probe = task_probe(case.task, examples, middle=case.shown)
    heads = model_parts(model).heads
    found = measure_interventions(
        model,
        probe.inputs,
        probes=[probe],
        pools={"whole": heads},
        heads=heads if len(heads) <= 4 else heads[:1],
        draws=draws,
        batch_size=128,
    )
    return {
        "model": case.name,
        "seed": seed,
        "task": case.task.name,
        "chance": case.task.chance,
        "steps": steps,
        "parameters": model.num_parameters(),
        "accuracy": found.bases[0],
        "interventions": found.to_dict(),
        "seconds": round(time.perf_counter() - began, 1),
    }


def run(seeds: int, out: Path, quick: bool) -> dict[str, Any]:
    """All runs that are not done yet, each written as soon as it is."""
    torch.set_flush_denormal(True)
    result: dict[str, Any] = {"where": header(), "quick": quick, "runs": []}
    if out.exists():
        result = json.loads(out.read_text())
        if result["quick"] != quick:
            made = "without" if quick else "with"
            raise SystemExit(f"{out}: was made {made} --quick; choose another --out")
    for seed in range(1, seeds + 1):
        for case in CASES:
            if any(r["model"] == case.name and r["seed"] == seed for r in result["runs"]):
                continue
            steps, examples, draws = (2, 8, 1) if quick else (case.steps, 256, 4)
            done = train(case, seed, steps, examples, draws)
            result["runs"].append(done)
            write_json(out, result)
            print(
                f"{case.name}, {done['task']}, seed {seed}: accuracy {done['accuracy']:.3f} "
                f"({done['seconds']} s)",
                flush=True,
            )
    return result


def show(result: dict[str, Any], markdown: bool = False) -> None:
    """One line for each intervention, the mean over seeds."""
    table = Table(box=box.MARKDOWN if markdown else box.HEAVY_HEAD)
    for column in ("model", "intervention", "change of accuracy", "controls", "seeds"):
        table.add_column(column, justify="left" if column in ("model", "intervention") else "right")
    for name in dict.fromkeys(r["model"] for r in result["runs"]):
        runs = [r for r in result["runs"] if r["model"] == name]
        base = statistics.mean(r["accuracy"] for r in runs)
        table.add_row(name, f"none: accuracy, {runs[0]['task']}", f"{base:.3f}", "", str(len(runs)))
        effects = [e for r in runs for e in r["interventions"]["effects"]]
        for title in dict.fromkeys(e["name"] for e in effects):
            same = [e for e in effects if e["name"] == title]
            values = [e["changes"][0]["value"] for e in same]
            controls = [v for e in same if e["controls"] for v in e["controls"][0]["values"]]
            table.add_row(
                name,
                title,
                f"{statistics.mean(values):+.3f}",
                f"{min(controls):+.3f} … {max(controls):+.3f}" if controls else "–",
                str(len(same)),
            )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 … N")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT, help="runs in it are not repeated")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if args.what == "run":
        torch.set_num_threads(args.threads)
        run(args.seeds, args.out, args.quick)
    if not args.out.exists():
        parser.error(f"--out {args.out}: is not there; do a run first")
    show(json.loads(args.out.read_text()), args.markdown)


if __name__ == "__main__":
    main()
