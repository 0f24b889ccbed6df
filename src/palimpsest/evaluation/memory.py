"""The most memory that a piece of work takes, beyond what was in use before it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["memory_rule", "peak_bytes"]

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Run a piece of work and say how much memory it took at its highest.

    Args:
        work: what to run; once.
        device: where its tensors are. On a GPU the tensors allocated there count; on a CPU the
            process's resident memory, whose high-water mark only Linux can set back.

    Returns:
        Bytes above what was in use before; None where it cannot be told.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    if device.type != "cpu":
        work()
        return None
    _give_back()
    known = _reset()
    start = _resident("VmRSS") if known else None
    work()
    peak = _resident("VmHWM") if known else None
    if start is None or peak is None:
        return None
    return max(peak - start, 0)


def memory_rule(device: torch.device) -> str:
    """What :func:`peak_bytes` counts on a device, in words."""
    if device.type == "cuda":
        return "peak of torch.cuda.max_memory_allocated above what was allocated before"
    return "peak of resident memory above that before"


def _give_back() -> None:
    """Hand freed pages back, or the work would run in them and seem to take nothing."""
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # a C library other than glibc
        return


def _reset() -> bool:
    """Set the process's high-water mark to what it uses now."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _resident(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), None)
    return None if found is None else int(found.split()[1]) * 1024
