"""What recording costs: a forward pass with nobody listening, and with every cheap tap recorded.

Run: python benchmarks/recorder.py [--model gpnm-1m] [--batch 8] [--length 256] [--rounds 15]

Each recorded forward pass stands between two others that are not; the median of the ratios is
shown with its quartiles, in processor time. The cost of taps that nobody listens to
is what their calls take, counted in a forward pass and timed alone: it is too small to be seen in
the difference of two forward passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from collections.abc import Callable

import torch
from torch import nn

import palimpsest
from palimpsest import analysis
from palimpsest import taps as low
from palimpsest.heap import keep_freed_memory


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def calls_of_one_forward(run: Callable[[], object]) -> int:
    """How often the taps' functions are called while nobody listens."""
    import sys

    count = 0
    codes = {
        f.__code__ for f in (low.tap, low.offer, low.offer_at, low.listening, low.wanted, low.moved)
    }

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal count
        if event == "call" and getattr(frame, "f_code", None) in codes:
            count += 1

    sys.setprofile(count_calls)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="gpnm-1m")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--length", type=int, default=256)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--heap", action="store_true", help="keep freed memory, as commands do")
    options.add_argument("--each", action="store_true", help="each tap alone as well")
    given = options.parse_args()
    if given.heap:
        keep_freed_memory()
    torch.manual_seed(0)
    model = palimpsest.build(given.model).eval()
    high = model.config.vocab_size
    ids = torch.randint(0, high, (given.batch, given.length))

    @torch.no_grad()
    def forward(taps: list[str] | None = None) -> None:
        if taps is None:
            model(ids).logits  # noqa: B018
        else:
            with analysis.record(model, taps):
                model(ids).logits  # noqa: B018

    cheap = [name for name, tap in analysis.taps(model).items() if tap.cheap]
    sets = {"nobody": None, "all cheap": cheap}
    if given.each:
        sets |= {name: [name] for name in cheap}
    forward()
    forward(cheap)
    plain: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in sets}
    for _ in range(given.rounds):
        for name, taps in sets.items():
            before, with_taps, after = (
                seconds(lambda taps=taps: forward(taps)) for taps in (None, taps, None)
            )
            plain += [before, after]
            ratios[name].append(2 * with_taps / (before + after) - 1)
    base = statistics.median(plain)
    print(f"{given.model}, {given.batch} x {given.length}, {len(cheap)} cheap taps, processor time")
    print(f"{'forward':24} {1e3 * base:8.1f} ms")
    for name, found in ratios.items():
        low_quartile, middle, high_quartile = statistics.quantiles(found, n=4)
        spread = f"({100 * low_quartile:+.1f} to {100 * high_quartile:+.1f})"
        print(f"{name:24} {100 * middle:+8.1f} %  {spread}")
    module, tensor = nn.Identity(), torch.zeros(1)
    each = timeit.timeit(lambda: low.tap(module, "x", tensor), number=100_000) / 100_000
    for label, run, taken in (
        ("window", forward, base),
        ("one token", lambda: model(ids[:1, :1]).logits, 0.0),
    ):
        with torch.no_grad():
            count = calls_of_one_forward(run)
            duration = taken or statistics.median(seconds(run) for _ in range(100))
        share = 100 * count * each / duration
        print(f"off, {label}: {count} calls of {1e9 * each:.0f} ns = {share:.4f} % of a forward")


if __name__ == "__main__":
    main()
