"""A run from its recipe to its folder, and taking it up again.

Everything is read and checked before the folder is made (its layout: ``run_folder.py``).
"""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palimpsest.arguments import require_path, require_type, require_whole
from palimpsest.errors import CheckpointError, ConfigError, InputError, PalimpsestError
from palimpsest.models import LanguageModel
from palimpsest.ops import backend_calls
from palimpsest.ops.compilation import report_compilation
from palimpsest.training import checkpoint as checkpoints
from palimpsest.training.log import MetricsLog, check_metrics, read_metrics
from palimpsest.training.loop import Trainer
from palimpsest.training.optimizer import lr_factor
from palimpsest.training.plot import plot_runs
from palimpsest.training.prepare import (
    load_data,
    pick_device,
    prepare_model,
    trained_length,
    weights_of,
)
from palimpsest.training.progress import TrainingProgress
from palimpsest.training.recipe import Recipe
from palimpsest.training.recipe_file import load_recipe
from palimpsest.training.run_folder import (
    PLOT,
    RECIPE,
    add_session,
    check_files,
    check_same_data,
    load_tokenizer_copy,
    make_folder,
    one_process,
    read_meta,
    record_backends,
)
from palimpsest.training.signals import StopSignals
from palimpsest.training.threads import training_threads

__all__ = ["RunResult", "resume", "train"]


@dataclass(frozen=True)
class RunResult:
    """What a session of training left.

    Attributes:
        folder: the run's folder.
        model: the model as it is now, in evaluation mode.
        step: optimizer steps done.
        steps: optimizer steps of the recipe.
        validation: the last row of validation of the run, or None.
        stopped_by: the number of the signal that stopped it, or None.
    """

    folder: Path
    model: LanguageModel
    step: int
    steps: int
    validation: dict[str, Any] | None
    stopped_by: int | None

    @property
    def finished(self) -> bool:
        """Whether the recipe's last step is done."""
        return self.step >= self.steps

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All rows of the run (see ``log.py``)."""
        return read_metrics(self.folder)

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run."""
        return f"palimpsest train --resume {shlex.quote(str(self.folder))}"


def train(
    recipe: Recipe | str | Path,
    run_folder: str | Path,
    *,
    progress: bool = True,
    stop_after: int | None = None,
) -> RunResult:
    """Train a model.

    SIGINT, SIGTERM and SIGHUP end the run after the current step, with a checkpoint. The caller's
    own random generators, signal handlers and treatment of subnormal numbers are left as they were.

    Args:
        recipe: what to do; or the name of a built-in recipe or the path of a TOML file, which
            :func:`load_recipe` reads.
        run_folder: where; must not exist.
        progress: show a bar (in a terminal) or a line every few seconds on standard error.
        stop_after: stop with a checkpoint when this many steps are done, as a signal would; the
            learning rate still follows the recipe's ``train.steps``.

    Raises:
        PalimpsestError: a mistake in the recipe, the data or the folder, found before anything is
            written; a loss that is not finite; a disk that is full.
    """
    require_path(run_folder, "run_folder")
    if isinstance(recipe, str | Path):
        recipe = load_recipe(recipe)
    if stop_after is not None:
        require_whole(stop_after, "stop_after")
    wanted = "pass a Recipe from palimpsest.load_recipe(NAME, {...}), or a name"
    require_type(recipe, "recipe", Recipe, wanted)
    folder = Path(run_folder)
    if folder.exists():
        raise InputError(
            f"{folder}: exists already; choose another folder, or go on with the run in it by "
            f"palimpsest train --resume {shlex.quote(str(folder))}"
        )
    device = pick_device(recipe.train.device)
    with _subnormals_flushed(), _own_generators(device):
        data = load_data(recipe)
        torch.manual_seed(recipe.train.seed)
        model, recipe = prepare_model(recipe, data, device)
        with training_threads(model, recipe) as note:
            make_folder(folder, recipe, model, data)
            with one_process(folder):
                trainer = Trainer(recipe, model, data, folder)
                return _session(trainer, MetricsLog(folder), progress, stop_after, note)


def resume(
    run_folder: str | Path,
    *,
    steps: int | None = None,
    device: str | None = None,
    progress: bool = True,
    stop_after: int | None = None,
) -> RunResult:
    """Go on with a run, bit for bit as if it had not stopped (on the same device and versions).

    Args:
        run_folder: the run's folder.
        steps: another number of steps in all, to train longer; the cosine is then that of the new
            number from here on.
        device: another device than the run's.
        progress: as for :func:`train`.
        stop_after: as for :func:`train`.

    Raises:
        PalimpsestError: no run there, a finished one, a damaged checkpoint (the good one before it
            is named), data that changed since the run began, another process that trains the run.
    """
    require_path(run_folder, "run_folder")
    for name, value in (("steps", steps), ("stop_after", stop_after)):
        if value is not None:
            require_whole(value, name)
    if device is not None:
        require_type(device, "device", str, 'pass text, such as "cpu"')
    folder = Path(run_folder)
    read_meta(folder)
    with one_process(folder):
        return _resume(folder, steps, device, progress, stop_after)


def _resume(
    folder: Path, steps: int | None, device: str | None, progress: bool, stop_after: int | None
) -> RunResult:
    meta = read_meta(folder)
    check_files(folder, meta)
    recipe = load_recipe(folder / RECIPE)
    planned = recipe.train.steps
    if steps is not None:
        recipe = recipe.replace("train", steps=steps)
    if device is not None:
        recipe = recipe.replace("train", device=device)
    where = pick_device(recipe.train.device)
    with _subnormals_flushed(), _own_generators(where):
        tokenizer = load_tokenizer_copy(folder)
        data = load_data(recipe, tokenizer)
        check_same_data(folder, meta["data"], data.description)
        checkpoints.clean(folder)
        latest = checkpoints.latest_checkpoint(folder)
        kept = None
        torch.manual_seed(recipe.train.seed)
        if latest is None:  # stopped before its first checkpoint: the seed gives the same start
            weights_of(recipe, meta.get("init_from"))
            model, _ = prepare_model(recipe, data, where)
        else:
            kept = checkpoints.load_checkpoint(latest, where)
            model = kept.model
            model.trained_length = trained_length(recipe)  # a run of before it was saved
        done = 0 if kept is None else kept.step
        if done >= recipe.train.steps:
            raise ConfigError(
                f"{folder}: has done {done} of train.steps={recipe.train.steps} steps; to train "
                "longer give more steps in all (--steps)"
            )
        trainer = Trainer(recipe, model, data, folder)
        if kept is not None:
            try:
                trainer.restore(kept)
            except (KeyError, ValueError, RuntimeError) as failure:
                raise CheckpointError(
                    f"{latest}: does not fit the run's recipe ({failure})"
                ) from failure
        check_metrics(folder)
        with training_threads(model, recipe, meta["sessions"]) as threads_note:
            # takes the old digest of the metrics away
            add_session(folder, meta, recipe, done, where)
            log = MetricsLog(folder, done)
            notes = (threads_note, _rate_change(recipe, planned, done))
            return _session(trainer, log, progress, stop_after, *notes)


def _rate_change(recipe: Recipe, planned: int, done: int) -> str | None:
    """What another number of steps does to the learning rate of the next one, in one line."""
    if recipe.train.steps == planned or recipe.optimizer.schedule == "constant":
        return None
    before, after = (
        recipe.optimizer.lr * lr_factor(done, recipe.optimizer, steps)
        for steps in (planned, recipe.train.steps)
    )
    return (
        f"--steps {recipe.train.steps} in place of {planned}: the {recipe.optimizer.schedule} "
        f"schedule now ends at step {recipe.train.steps}; the learning rate of step {done + 1} is "
        f"{after:.3g}, before the change {before:.3g}"
    )


@contextlib.contextmanager
def _subnormals_flushed() -> Iterator[None]:
    """Let results below the smallest normal number be 0 on the CPU.

    A gradient that has decayed over a hundred tokens is subnormal, and a CPU takes some hundred
    cycles for every operation on such a number: a run on recall takes a third of the time so. The
    setting belongs to a thread and goes to those it starts, so it is made before torch's pool of
    threads exists, unless the program has computed something before; it stays with that pool, and
    is taken back on the calling thread alone.
    """
    tiny = torch.full((1,), torch.finfo(torch.float32).tiny)
    before = not bool((tiny / 4).any())
    torch.set_flush_denormal(True)  # False where the CPU has no such mode
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    """Seed and draw without touching the caller's generators."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def _session(
    trainer: Trainer,
    log: MetricsLog,
    show: bool,
    stop_after: int | None,
    *notes: str | None,
) -> RunResult:
    folder, steps = trainer.run, trainer.recipe.train.steps
    progress = TrainingProgress(steps, trainer.step, show=show)
    for note in filter(None, notes):
        progress.say(note)
    calls = backend_calls()
    try:
        with StopSignals() as stop, report_compilation(progress.say):
            trainer.fit(log, progress, stop, stop_after=stop_after)
    except KeyboardInterrupt:
        progress.say(_interrupted(folder, trainer.step))
        raise
    finally:
        progress.close()
        log.close()
        record_backends(folder, calls, log.digest())
    trainer.model.eval()
    validations = [row for row in read_metrics(folder) if row["kind"] == "validation"]
    result = RunResult(
        folder=folder,
        model=trainer.model,
        step=trainer.step,
        steps=steps,
        validation=validations[-1] if validations else None,
        stopped_by=None if trainer.step >= steps else stop.received,
    )
    if not result.finished:
        why = f" by {signal.Signals(stop.received).name}" if stop.received else ""
        progress.say(
            f"stopped{why} after step {result.step}/{steps}, saved in "
            f"{checkpoints.latest_checkpoint(folder)}; go on with:\n  {result.resume_command}"
        )
    _plot(folder, progress)
    return result


def _interrupted(folder: Path, step: int) -> str:
    """What a second Ctrl-C leaves, which ends the run before its checkpoint."""
    latest = checkpoints.latest_checkpoint(folder)
    if latest is None:
        return f"interrupted in step {step + 1}; no checkpoint was saved yet: {folder}"
    return (
        f"interrupted in step {step + 1}; the last checkpoint is {latest}; resume with:\n"
        f"  palimpsest train --resume {shlex.quote(str(folder))}"
    )


def _plot(folder: Path, progress: TrainingProgress) -> None:
    try:
        plot_runs([folder], folder / PLOT)
    except (PalimpsestError, OSError) as failure:
        progress.say(f"no loss plot: {failure}")
