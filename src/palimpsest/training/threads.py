"""The number of CPU threads of a training run, chosen by the work of one step.

Handing a small product to a second thread costs more than it saves, and much more if another
process is busy. The setting of the user comes first: OMP_NUM_THREADS, MKL_NUM_THREADS, and a call
of ``torch.set_num_threads`` after the import of palimpsest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from palimpsest.models import LanguageModel
from palimpsest.training.recipe import Recipe

__all__ = ["choose_threads", "training_threads", "work_per_step"]

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_BELOW = 10_000_000  # operations; an estimate, about half a millisecond of one core
_at_import = torch.get_num_threads()


def work_per_step(model: LanguageModel, batch: int, length: int) -> int:
    """Operations that are computed before the next ones must wait for them.

    Args:
        model: its class says by ``sequential`` whether tokens are computed one after another.
        batch: rows.
        length: tokens of a row.
    """
    return 2 * model.num_parameters() * batch * (1 if model.sequential else length)


def choose_threads(work: int, now: int) -> tuple[int, str | None]:
    """The number of threads, and the line for the log if it is not the current one.

    Args:
        work: operations of one step.
        now: the current number of threads.
    """
    set_by_user = any(os.environ.get(name) for name in VARIABLES) or now != _at_import
    if set_by_user or now == 1 or work >= ONE_BELOW:
        return now, None
    line = (
        f"1 thread instead of {now}, because a step of this model is small ({work:,} operations); "
        "set OMP_NUM_THREADS to choose another number"
    )
    return 1, line


@contextlib.contextmanager
def training_threads(
    model: LanguageModel, recipe: Recipe, sessions: list[dict[str, Any]] | None = None
) -> Iterator[str | None]:
    """Set the number of threads in a ``with`` block, which receives the line for the log or None.

    Args:
        model: the model to train.
        recipe: batch size and length.
        sessions: the earlier sessions of a resumed run, whose number of threads is used again,
            because sums over threads may differ in their last bits.
    """
    before = torch.get_num_threads()
    recorded = sessions[-1].get("threads") if sessions else None
    if model.device.type != "cpu":
        number, line = before, None
    elif isinstance(recorded, int) and 1 <= recorded <= 1024:
        number, line = recorded, None
        if recorded != before:
            line = (
                f"threads: {recorded}, as in the run's last session, instead of {before}, so that "
                "the run ends in the same bits"
            )
    else:
        rows = recipe.train.batch_size // recipe.train.grad_accumulation
        number, line = choose_threads(work_per_step(model, rows, recipe.data.seq_len), before)
    if number != before:
        torch.set_num_threads(number)
    try:
        yield line
    finally:
        if number != before:
            torch.set_num_threads(before)
