"""The loop's skinny products: plain, and laid out once for the library's kernel.

    python benchmarks/skinny_products.py

Rows × (in → out); milliseconds, medians of interleaved runs. ``prepare`` chooses the packed form
for a window's products where this build of torch has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import header, interleaved, median, write
from palimpsest.ops.grounded_loop.products import prepare

SHAPES = [
    (8, 768, 7952), (8, 3072, 768), (8, 768, 768), (16, 256, 2400), (16, 940, 256), (16, 256, 256),
]  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def forms(rows: int, fan_in: int, out: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    x, weight = torch.randn(rows, fan_in).to(dtype), torch.randn(out, fan_in).to(dtype)
    packed = prepare(weight, rows, steps=1000)
    return {"plain": lambda: x @ weight.t(), "packed": lambda: packed(x)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {**header(), "rounds": args.rounds, "rows": []}
    table = Table(title=f"ms, {result['threads']} threads, torch {result['torch']}")
    for column in ("rows × (in → out)", "dtype", "plain", "packed", "gain"):
        table.add_column(column, justify="right")
    with torch.no_grad():
        for shape in SHAPES:
            for name, dtype in DTYPES.items():
                seconds = interleaved(forms(*shape, dtype), args.rounds, warm_up=5)
                plain, packed = (median(seconds[k]) * 1e3 for k in ("plain", "packed"))
                label = "{} × ({} → {})".format(*shape)
                gain = f"{plain / packed:.2f}"
                table.add_row(label, name, f"{plain:.3f}", f"{packed:.3f}", gain)
                result["rows"].append(
                    {"shape": shape, "dtype": name, "plain_ms": plain, "packed_ms": packed}
                )
    Console(width=110).print(table)
    write(args.out, result)


if __name__ == "__main__":
    main()
