"""A run of the product's training loop, then its evaluation on the validation text.

An interrupted run goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from palimpsest.evaluation import Protocol, evaluate_text
from palimpsest.models import load_model
from palimpsest.reproduce.experiments import RecipeExperiment
from palimpsest.text import load_tokenizer
from palimpsest.training import (
    Recipe,
    RunResult,
    checkpoint_steps,
    model_folder,
    resume,
    train,
)
from palimpsest.training.log import METRICS
from palimpsest.training.recipe_file import recipe_from_dict
from palimpsest.training.run_folder import RECIPE

__all__ = ["recipe_of", "run"]

Advance = Callable[[int], None]
POLL_SECONDS = 1.0
SAVES = 10  # checkpoints in the course of a run, so that little is lost


def run(
    config: Mapping[str, Any], paths: Mapping[str, str], folder: str, advance: Advance
) -> dict[str, Any]:
    """Train and evaluate one row with one seed (see ``measure_text.run``).

    Args:
        config: as there.
        paths: "train" and "valid", and "tokenizer" where the experiment wants one.
        folder: where the run is kept; one that is there is gone on with, so it must be of these
            settings, data and code (``jobs.claim``).
        advance: called with tokens done.

    Returns:
        As there; "facts" has the curve of validation by tokens.

    Raises:
        TrainingDivergedError: a loss that is no finite number.
    """
    experiment = RecipeExperiment(**config["experiment"])
    recipe = recipe_of(experiment, config, paths)
    target = Path(folder)
    with _reported(target, advance):
        result = _train(recipe, target)
    if not result.finished:
        raise KeyboardInterrupt(signal.Signals(result.stopped_by or signal.SIGINT).name)
    tokenizer = load_tokenizer("bytes" if experiment.tokenizer == "bytes" else paths["tokenizer"])
    measured = evaluate_text(
        result.model,
        tokenizer,
        paths["valid"],
        protocol=Protocol(
            seq_len=recipe.data.seq_len,
            predict=recipe.train.predict,
            max_windows=experiment.windows or None,
        ),
        batch_size=recipe.train.batch_size // recipe.train.grad_accumulation,
        precision=recipe.train.precision,
        prepare=recipe.data.prepare,
        progress=False,
    )
    rows = result.metrics
    metrics = {
        "bits_per_byte": measured.bits_per_byte,
        "perplexity": measured.perplexity,
        "tokens_per_s": _speed(rows),
    }
    if "lambada" in paths:
        metrics |= _lambada(result, tokenizer, paths["lambada"])
    curve = [
        {k: row[k] for k in ("step", "tokens", "loss", "bits_per_byte") if k in row}
        for row in rows
        if row["kind"] == "validation"
    ]
    facts = {
        "protocol": measured.protocol,
        "tokens_evaluated": measured.tokens,
        "training_tokens": recipe.train.steps * recipe.train.batch_size * recipe.data.seq_len,
        "state_bytes": measured.state_bytes,
        "dtype": measured.dtype,
        "curve": curve,
        "training_seconds": rows[-1]["elapsed"],
    }
    return {"metrics": metrics, "parameters": result.model.num_parameters(), "facts": facts}


def recipe_of(
    experiment: RecipeExperiment, config: Mapping[str, Any], paths: Mapping[str, str]
) -> Recipe:
    """The recipe that a row, a seed and files make."""
    table: dict[str, dict[str, Any]] = {k: dict(v) for k, v in experiment.recipe.items()}
    table["model"] = {"name": config["model"], **config["fields"]}
    table["data"] |= {
        "train": [paths["train"]] if "train" in paths else [],
        "validation": [paths["valid"]] if "valid" in paths else [],
        "tokenizer": "bytes" if experiment.tokenizer == "bytes" else paths.get("tokenizer", ""),
    }
    steps = table["train"]["steps"]
    table["train"].setdefault("save_every", max(1, steps // SAVES))
    table["train"] |= {"seed": config["seed"], "keep_checkpoints": 1}
    table["train"].setdefault("device", "auto" if experiment.tokenizer == "given" else "cpu")
    return recipe_from_dict(table)


def _train(recipe: Recipe, folder: Path) -> RunResult:
    """Go on with the run in the folder where there is one, else begin."""
    if (folder / RECIPE).is_file():
        steps = recipe.train.steps
        with contextlib.suppress(ValueError, OSError):  # damaged: begin again
            if steps in checkpoint_steps(folder):  # trained, but not measured
                model = load_model(model_folder(folder)).eval()
                return RunResult(folder, model, steps, steps, None, None)
            return resume(folder, progress=False)
    if folder.exists():
        shutil.rmtree(folder)
    return train(recipe, folder, progress=False)


def _speed(rows: list[dict[str, Any]]) -> float:
    """Training tokens per second: the median of the rows, which leave validation out."""
    rates = sorted(row["tokens_per_s"] for row in rows if row["kind"] == "train")
    return float(rates[len(rates) // 2]) if rates else math.nan


def _lambada(result: RunResult, tokenizer: Any, path: str) -> dict[str, float]:
    """LAMBADA as the paper counts it, by the package's evaluation."""
    from palimpsest.evaluation.lambada import evaluate_lambada

    measured = evaluate_lambada(result.model, tokenizer, path, progress=False)
    return {
        "lambada_first_subword": measured.first_token_accuracy.value,
        "lambada_perplexity": measured.token_perplexity.value,
    }


@contextlib.contextmanager
def _reported(run_folder: Path, advance: Advance) -> Iterator[None]:
    """Report the tokens of a run while it trains, as its metrics say."""
    over = threading.Event()
    seen = 0

    def look() -> None:
        nonlocal seen
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            lines = (run_folder / METRICS).read_text(encoding="utf-8").splitlines()
            tokens = json.loads(lines[-1])["tokens"]
            if tokens > seen:
                advance(tokens - seen)
                seen = tokens

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        look()
