"""``palimpsest train``: a recipe, a text, a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from palimpsest.cli.model_source import best_validation
from palimpsest.cli.output import say
from palimpsest.errors import ConfigError
from palimpsest.training import Recipe, RunResult, list_recipes, load_recipe, resume, train
from palimpsest.training.readability import readability_note
from palimpsest.training.recipe_file import parse_assignment
from palimpsest.training.run_folder import read_meta

__all__ = ["TrainArgs", "run"]

DEFAULT_RECIPE = "gpnm-1m"
PlainInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
PlainFloat = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
PlainPath = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
PlainPaths = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="PATH …", help_behavior_hint="")]
PlainFolder = Annotated[str | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
PlainText = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]

EXIT_SIGNAL = 128  # a shell's convention: 130 after Ctrl-C, 143 after SIGTERM


@dataclass(frozen=True)
class TrainArgs:
    """Train a model on text, or on a recall task.

    Examples:

    palimpsest train gpnm-1m --data book.txt --out runs/book

    palimpsest train --task recall --out runs/recall

    palimpsest train my-recipe.toml --set optimizer.warmup_steps=50 --set model.d_state=320

    palimpsest train --resume runs/book
    """

    recipe: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]", help_behavior_hint="")
    ] = ""
    """A recipe file (TOML), or a built-in one: gpnm-tiny, gpnm-1m, gpn-1m, gpnm-130m, gpnm-130m-2l,
    gpn-130m, recall, recall-published, mqar. By default gpnm-1m, or the task's."""

    data: PlainPaths = ()
    """Text to train on: files or folders (.txt, .jsonl, .json, each also .gz), or a folder of token
    shards."""

    validation: PlainPaths = ()
    """Text to validate on. By default the recipe's share of the training text is held out."""

    out: PlainPath = None
    """The run's folder; must not exist. By default runs/MODEL-DATA-seedN."""

    resume: PlainPath = None
    """Go on with the run in this folder, bit for bit. Only --steps and --device go with it."""

    model: PlainText = None
    """Another model than the recipe's: an architecture or a preset (palimpsest info lists them)."""

    tokenizer: PlainText = None
    """"bytes", a tokenizer file (.json, SentencePiece .model), or a folder that holds one."""

    task: Annotated[
        Literal["recall", "mqar"] | None,
        tyro.conf.arg(metavar="{recall,mqar}", help_behavior_hint=""),
    ] = None
    """Train on a synthetic recall task in place of text."""

    steps: PlainInt = None
    """Optimizer steps in all."""

    batch_size: PlainInt = None
    """Windows of one optimizer step."""

    seq_len: PlainInt = None
    """Tokens of a window."""

    lr: PlainFloat = None
    """Peak learning rate."""

    seed: PlainInt = None
    """Seed of the parameters, the data's order and dropout."""

    precision: Annotated[
        Literal["fp32", "bf16"] | None,
        tyro.conf.arg(metavar="{fp32,bf16}", help_behavior_hint=""),
    ] = None
    """Precision of the products; parameters and states are fp32 in both."""

    keep_best: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")
    ] = False
    """Also keep the checkpoint with the lowest validation loss; RUN/best names it."""

    init_from: PlainFolder = None
    """A run, checkpoint or model folder whose weights the run starts from."""

    device: PlainText = None
    """"auto", "cpu", "cuda", "cuda:1", …"""

    set: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        tyro.conf.arg(metavar="KEY=VALUE", help_behavior_hint=""),
    ] = ()
    """Any other value of the recipe as key=value, such as optimizer.clip_norm=0.5; may be
    repeated."""


FLAGS = {
    "model": "model.name",
    "tokenizer": "data.tokenizer",
    "task": "data.task",
    "seq_len": "data.seq_len",
    "lr": "optimizer.lr",
    "steps": "train.steps",
    "batch_size": "train.batch_size",
    "seed": "train.seed",
    "precision": "train.precision",
    "device": "train.device",
    "keep_best": "train.keep_best",
    "init_from": "train.init_from",
}


OPTIONS = {
    "data.train": "data",
    "data.validation": "validation",
    **{key: name for name, key in FLAGS.items() if key.rpartition(".")[2] != name},
}


def run(args: TrainArgs) -> int:
    """Carry out the command.

    Returns:
        The exit code: 0, or 128 + the signal's number after SIGINT or SIGTERM.

    Raises:
        PalimpsestError: a user's mistake, for the caller to print as one line.
    """
    result = _resume(args) if args.resume is not None else _train(args)
    if result.stopped_by is not None:
        return EXIT_SIGNAL + result.stopped_by
    say(f"trained {result.model.extra_repr()}, {result.step} steps: {result.folder}")
    if result.validation is not None:
        say(describe_result(result.validation))
    best = best_validation(result.folder)
    if best is not None:
        say(f"best checkpoint, step {best['step']}: {result.folder / 'best'}")
        say(describe_result(best))
    if (result.folder / "loss.png").exists():
        say(f"loss plot: {result.folder / 'loss.png'}")
    note = readability_note(read_meta(result.folder), result.step)
    if note is not None:
        say(note)
    return 0


def describe_result(row: dict[str, Any]) -> str:
    """The last validation as one line; the accuracy of a task with its trials and chance."""
    parts = [f"loss {row['loss']:.4f}"]
    if "bits_per_byte" in row:
        parts.append(f"bits_per_byte {row['bits_per_byte']:.4f}")
    if "accuracy" in row:
        about = [f"{row['trials']:,} trials"] if "trials" in row else []
        about += [f"chance {row['chance']:.1%}"] if "chance" in row else []
        parts.append(
            f"accuracy {row['accuracy']:.1%}" + (f" ({', '.join(about)})" if about else "")
        )
    return f"validation: {', '.join(parts)}"


def _train(args: TrainArgs) -> RunResult:
    recipe = recipe_of(args)
    out = args.out
    if out is None:
        what = recipe.data.task or Path(recipe.data.train[0] if recipe.data.train else "text").stem
        out = Path("runs") / f"{recipe.model.name}-{what}-seed{recipe.train.seed}"
    return train(recipe, out)


def recipe_of(args: TrainArgs) -> Recipe:
    """The recipe that the arguments stand for.

    Raises:
        ConfigError: an unknown recipe or key, a value of a wrong type or range.
    """
    changes: dict[str, Any] = {
        key: getattr(args, name)
        for name, key in FLAGS.items()
        if getattr(args, name) not in (None, False)
    }
    for name, key in (("data", "data.train"), ("validation", "data.validation")):
        paths = getattr(args, name)
        if paths:
            changes[key] = [str(path) for path in paths]
    for text in args.set:
        key, value = parse_assignment(text)
        if key in changes:
            raise ConfigError(f"--set {text}: {key} is given by a flag already; give it once")
        changes[key] = value
    name = args.recipe or (args.task if args.task in list_recipes() else None) or DEFAULT_RECIPE
    return load_recipe(name, changes)


def _resume(args: TrainArgs) -> RunResult:
    assert args.resume is not None
    allowed = ("resume", "steps", "device")
    for name, value in vars(args).items():
        if name not in allowed and value not in (None, "", (), False):
            shown = name if name == "recipe" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--resume {args.resume} with {shown}: the run's own recipe decides; only --steps "
                "and --device can change, or start a new run"
            )
    return resume(args.resume, steps=args.steps, device=args.device)
