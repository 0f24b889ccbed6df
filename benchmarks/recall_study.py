"""Is recall found by every seed? Training runs on the recall tasks, their accuracy by step.

    python benchmarks/recall_study.py seeds --out docs/results/recall-seeds.json
    python benchmarks/recall_study.py seeds --plot docs/figures/recall-seeds.png \\
        --out docs/results/recall-seeds.json
    python benchmarks/recall_study.py ablation harder transfer mqar --out docs/results/recall.json

A run that is in the JSON file already is not done again, so an interrupted study goes on where it
stopped, and ``--plot`` alone costs nothing. Protocol of the recall task: arXiv 2606.05175.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import palimpsest
from common import header
from palimpsest.files import atomic_path, write_json
from palimpsest.models import LanguageModel
from palimpsest.tasks import MQARTask, RecallTask, Task
from palimpsest.training.optimizer import make_optimizer
from palimpsest.training.recipe import OptimizerRecipe

SIZES = {"d_model": 64, "n_layers": 3, "n_heads": 4}
EVALUATION_BATCHES = 64  # published
CURVE_BATCHES = 4  # between the full evaluations: enough to draw a curve
COLOURS = {"stable": "#0072B2", "published": "#D55E00"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training setting; every seed of it is a run.

    Attributes:
        study: which question it belongs to.
        name: how tables call it.
        model, fields: what is built, besides the sizes; ``vocab_size`` is the task's.
        task: what is trained on.
        tests: what is tested on at the end besides it, by name.
        change: what a configuration cannot say, done to the fresh model.
    """

    study: str
    name: str
    model: str = "gated-hybrid"
    fields: dict[str, Any] = field(default_factory=dict)
    task: Task = field(default_factory=RecallTask)
    tests: dict[str, Task] = field(default_factory=dict)
    change: Callable[[LanguageModel], None] | None = None
    batch: int = 32
    steps: int = 300
    lr: float = 3e-4
    weight_decay: float = 0.01
    seeds: int = 10
    evaluate_every: int = 100


def gated(study: str, name: str, **more: Any) -> Case:
    """A gated hybrid of the published size; fields of the model are given in ``fields``."""
    task = more.get("task", RecallTask())
    fields = {"state_dim": 8, "max_seq_len": task.length, **more.pop("fields", {})}
    return Case(study=study, name=name, fields=fields, **more)


def random_values(model: LanguageModel) -> None:
    """The published start of the value matrix in the last layer."""
    torch.nn.init.normal_(model.layers[-1].retrieval.value.weight, std=0.02)


def independent_queries(model: LanguageModel) -> None:
    """Queries that start as another orthogonal matrix than the keys."""
    torch.nn.init.orthogonal_(model.layers[-1].retrieval.query.weight)


def published_temperature(model: LanguageModel) -> None:
    """The temperature starts at the published 8 / √A = 1."""
    torch.nn.init.zeros_(model.layers[-1].retrieval.log_temperature)


def cases() -> list[Case]:
    """Every setting of every study."""
    wide = RecallTask(length=1024, pairs=32, keys=64, values=64)
    distracted = RecallTask(distractors=32)
    long = {f"{n} tokens": RecallTask(length=n) for n in (256, 1024, 4096)}
    published = {"init": "published"}
    unbounded = {"positions": "none"}
    fixed, learned = {"learned_temperature": False}, {**published, "learned_temperature": True}
    found = [
        gated("seeds", "stable"),
        gated("seeds", "published", fields=published),
        gated("ablation", "stable, random values", change=random_values, seeds=3),
        gated("ablation", "stable, independent queries", change=independent_queries, seeds=2),
        gated("ablation", "published, rate 3e-3", fields=published, lr=3e-3, seeds=2),
        gated("ablation", "published, learned temperature", fields=learned, seeds=2),
        gated("ablation", "stable, temperature starts at 1", change=published_temperature, seeds=2),
        gated("ablation", "stable, temperature fixed at 8", fields=fixed, seeds=2),
        gated("ablation", "stable, no dropout", fields={"dropout": 0.0}, seeds=2),
        gated("harder", "stable, 32 distractor keys", task=distracted, seeds=3, steps=100),
        gated(
            "harder", "published, 32 distractor keys", task=distracted, fields=published, seeds=2
        ),
        gated("harder", "stable, 1,024 tokens, 32 pairs", task=wide, batch=8, seeds=2, steps=100),
        gated("transfer", "stable, no positions", fields=unbounded, tests=long, seeds=3, steps=100),
    ]
    return found + list(mqar_cases())


def mqar_cases() -> Iterator[Case]:
    """Multi-query recall, where the question is the position itself: ``query="parallel"`` asks."""
    for length, pairs in ((64, 4), (128, 8)):
        task = MQARTask(length=length, pairs=pairs, vocab_size=256)
        shared: dict[str, Any] = {
            "study": "mqar", "task": task, "lr": 1e-3, "steps": 400, "seeds": 2,
        }  # fmt: skip
        size = f"MQAR {length}/{pairs}"
        bound = {"max_seq_len": length}
        for query in ("previous", "parallel"):
            fields = {"state_dim": 8, "query": query, **bound}
            yield Case(name=f"{size}, stable, query {query}", fields=fields, **shared)
        yield Case(name=f"{size}, transformer", model="transformer", fields=bound, **shared)


def describe(case: Case) -> dict[str, Any]:
    """The setting as JSON."""
    return {
        "study": case.study,
        "name": case.name,
        "model": case.model,
        "fields": {**SIZES, **case.fields},
        "change": case.change.__name__ if case.change else None,
        "task": {"name": case.task.name, **dataclasses.asdict(case.task)},
        "steps": case.steps,
        "batch": case.batch,
        "lr": case.lr,
        "weight_decay": case.weight_decay,
        "clip_norm": 1.0,
    }


@torch.no_grad()
def accuracy(model: LanguageModel, task: Task, seed: int, batches: int, batch: int) -> float:
    """The share of right answers, in evaluation mode, on examples of a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    scores = []
    for _ in range(batches):
        examples = task.batch(batch, generator)
        scores.append(task.accuracy(model(examples.inputs).logits, examples.labels))
    model.train()
    return sum(scores[1:], scores[0]).accuracy


def temperatures(model: LanguageModel) -> list[float]:
    """The learned temperatures, where there are any."""
    named = model.named_parameters()
    return [float(p.detach().exp()) for n, p in named if n.endswith("log_temperature")]


def train(case: Case, seed: int) -> dict[str, Any]:
    """One run: weights and dropout from ``torch.manual_seed(seed)``, examples from a generator of
    the same seed, evaluation on one seeded seed + 1."""
    torch.manual_seed(seed)
    task = case.task
    model = palimpsest.build(case.model, vocab_size=task.vocab_size, **SIZES, **case.fields)
    if case.change is not None:
        case.change(model)
    recipe = OptimizerRecipe(lr=case.lr, weight_decay=case.weight_decay, betas=(0.9, 0.999))
    optimizer = make_optimizer(model, recipe)
    generator = torch.Generator().manual_seed(seed)
    losses, full = [], {0: accuracy(model, task, seed + 1, EVALUATION_BATCHES, case.batch)}
    curve = [[0, full[0]]]
    began = time.perf_counter()
    model.train()
    for step in range(1, case.steps + 1):
        examples = task.batch(case.batch, generator)
        loss = model(examples.inputs, targets=examples.labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(float(loss.detach()), 4))
        if step % case.evaluate_every == 0 or step == case.steps:
            full[step] = accuracy(model, task, seed + 1, EVALUATION_BATCHES, case.batch)
            curve.append([step, full[step]])
        elif step in (5, 10, 15) or step % 20 == 0:
            curve.append([step, accuracy(model, task, seed + 1, CURVE_BATCHES, case.batch)])
    tests = {
        name: accuracy(model, test, seed + 1, max(1, EVALUATION_BATCHES * 128 // test.length), 32)
        for name, test in case.tests.items()
    }
    return {
        "seed": seed,
        "parameters": model.num_parameters(),
        "accuracy": full,
        "tests": tests,
        "curve": curve,
        "losses": losses[:: max(1, case.steps // 30)],
        "temperatures": temperatures(model),
        "seconds": round(time.perf_counter() - began, 1),
    }


def study(names: list[str], seeds: int | None, steps: int | None, out: Path) -> dict[str, Any]:
    """All runs of some studies, each written as soon as it is done."""
    # The loss sits on the last position alone: gradients that have decayed over a hundred tokens
    # are subnormal numbers, with which a CPU multiplies many times slower.
    torch.set_flush_denormal(True)
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"cases": []}
    chosen = [case for case in cases() if case.study in names]
    if steps is not None:
        chosen = [dataclasses.replace(case, steps=steps) for case in chosen]
    for seed in range(1, 1 + (seeds or max(case.seeds for case in chosen))):
        for case in chosen:
            entry = next((c for c in result["cases"] if c["name"] == case.name), None)
            if entry is None:
                entry = {**describe(case), "dtype": "float32", "where": header(), "runs": []}
                result["cases"].append(entry)
            done = any(run["seed"] == seed for run in entry["runs"])
            if done or seed > (seeds or case.seeds):
                continue
            run = train(case, seed)
            entry["runs"].append(run)
            write_json(out, result)
            shown = ", ".join(f"{s}: {a:.1%}" for s, a in run["accuracy"].items())
            tests = "".join(f"; {n}: {a:.1%}" for n, a in run["tests"].items())
            print(f"{case.name}, seed {seed}: {shown}{tests} ({run['seconds']} s)", flush=True)
    return result


def show(result: dict[str, Any], names: list[str], markdown: bool) -> None:
    """Mean ± standard deviation over seeds, and the worst seed."""
    table = Table(box=box.MARKDOWN if markdown else box.HEAVY_HEAD)
    for column in ("setting", "task", "parameters", "seeds", "step", "accuracy", "worst seed"):
        table.add_column(column, justify="left" if column in ("setting", "task") else "right")
    for case in result["cases"]:
        runs = case["runs"]
        if not runs or case["study"] not in names:
            continue
        measured: dict[str, list[float]] = {}
        for run in runs:
            for name, value in [*run["accuracy"].items(), *run["tests"].items()]:
                measured.setdefault(str(name), []).append(value)
        for name, values in measured.items():  # steps, then what was tested at the end
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            table.add_row(
                case["name"],
                case["task"]["name"],
                f"{runs[0]['parameters']:,}",
                str(len(values)),
                name,
                f"{statistics.mean(values):.2%} ± {spread:.2%}",
                f"{min(values):.2%}",
            )
    Console(width=160).print(table)


def plot(result: dict[str, Any], path: Path) -> None:
    """Accuracy by step, every seed a line, of the cases named stable and published."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = [case for case in result["cases"] if case["name"] in COLOURS]
    for case in shown:
        style = "-" if case["name"] == "stable" else "--"
        for index, run in enumerate(case["runs"]):
            steps, values = zip(*run["curve"], strict=True)
            label = f"{case['name']} initialisation, {len(case['runs'])} seeds"
            axes.plot(
                steps,
                [100 * v for v in values],
                style,
                color=COLOURS[case["name"]],
                alpha=0.75,
                linewidth=1.3,
                label=label if index == 0 else None,
            )
    for level, text, style in ((25.0, "a value that was shown", ":"), (12.5, "any value", "-.")):
        label = f"chance: {text}, {level:g} %"
        axes.axhline(level, color="#555555", linewidth=1.0, linestyle=style, label=label)
    axes.set(
        xlabel="step", ylabel="recall accuracy (%)", ylim=(0, 102), xlim=(0, shown[0]["steps"])
    )
    parameters = shown[0]["runs"][0]["parameters"]
    axes.set_title(
        f"gated hybrid, {parameters:,} parameters, {shown[0]['task']['name']}, "
        f"batch {shown[0]['batch']}, rate {shown[0]['lr']:g}",
        fontsize=10,
    )
    axes.legend(loc="center right", fontsize=9)
    axes.grid(alpha=0.3)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    print(f"written: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="+", choices=sorted({c.study for c in cases()}))
    parser.add_argument("--seeds", type=int, help="seeds 1 … N of each setting")
    parser.add_argument("--steps", type=int, help="of every run; 0 only evaluates the start")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, required=True, help="JSON; runs in it are not repeated")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--plot", type=Path, help="also draw the curves of the study 'seeds'")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = study(args.studies, args.seeds, args.steps, args.out)
    show(result, args.studies, args.markdown)
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
