"""Compiling a loop with numba on first use, and sharing its rows among torch's CPU threads.

Without numba the pure PyTorch backends run. Its own parallel loops are not used: one of their
thread pools aborts the process when two Python threads enter it, another when a forked process
does. The kernels release the GIL, so an ordinary pool of Python threads serves.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from palimpsest.ops.dispatch import BackendUnavailableError, elsewhere

__all__ = ["as_array", "compiled", "numba_missing", "require_cpu", "run_rows"]

# Sums may be reordered and multiply-adds fused; inf and NaN keep their meaning.
FAST_MATH = {"contract", "reassoc", "nsz"}
# Below this many inner operations, handing rows to another thread costs more than it saves.
SPLIT_ABOVE = 2_000_000


@functools.cache
def numba_missing() -> str | None:
    """None if numba can compile here, otherwise the sentence of the error."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed; pip install numba"
    try:
        numba: Any = importlib.import_module("numba")
    except Exception as failure:  # such as a release of numpy that it does not know
        return f"numba cannot be imported ({' '.join(str(failure).split())})"
    if numba.config.DISABLE_JIT:
        return "numba does not compile, because NUMBA_DISABLE_JIT is set; unset it"
    return None


def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """The loop as machine code, kept on disk between processes where a cache can be written."""
    from palimpsest.ops.kernel_cache import compile_function

    options: dict[str, Any] = {"nogil": True, "fastmath": FAST_MATH, "error_model": "numpy"}
    kernel: Callable[..., None] = compile_function(loop, options)
    return kernel


def require_cpu(op: str, tensor: Tensor) -> None:
    """Refuse tensors that a CPU loop cannot read."""
    if tensor.device.type != "cpu":
        raise BackendUnavailableError(
            f"backend='numba' of op {op!r} runs on the CPU, the tensors are on {tensor.device}; "
            f"use backend={elsewhere(op)!r} there"
        )


def as_array(tensor: Tensor) -> Any:
    """The tensor as a contiguous numpy array, sharing its memory where it is contiguous already."""
    return tensor.detach().contiguous().numpy()


_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None  # a forked process has the object, but none of its threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def run_rows(kernel: Callable[..., None], arguments: tuple[Any, ...], rows: int, work: int) -> None:
    """Call ``kernel(*arguments, low, high)`` on ranges that together cover the rows.

    Args:
        kernel: a compiled loop; different rows must write to different memory.
        arguments: arrays and numbers.
        rows: how many rows there are.
        work: inner operations of all rows together; little work stays on the calling thread.
    """
    global _pool
    parts = min(torch.get_num_threads(), rows) if work > SPLIT_ABOVE else 1
    if parts == 1:
        kernel(*arguments, 0, rows)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="palimpsest")
    bounds = [rows * part // parts for part in range(parts + 1)]
    others = [
        _pool.submit(kernel, *arguments, low, high) for low, high in itertools.pairwise(bounds[1:])
    ]
    kernel(*arguments, bounds[0], bounds[1])
    for other in others:
        other.result()
