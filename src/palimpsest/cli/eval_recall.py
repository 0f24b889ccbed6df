"""``palimpsest eval MODEL recall``: recall and multi-query recall by number of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from palimpsest.cli.model_source import ModelSource, check_output_path, find_model, pick_device
from palimpsest.cli.output import say
from palimpsest.errors import InputError
from palimpsest.evaluation import Precision, evaluate_recall
from palimpsest.evaluation.recall import DEFAULT_SEED
from palimpsest.tasks import Task
from palimpsest.training import load_recipe
from palimpsest.training.recipe_file import parse_assignment
from palimpsest.training.task_data import make_tasks

__all__ = ["RecallArgs", "run"]


OPTIONS = {"data.seq_len": "length"}


@dataclass(frozen=True)
class RecallArgs:
    """Measure a model trained on a recall task (recall or mqar): accuracy by number of pairs, on
    fresh examples.

    Example:

    palimpsest eval runs/recall recall --pairs 2 4 8 --examples 2000
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL recall")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    task: Literal["recall", "mqar"] | None = None
    """Which task. By default that of the run, with its fields; another one has the fields of the
    built-in recipe of its name."""

    pairs: tuple[int, ...] = ()
    """Numbers of pairs, each measured by itself. By default as the run was trained."""

    length: int | None = None
    """Tokens of an example. By default as the run was trained."""

    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Any other field of the task as key=value, such as distractors=4; may be repeated."""

    examples: int = 512
    """Examples for each number of pairs."""

    examples_seed: int = DEFAULT_SEED
    """Seed of the examples; that of the training and the one after it are refused."""

    batch_size: int = 32
    """Examples read at once; changes the result by rounding only."""

    precision: Precision = "fp32"
    """bf16 computes matrix products in bfloat16."""

    window: int | None = None
    """Tokens of context that attention reads; 0 for all. By default the length that the model was
    trained on, which the result says."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""

    out: Path | None = None
    """Also write the result as JSON."""


def run(args: RecallArgs) -> int:
    """Carry out the command; 0 when done."""
    source = find_model(args.model)
    tasks = tasks_of(args, source)
    check_output_path(args.out, "--out")
    model = source.load(pick_device(args.device), args.window)
    result = evaluate_recall(
        model,
        tasks,
        examples=args.examples,
        batch_size=args.batch_size,
        examples_seed=args.examples_seed,
        precision=args.precision,
        source=args.model,
        seed=source.seed,
    )
    if args.out is not None:  # before anything is printed: standard output may be broken
        result.save(args.out)
    console = Console()
    console.print(result.table())
    console.print(result.by_pairs())
    if args.out is not None:
        say(f"written: {args.out}")
    return 0


def tasks_of(args: RecallArgs, source: ModelSource) -> list[Task]:
    """The tasks that the arguments and the run stand for.

    Raises:
        InputError: a model trained on text, or no task named and none known.
        ConfigError: fields that the task has not, or that do not fit together.
    """
    if source.saved_tokenizer is not None:
        raise InputError(
            f"{args.model}: was trained on text ({source.saved_tokenizer.name}), whose ids mean "
            "something else than those of a recall task; palimpsest train --task recall trains one"
        )
    data: dict[str, Any] = {} if source.run is None else source.run["recipe"]["data"]
    trained_on = data.get("task") or None
    task = args.task or trained_on
    if task is None:
        raise InputError(f"{args.model}: its task is not known; name it (--task recall or mqar)")
    changes: dict[str, Any] = {}
    if task == trained_on:
        changes["data.seq_len"] = data["seq_len"]
        changes["data.task_fields"] = dict(data.get("task_fields", {}))
    if args.length is not None:
        changes["data.seq_len"] = args.length
    if args.pairs:
        changes["data.task_fields.pairs"] = list(args.pairs)
    for text in args.set:
        key, value = parse_assignment(text)
        changes[f"data.task_fields.{key}"] = value
    return make_tasks(load_recipe(task, changes))
