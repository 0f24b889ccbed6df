"""A comparison from its settings to its report.

OUT/
    jobs/                one result per run (see reproduce/jobs.py): what makes it resumable
    results.json         everything measured
    table.md, table.csv
    curves-SIZE.png      bits per byte over the tokens read, where matplotlib is installed
    gaps.png             the gap to the baseline by size
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from palimpsest.compare.curves import crossings, gap, mean_curve
from palimpsest.compare.plot import plot_curves, plot_gaps
from palimpsest.compare.report import csv_text, markdown, short
from palimpsest.compare.settings import CompareSettings, ModelChoice
from palimpsest.compare.sizes import fields_at
from palimpsest.errors import PalimpsestError
from palimpsest.files import write_json, write_text
from palimpsest.models.registry import is_causal, resolve
from palimpsest.reproduce.code_version import code_version
from palimpsest.reproduce.data import check_folder, describe_files, require_files
from palimpsest.reproduce.experiments import RecipeExperiment
from palimpsest.reproduce.jobs import Job, slug
from palimpsest.reproduce.runner import run_jobs
from palimpsest.streams import safe_stderr
from palimpsest.text import load_tokenizer

__all__ = ["run_compare"]

SCHEMA = "palimpsest-comparison"
SCHEMA_VERSION = 1

Point = tuple[str, int]  # a model's label and a size


def run_compare(
    settings: CompareSettings,
    out: str | Path,
    *,
    jobs: int = 1,
    threads: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Choose a learning rate for each model and size, then run it with every seed.

    Args:
        settings: what is compared, and how.
        out: the folder of its results; those in it that still hold are used again.
        jobs: runs side by side, each with its share of the threads.
        threads: CPU threads of all together; None takes torch's number,
            which OMP_NUM_THREADS sets.
        console: for progress; standard error by default.

    Returns:
        What ``results.json`` holds.

    Raises:
        PalimpsestError: a missing file, a model that has no such size, or what a run raises. A run
            that diverges is a result, not an error.
    """
    folder = Path(out)
    check_folder(folder)
    paths = require_files(
        {"train": settings.train, "valid": settings.valid}, {}, ("train", "valid")
    )
    if settings.tokenizer != "bytes":
        paths |= require_files({"tokenizer": Path(settings.tokenizer)}, {}, ("tokenizer",))
    data = describe_files(paths, {})
    vocab_size = load_tokenizer(settings.tokenizer).vocab_size
    planned: dict[Point, tuple[str, dict[str, Any], int]] = {
        (model.label, size): fields_at(model, size, settings, vocab_size)
        for size in settings.sizes
        for model in settings.models
    }

    def job(model: ModelChoice, size: int, lr: float, seed: int) -> Job:
        return _job(model, size, lr, seed, planned[model.label, size], settings, paths, data)

    def measure(wanted: list[tuple[Point, float, int, Job]], label: str) -> None:
        results = run_jobs(
            [job for *_, job in wanted],
            folder,
            workers=jobs,
            threads=threads,
            console=console,
            label=label,
        )
        for (point, lr, seed, _), result in zip(wanted, results, strict=True):
            found[point, lr, seed] = result

    found: dict[tuple[Point, float, int], dict[str, Any]] = {}
    pairs = [(model, size) for size in settings.sizes for model in settings.models]
    first, *others = settings.seeds
    measure(
        [
            ((m.label, size), lr, first, job(m, size, lr, first))
            for m, size in pairs
            for lr in settings.lrs
        ],
        "learning rates",
    )
    chosen = {
        (m.label, size): _best_rate(found, (m.label, size), settings, first) for m, size in pairs
    }
    measure(
        [
            ((m.label, size), lr, seed, job(m, size, lr, seed))
            for seed in others
            for m, size in pairs
            if (lr := chosen[m.label, size]) is not None
        ],
        "seeds",
    )
    facts = _gather(settings, planned, chosen, found, data)
    write_json(folder / "results.json", facts)
    write_text(folder / "table.csv", csv_text(facts))
    write_text(folder / "table.md", markdown(facts, _pictures(facts, folder, console)))
    return facts


def _job(
    model: ModelChoice,
    size: int,
    lr: float,
    seed: int,
    planned: tuple[str, dict[str, Any], int],
    settings: CompareSettings,
    paths: Mapping[str, Path],
    data: Mapping[str, Mapping[str, Any]],
) -> Job:
    name, fields, parameters = planned
    experiment = RecipeExperiment(
        recipe=settings.recipe(lr),
        tokenizer="bytes" if settings.tokenizer == "bytes" else "given",
    )
    model_class, _ = resolve(name, {"vocab_size": 259, **fields})
    return Job(
        key=f"{slug(model.label)}_{short(size)}_lr{lr:g}_seed{seed}",
        label=f"{model.label}, {short(size)}, rate {lr:g}, seed {seed}",
        executor=experiment.executor,
        config={
            "model": name,
            "fields": fields,
            "parameters": parameters,
            "experiment": experiment.to_dict(),
            "seed": seed,
        },
        data={key: about["sha256"] for key, about in data.items()},
        code=code_version(experiment.executor.partition(":")[0], model_class.__module__),
        paths={key: str(path.resolve()) for key, path in paths.items()},
        work=experiment.work,
    )


def _best_rate(
    found: Mapping[tuple[Point, float, int], Mapping[str, Any]],
    point: Point,
    settings: CompareSettings,
    seed: int,
) -> float | None:
    """The rate with the lowest bits per byte; None where every run diverged."""
    figures = {
        lr: found[point, lr, seed]["metrics"]["bits_per_byte"]
        for lr in settings.lrs
        if "bits_per_byte" in found[point, lr, seed]["metrics"]
    }
    return min(figures, key=lambda lr: figures[lr]) if figures else None


def _gather(
    settings: CompareSettings,
    planned: Mapping[Point, tuple[str, dict[str, Any], int]],
    chosen: Mapping[Point, float | None],
    found: Mapping[tuple[Point, float, int], Mapping[str, Any]],
    data: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything measured, by size and model."""
    entries: dict[Point, dict[str, Any]] = {}
    for point, (name, fields, parameters) in planned.items():
        lr = chosen[point]
        runs = [] if lr is None else [found[point, lr, seed] for seed in settings.seeds]
        good = [run for run in runs if "bits_per_byte" in run["metrics"]]
        values = [run["metrics"]["bits_per_byte"] for run in good]
        rates = [rate for rate in settings.lrs if (point, rate, settings.seeds[0]) in found]
        grid = {
            f"{rate:g}": found[point, rate, settings.seeds[0]]["metrics"].get("bits_per_byte")
            for rate in rates
        }
        edge = len(settings.lrs) > 1 and lr in (min(settings.lrs), max(settings.lrs))
        entries[point] = {
            "model": point[0],
            "size": point[1],
            "architecture": name,
            "fields": fields,
            "causal": is_causal(name, {"vocab_size": 259, **fields}),
            "parameters": parameters,
            "state_bytes": good[0]["facts"]["state_bytes"] if good else None,
            "lr": lr,
            "lr_at_edge": edge,
            "grid": grid,
            "values": values,
            "seeds": [run["seed"] for run in good],
            "diverged": len(runs) - len(good),
            "mean": statistics.fmean(values) if values else None,
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "tokens_per_s": statistics.median(run["metrics"]["tokens_per_s"] for run in good)
            if good
            else None,
            "training_seconds": statistics.median(run["facts"]["training_seconds"] for run in good)
            if good
            else None,
            "curve": mean_curve([run["facts"]["curve"] for run in good]),
            "curves": [run["facts"]["curve"] for run in good],
        }
    for point, entry in entries.items():
        base = entries[settings.base, point[1]]
        if entry is not base and entry["values"] and base["values"]:
            entry["gap"] = gap(entry["values"], base["values"])
            entry["crossings"] = _crossings(entry, base)
    where = [dict(run["where"]) for run in found.values()]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "settings": settings.to_dict(),
        "baseline": settings.base,
        "tokens": settings.tokens,
        "entries": list(entries.values()),
        "data": {key: dict(about) for key, about in data.items()},
        "dtype": sorted({run["dtype"] for run in found.values() if run["dtype"]}),
        "protocol": next(
            (run["facts"]["protocol"] for run in found.values() if "protocol" in run["facts"]), ""
        ),
        "where": [w for i, w in enumerate(where) if w not in where[:i]],
        "seconds": round(sum(run["seconds"] for run in found.values()), 1),
    }


def _crossings(entry: Mapping[str, Any], base: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Crossings of the mean curves, each with the range over the seeds that cross as often."""
    tokens = [point["tokens"] for point in entry["curve"]]
    of_base = {point["tokens"]: point["mean"] for point in base["curve"]}
    shared = [t for t in tokens if t in of_base]
    own = {point["tokens"]: point["mean"] for point in entry["curve"]}
    found = crossings(shared, [own[t] for t in shared], [of_base[t] for t in shared])
    by_seed = []
    of_seed = dict(zip(base["seeds"], base["curves"], strict=True))
    for seed, mine in zip(entry["seeds"], entry["curves"], strict=True):
        if seed not in of_seed:  # its run of the baseline diverged
            continue
        theirs = of_seed[seed]
        a = {row["tokens"]: row["bits_per_byte"] for row in mine}
        b = {row["tokens"]: row["bits_per_byte"] for row in theirs}
        places = sorted(set(a) & set(b))
        by_seed.append(crossings(places, [a[t] for t in places], [b[t] for t in places]))
    for index, crossing in enumerate(found):
        same = [those[index]["tokens"] for those in by_seed if len(those) == len(found)]
        crossing["seeds"] = len(same)
        crossing["range"] = [min(same), max(same)] if same else None
    return found


def _pictures(facts: Mapping[str, Any], folder: Path, console: Console | None) -> list[str]:
    """Draw what can be drawn; the names of the files."""
    names = []
    try:
        for size in facts["settings"]["sizes"]:
            name = f"curves-{short(size)}.png"
            plot_curves(facts, size, folder / name)
            names.append(name)
        if any("gap" in entry for entry in facts["entries"]):
            plot_gaps(facts, folder / "gaps.png")
            names.append("gaps.png")
    except PalimpsestError as failure:  # no matplotlib
        (console or Console(file=safe_stderr())).print(f"no plot: {failure}", markup=False)
    return names
