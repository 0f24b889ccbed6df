"""Trains in forked processes and kills them; run by test_kill_and_resume.py as its own program.

Standard input: JSON with "recipe" (a table), "backend" (a name or null), "folder", "kills",
"whole" (train folder/whole without a kill) and "seed". Standard output: JSON with the counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import palimpsest.training.run as plotting
from palimpsest import force_backend
from palimpsest.training import checkpoint_steps, resume, train
from palimpsest.training.recipe_file import recipe_from_dict

PARTS_OF_A_RUN = 3  # a kill comes at most this part of a whole run's time after the fork


def train_or_resume(table: dict[str, Any], folder: Path, backend: str | None) -> None:
    """Train in a new folder, or resume the run in an existing one."""
    forced = contextlib.nullcontext() if backend is None else force_backend(backend)
    with forced:
        if folder.exists():
            resume(folder, progress=False)
        else:
            train(recipe_from_dict(table), folder, progress=False)


def fork(order: dict[str, Any], folder: Path, draw: random.Random) -> int:
    """Train in a forked process whose heap holds junk of random sizes."""
    sizes = [draw.randrange(1, 40_000) for _ in range(draw.randrange(200))]
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        junk: list[object] = [bytearray(size) for size in sizes]
        junk += [torch.empty(size) for size in sizes[::3]]
        del junk[:: 1 + sizes[0] % 5 if sizes else 1]
        train_or_resume(order["recipe"], folder, order["backend"])
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def finish(order: dict[str, Any], folder: Path, draw: random.Random) -> None:
    """Train to the end without a kill."""
    _, status = os.waitpid(fork(order, folder, draw), 0)
    if status:
        sys.exit(f"{folder}: ended with status {status}")


def main() -> None:
    """Carry out one order."""
    plotting.plot_runs = lambda *_: None  # type: ignore[attr-defined]  # slower than these runs
    order = json.load(sys.stdin)
    draw, folder = random.Random(order["seed"]), Path(order["folder"])
    warm = {**order["recipe"], "train": {**order["recipe"]["train"], "steps": 2}}
    train_or_resume(warm, folder / f"warm-{os.getpid()}", order["backend"])
    start = time.monotonic()
    finish(order, folder / f"{'whole' if order['whole'] else 'timed'}-{order['seed']}", draw)
    duration = time.monotonic() - start
    counts = {"kills": 0, "resumes": 0, "before_a_checkpoint": 0}
    number = max((int(p.name[5:]) for p in folder.glob("parts*")), default=1)
    parts = folder / f"parts{number}"
    while counts["kills"] < order["kills"]:
        begun = parts.exists()
        pid = fork(order, parts, draw)
        time.sleep(draw.uniform(0.0, duration / PARTS_OF_A_RUN))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            counts["kills"] += 1
            counts["resumes"] += begun
            counts["before_a_checkpoint"] += not (parts.exists() and checkpoint_steps(parts))
        elif status:
            sys.exit(f"{parts}: ended with status {status}")
        else:  # finished before the kill came
            counts["resumes"] += begun
            number += 1
            parts = folder / f"parts{number}"
        if parts.exists() and checkpoint_steps(parts)[-1:] == [order["recipe"]["train"]["steps"]]:
            number += 1
            parts = folder / f"parts{number}"
    if not order["whole"]:
        counts["resumes"] += parts.exists()
        finish(order, parts, draw)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
