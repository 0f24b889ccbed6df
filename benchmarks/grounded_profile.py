"""Where a training step of the grounded loop goes, part by part.

    python benchmarks/grounded_profile.py --size 1m --precision bf16

Each part of the window form is timed by a wrapper (about 0.3 µs a call); what no part accounts
for is autograd, folding, embeddings, the head and the optimizer.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import palimpsest
from common import header, write
from grounded_loop import SIZES, autocast
from palimpsest.ops.dispatch import force_backend
from palimpsest.ops.grounded_loop import compiled, window
from palimpsest.ops.grounded_loop.weight_grads import WeightGrads

PARTS = {
    "forward: elementwise and memory": ("ground", "mix", "predict", "flush"),
    "backward: elementwise and memory": (
        "predict_backward", "mix_backward", "between_backward", "state_backward",
        "ground_backward", "enter_chunk", "leave_chunk",
    ),
    "backward: a block's rows again": ("recompute",),
}  # fmt: skip


def instrument() -> dict[str, float]:
    """Wrap the parts; the table fills as steps run."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(part: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = run(*args, **kwargs)
            seconds[part] += time.perf_counter() - start
            return result

        return wrapper

    for part, names in PARTS.items():
        for name in names:
            setattr(compiled.NumbaEngine, name, timed(part, getattr(compiled.NumbaEngine, name)))
    WeightGrads.add = timed("weight gradients, once per block", WeightGrads.add)  # type: ignore[method-assign]
    prepare = window.prepare

    def timed_prepare(*args: Any) -> Any:
        start = time.perf_counter()
        product = prepare(*args)
        seconds["laying out the weights"] += time.perf_counter() - start
        return timed("products of the steps", product)

    window.prepare = timed_prepare
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1m")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    name, batch, length = SIZES[args.size]
    model = palimpsest.build(name)
    optimizer = torch.optim.AdamW(model.param_groups(1e-3, 0.1), fused=True)
    ids = torch.randint(0, model.config.vocab_size, (batch, length + 1))
    seconds = instrument()

    def step() -> float:
        start = time.perf_counter()
        with force_backend(grounded_loop="numba"), autocast(args.precision):
            loss = model(ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    step()
    seconds.clear()
    whole = sum(step() for _ in range(args.rounds))
    seconds["everything else"] = whole - sum(seconds.values())
    info = header()
    title = (
        f"{name}, {model.num_parameters():,} parameters, batch {batch} × {length}, "
        f"{args.precision}, {info['threads']} threads, torch {info['torch']}: "
        f"{whole / args.rounds * 1e3:.0f} ms a step"
    )
    table = Table(title=title)
    table.add_column("part")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    parts = {k: v / args.rounds * 1e3 for k, v in sorted(seconds.items(), key=lambda kv: -kv[1])}
    for part, ms in parts.items():
        table.add_row(part, f"{ms:.1f}", f"{ms * args.rounds / whole / 10:.0f} %")
    Console(width=110).print(table)
    write(args.out, {**info, "model": name, "precision": args.precision, "ms": parts})


if __name__ == "__main__":
    main()
