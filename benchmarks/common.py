"""What every benchmark here shares: an honest header, medians of interleaved runs, tables, JSON."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import palimpsest
from palimpsest.heap import keep_freed_memory

keep_freed_memory()  # as the commands of palimpsest do


def header() -> dict[str, Any]:
    """Where and with what the numbers were measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    return {
        "palimpsest": palimpsest.__version__,
        "commit": commit or None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }


def cpu_name() -> str:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def interleaved(
    runs: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each run, taken in turn so that a slow moment of the machine hits all alike."""
    for _ in range(warm_up):
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median(values: list[float]) -> float:
    return statistics.median(values)


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result as JSON when a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {path}")
