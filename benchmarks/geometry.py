"""Geometry of state vectors: streaming against its matrix products alone, and its memory.

Run: python benchmarks/geometry.py [--vectors 40960] [--width 2496] [--rounds 3] [--out FILE.json]
     python benchmarks/geometry.py --stream 1000000

The floor is the same products XᵀX of the same blocks of 4,096 fp32 vectors and nothing else, each
into the same place. ``--stream`` feeds so many vectors, made block by block, and shows the peak
memory of the process and its time; the eigenvalues at the end are included there.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch

from common import header, interleaved, median, write
from palimpsest.analysis.geometry import PIECE, GeometryReducer


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--vectors", type=int, default=40960)
    options.add_argument("--width", type=int, default=2496)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--stream", type=int)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.manual_seed(0)
    result = header()
    if given.stream:
        result |= stream(given.stream, given.width)
    else:
        result |= compare(given.vectors, given.width, given.rounds)
    write(given.out, result)


def compare(vectors: int, width: int, rounds: int) -> dict[str, object]:
    x_ND = torch.randn(vectors, width) + 2.0
    product = torch.empty(width, width)

    def floor() -> None:
        for block in x_ND.split(PIECE):
            torch.mm(block.mT, block, out=product)

    def accumulate() -> None:
        GeometryReducer().update(x_ND)

    def take(reducer: GeometryReducer) -> None:
        reducer.update(x_ND)

    seconds = interleaved({"products": floor, "geometry": accumulate}, rounds)
    low, all_of_it = median(seconds["products"]), median(seconds["geometry"])
    share = median([a / b for a, b in zip(*seconds.values(), strict=True)])
    reducer = GeometryReducer()
    take(reducer)
    start = time.perf_counter()
    reducer.result()
    end = time.perf_counter() - start
    print(f"{vectors:,} vectors of width {width}, {torch.get_num_threads()} threads")
    print(f"products alone {low:8.2f} s   {2e-9 * vectors * width**2 / low:6.1f} GFLOP/s")
    print(f"streaming      {all_of_it:8.2f} s   {100 * share:6.1f} % of the floor (paired median)")
    print(f"eigenvalues and correlations at the end, once: {end:.2f} s")
    return {
        "vectors": vectors,
        "width": width,
        "seconds": seconds,
        "share_of_floor": share,
        "end_seconds": end,
    }


def stream(vectors: int, width: int) -> dict[str, object]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reducer, start, fed = GeometryReducer(), time.perf_counter(), 0
    drawn = torch.randn(PIECE, width)
    while fed < vectors:
        # drawing a million vectors would take longer than measuring them: one block, turned
        block = drawn.roll(fed // PIECE, 1)[: min(PIECE, vectors - fed)] + 2.0
        reducer.update(block)
        fed += len(block)
    streamed = time.perf_counter() - start
    found = reducer.result()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{found.vectors:,} vectors of width {width}: {streamed:.1f} s of streaming,")
    print(f"peak memory {peak / 2**20:.2f} GiB, of which {before / 2**20:.2f} GiB before the start")
    return {
        "stream": vectors,
        "width": width,
        "seconds": streamed,
        "peak_bytes": 1024 * peak,
        "before_bytes": 1024 * before,
    }


if __name__ == "__main__":
    main()
