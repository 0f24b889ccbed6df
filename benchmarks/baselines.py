"""Speed of the baselines by length, as ratios to Transformer++ within one run.

    python benchmarks/baselines.py --out docs/results/baselines.json
    python benchmarks/baselines.py --lengths 512 2048 --what training --models transformerpp gdn

Width 256, 259 ids, random tokens, 1.7 M parameters in each to 5 %, as many tokens in
every batch whatever its length. A training step is forward, backward and fused AdamW; a forward
includes the loss. The models take turns, so that a slow moment of the machine hits all alike; the
ratio is that of the medians, and the lowest and highest of the rounds' own ratios stand beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import palimpsest
from common import header, interleaved, median, write

SIZES = {"vocab_size": 259, "d_model": 256, "n_layers": 2}
# transformerpp first: the others are measured against it
MODELS: dict[str, dict[str, Any]] = {
    "transformerpp": {"n_heads": 4, "d_ffn": 688},
    "gdn": {"n_heads": 4, "head_dim": 64, "d_ffn": 340},
    "mamba2": {"n_layers": 4, "head_dim": 64, "state_dim": 64},
}
TARGETS = {512: 1.5, 2048: 1.0}  # at most this ratio, in training


def runs(name: str, batch: int, length: int, what: str) -> tuple[Callable[[], None], int]:
    """What is timed, and the model's parameters."""
    torch.manual_seed(0)
    model = palimpsest.build(name, **{**SIZES, **MODELS[name]})
    ids = torch.randint(0, SIZES["vocab_size"], (batch, length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    optimizer = torch.optim.AdamW(model.param_groups(1e-4, 0.1), fused=True)

    def train() -> None:
        loss = model(inputs, targets=targets).loss
        assert loss is not None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def forward() -> None:
        _ = model(inputs, targets=targets).loss

    return (train if what == "training" else forward), model.num_parameters()


def measure(names: list[str], tokens: int, length: int, what: str, rounds: int) -> dict[str, Any]:
    """Microseconds per token and ratios of one length."""
    batch = max(tokens // length, 1)
    steps, parameters = {}, {}
    for name in names:
        steps[name], parameters[name] = runs(name, batch, length, what)
    seconds = interleaved(steps, rounds)
    base = seconds[names[0]]
    models = {}
    for name in names:
        ratios = [own / other for own, other in zip(seconds[name], base, strict=True)]
        models[name] = {
            "parameters": parameters[name],
            "us_per_token": median(seconds[name]) / (batch * length) * 1e6,
            "ratio": median(seconds[name]) / median(base),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        }
    return {"what": what, "length": length, "batch": batch, "models": models}


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """The rows as Markdown: µs per token, and the ratio with its range over the rounds."""
    lines = [
        "| | length | batch | " + " | ".join(names) + " |",
        "| :-- | --: | --: |" + " --: |" * len(names),
    ]
    for row in rows:
        cells = [row["what"], f"{row['length']:,}", str(row["batch"])]
        for name in names:
            own = row["models"][name]
            cell = f"{own['us_per_token']:.0f} µs"
            if name != names[0]:
                low, high = own["ratio_low"], own["ratio_high"]
                cell += f" = {own['ratio']:.2f} × ({low:.2f} – {high:.2f})"
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [name for name in MODELS if name in palimpsest.list_models()]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512, 2048])
    parser.add_argument("--what", nargs="+", choices=["forward", "training"])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [
        measure(args.models, args.tokens, length, what, args.rounds)
        for what in args.what or ("forward", "training")
        for length in args.lengths
    ]
    print(table(rows, args.models))
    for row in rows:
        bound = TARGETS.get(row["length"])
        if row["what"] == "training" and bound is not None:
            for name in args.models[1:]:
                ratio = row["models"][name]["ratio"]
                verdict = "met" if ratio <= bound else "MISSED"
                print(f"{name} at {row['length']:,}: {ratio:.2f}, target {bound}: {verdict}")
    result = {**header(), "sizes": SIZES, "models": MODELS, "rounds": args.rounds, "rows": rows}
    write(args.out, result)


if __name__ == "__main__":
    main()
