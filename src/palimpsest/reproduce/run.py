"""A table from its name to its report.

OUT/
    jobs/          one result per row, experiment and seed (see jobs.py): what makes it resumable
    results.json   everything that the table shows
    table.md, table.csv
    table.png      where matplotlib is installed
    recipes/       full scale only: a recipe of each row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from palimpsest.errors import ConfigError, InputError, PalimpsestError
from palimpsest.files import write_json, write_text
from palimpsest.models import list_models, list_presets
from palimpsest.models.registry import model_class as registered_class
from palimpsest.models.registry import resolve
from palimpsest.reproduce.code_version import code_version
from palimpsest.reproduce.data import check_folder, describe_files, require_files
from palimpsest.reproduce.experiments import Experiment, RecipeExperiment
from palimpsest.reproduce.jobs import Job, slug
from palimpsest.reproduce.measure_recipe import recipe_of
from palimpsest.reproduce.plot import plot_table
from palimpsest.reproduce.report import assemble, csv_text, markdown
from palimpsest.reproduce.runner import run_jobs
from palimpsest.reproduce.table import Row, Table
from palimpsest.reproduce.tables import Scale, get_table
from palimpsest.streams import safe_stderr
from palimpsest.text.batches import SEED_LIMIT
from palimpsest.training.recipe_file import dump_recipe

__all__ = ["jobs_of", "run_table", "write_recipes"]


def run_table(
    name: str,
    out: str | Path,
    *,
    train: str | Path | None = None,
    valid: str | Path | None = None,
    tokenizer: str | Path | None = None,
    lambada: str | Path | None = None,
    scale: Scale = "small",
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    jobs: int = 1,
    threads: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure a table of a paper, or what is missing of it.

    Args:
        name: one of :func:`palimpsest.reproduce.list_tables`.
        out: the folder of its results; those in it that still hold are used again.
        train: training text.
        valid: validation text.
        tokenizer: a tokenizer's file or folder, for tables on tokens.
        lambada: LAMBADA's test file, for the full scale of ``grounded``.
        scale: "full" is the published size of ``grounded``.
        quick: a few steps and a tiny evaluation, labelled as such everywhere.
        seeds: in place of the table's.
        rows: only rows whose labels contain one of these.
        jobs: rows measured side by side, each with its share of the threads.
        threads: CPU threads of all together; None takes torch's number,
            which OMP_NUM_THREADS sets.
        console: for progress; standard error by default.

    Returns:
        What ``results.json`` holds.

    Raises:
        PalimpsestError: no such table or row, seeds out of range or given twice, a file that is
            missing (with where to get it), a validation text that is the training text, or what
            a row itself raises.
    """
    table = get_table(name, scale)
    table = table.as_quick() if quick else table
    if seeds:
        table = replace(table, seeds=tuple(seeds))
    _check_seeds(table.seeds)
    table = replace(table, rows=_chosen(table, rows))
    check_folder(Path(out))
    given = {"train": train, "valid": valid, "tokenizer": tokenizer, "lambada": lambada}
    paths = require_files(
        {key: None if path is None else Path(path) for key, path in given.items()},
        table.data,
        _needed(table),
    )
    read = {*_needed(table), *_optional(table)}
    paths = {key: path for key, path in paths.items() if key in read}
    data = describe_files(paths, table.data)
    folder = Path(out)
    listed = jobs_of(table, paths, data)
    results = run_jobs(
        [job for _, job in listed],
        folder,
        workers=jobs,
        threads=threads,
        console=console,
        label=f"{name}{', quick' if quick else ''}",
    )
    measured = [(row, result) for (row, _), result in zip(listed, results, strict=True)]
    reasons = {row.label: unavailable(row) for row in table.rows}
    facts = assemble(table, measured, reasons, data, scale)
    write_json(folder / "results.json", facts)
    write_text(folder / "table.csv", csv_text(facts))
    picture: str | None = "table.png"
    try:
        plot_table(facts, folder / "table.png")
    except PalimpsestError as failure:  # no matplotlib
        (console or Console(file=safe_stderr())).print(f"no plot: {failure}", markup=False)
        picture = None
    write_text(folder / "table.md", markdown(facts, picture))
    return facts


def jobs_of(
    table: Table, paths: dict[str, Path], data: dict[str, dict[str, Any]]
) -> list[tuple[Row, Job]]:
    """Every job of a table, seed by seed, so that an interrupted table has whole seeds."""
    listed: list[tuple[Row, Job]] = []
    for index, seed in enumerate(table.seeds):
        for row in table.rows:
            if unavailable(row):
                continue
            for experiment in table.experiments_of(row):
                if experiment.chance or index == 0:
                    job = _job(row, experiment, seed, paths, data)
                    # a quick look never takes the place of what was measured in full
                    job = replace(job, key=f"{job.key}_quick") if table.quick else job
                    listed.append((row, job))
    return listed


def _job(
    row: Row,
    experiment: Experiment,
    seed: int,
    paths: dict[str, Path],
    data: dict[str, dict[str, Any]],
) -> Job:
    model_class, _ = resolve(row.model, {"vocab_size": 259, **row.fields})
    beside = [registered_class(name).__module__ for name in experiment.models]
    read = [name for name in (*experiment.needs, *experiment.optional) if name in paths]
    module = experiment.executor.partition(":")[0]
    return Job(
        key=f"{slug(row.label)}_{experiment.kind}_seed{seed}",
        label=f"{row.label}, {experiment.kind}, seed {seed}",
        executor=experiment.executor,
        config={
            "model": row.model,
            "fields": dict(row.fields),
            "parameters": row.parameters,
            "experiment": experiment.to_dict(),
            "seed": seed,
        },
        data={name: data[name]["sha256"] for name in read},
        code=code_version(module, model_class.__module__, *beside),
        paths={name: str(paths[name].resolve()) for name in read},
        work=experiment.work,
        exclusive=experiment.exclusive,
    )


def unavailable(row: Row) -> str:
    """Why a row cannot be measured by this version; "" where it can."""
    if row.model not in {*list_models(), *list_presets()}:
        return f"not available: this version has no model {row.model!r}"
    return ""


def _check_seeds(seeds: Sequence[int]) -> None:
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={list(seeds)}: one of them is given twice; give each once")
    for seed in seeds:
        if not 0 <= seed < SEED_LIMIT - 1:  # recall is measured with the seed after it
            raise ConfigError(f"seeds={list(seeds)}: {seed} is out of range; use 0 to 2^63 - 2")


def _needed(table: Table) -> tuple[str, ...]:
    names = [name for row in table.rows for e in table.experiments_of(row) for name in e.needs]
    return tuple(dict.fromkeys(names))


def _optional(table: Table) -> set[str]:
    return {name for row in table.rows for e in table.experiments_of(row) for name in e.optional}


def _chosen(table: Table, wanted: Sequence[str] | None) -> tuple[Row, ...]:
    if not wanted:
        return table.rows
    for text in wanted:
        if not any(text.lower() in row.label.lower() for row in table.rows):
            labels = "; ".join(row.label for row in table.rows)
            raise ConfigError(
                f"--rows {text!r}: no row of {table.name} contains it; rows: {labels}"
            )
    return tuple(
        row for row in table.rows if any(text.lower() in row.label.lower() for text in wanted)
    )


def write_recipes(table: Table, folder: Path, *, rows: Sequence[str] | None = None) -> list[Path]:
    """A recipe of each row that has one and is available, to be launched anywhere.

    Args:
        table: one whose experiments are recipes.
        folder: where the files go.
        rows: only rows whose labels contain one of these.

    Raises:
        InputError: the table has no recipes.
        ConfigError: no row contains what is asked for.
    """
    written = []
    for row in _chosen(table, rows):
        for experiment in table.experiments_of(row):
            if isinstance(experiment, RecipeExperiment) and not unavailable(row):
                config = {"model": row.model, "fields": dict(row.fields), "seed": table.seeds[0]}
                recipe = recipe_of(experiment, config, {})
                path = folder / f"{slug(row.label)}.toml"
                head = f"# {row.label}: {table.title}, {table.source}\n\n"
                write_text(path, head + dump_recipe(recipe))
                written.append(path)
    if not written:
        raise InputError(f"table {table.name!r} has no recipes to write")
    return written
