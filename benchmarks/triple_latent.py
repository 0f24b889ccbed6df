"""Speed of the Triple-Latent family, always as a ratio to the Transformer of the same run.

    python benchmarks/triple_latent.py ratios --out docs/results/triple-latent-ratios.json \\
        --plot docs/figures/triple-latent-speed.png
    python benchmarks/triple_latent.py flat --out docs/results/triple-latent-flat.json
    python benchmarks/triple_latent.py memory --out docs/results/triple-latent-memory.json
    python benchmarks/triple_latent.py decode --out docs/results/triple-latent-decode.json

The setting of arXiv 2606.05175: d 64, 3 layers, 4 heads, S 8, 259 ids, batch 8, random tokens. The
Transformer attends by ``scaled_dot_product_attention``, whose fast form on a CPU knows no dropout:
so dropout is 0 unless ``--dropout`` says otherwise. A training step is forward, backward and fused
AdamW; a forward includes the loss. The floor is embedding, feed-forward networks and head alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import palimpsest
from common import header, interleaved, median, write
from palimpsest.layers.feed_forward import FeedForward
from palimpsest.models import LanguageModel
from palimpsest.ops.cross_entropy import cross_entropy
from triple_latent_report import plot, show_decode, show_flat, show_memory, show_ratios

SIZES = {"vocab_size": 259, "d_model": 64, "n_layers": 3, "n_heads": 4}
S8 = {"state_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "triple-latent": S8,
    "triple-slot": S8,
    "triple-hybrid": S8,
    "gated-hybrid": S8,
}
RECURRENT = ("triple-latent", "triple-slot", "triple-hybrid")
# at most this much of the Transformer's time, forward and training
TARGETS = {
    "triple-latent": {64: 1.3, 128: 1.0, 512: 0.5, 2048: 0.25},
    "triple-hybrid": {64: 1.3, 128: 1.0, 512: 0.5, 2048: 0.25},
    "gated-hybrid": {64: 1.8, 128: 1.4, 512: 0.8, 2048: 0.6},
}


class Floor(nn.Module):
    """What every model here has: embedding, feed-forward networks in a residual stream, head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        width = SIZES["d_model"]
        self.embedding = nn.Embedding(SIZES["vocab_size"], width)
        # as the models start: torch's own std of 1 makes logits whose exponentials underflow
        nn.init.normal_(self.embedding.weight, std=0.02)
        layers = [FeedForward(width, dropout) for _ in range(SIZES["n_layers"])]
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(inputs)
        for layer in self.layers:
            x = x + layer(x)
        return cross_entropy(x, self.embedding.weight, targets)[0] / targets.numel()


def build(name: str, dropout: float, length: int | None = None) -> LanguageModel:
    """A model of the setting; without a length it has no positions and no longest text."""
    bound = {"positions": "none"} if length is None else {"max_seq_len": length}
    torch.manual_seed(0)
    return palimpsest.build(name, **SIZES, **MODELS[name], **bound, dropout=dropout)


def loss_of(
    name: str, batch: int, length: int, dropout: float, *, unbounded: bool = False
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model, and its loss on one batch of random tokens."""
    torch.manual_seed(0)
    ids = torch.randint(0, SIZES["vocab_size"], (batch, length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if name == "floor":
        floor = Floor(dropout)
        return floor, lambda: floor(inputs, targets)
    model = build(name, dropout, None if unbounded else length)
    return model, lambda: model(inputs, targets=targets).loss


def trainer(name: str, batch: int, length: int, dropout: float, **more: Any) -> Callable[[], None]:
    model, loss = loss_of(name, batch, length, dropout, **more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_only(
    name: str, batch: int, length: int, dropout: float, **more: Any
) -> Callable[[], None]:
    model, loss = loss_of(name, batch, length, dropout, **more)
    model.eval()

    @torch.no_grad()
    def run() -> None:
        loss()

    return run


WHAT = {"forward": forward_only, "training": trainer}


def summary(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and minimum of each run."""
    return {name: {"median": median(v), "min": min(v)} for name, v in seconds.items()}


# -- ratios ------------------------------------------------------------------------------------


def ratios(args: argparse.Namespace) -> dict[str, Any]:
    """Time of every model over that of the Transformer, by length."""
    rows = []
    for length in args.lengths:
        for what, make in WHAT.items():
            runs = {n: make(n, args.batch, length, args.dropout) for n in (*MODELS, "floor")}
            seconds = summary(interleaved(runs, args.rounds, warm_up=2))
            base = seconds["transformer"]
            for name, found in seconds.items():
                rows.append(
                    {
                        "model": name,
                        "what": what,
                        "length": length,
                        "seconds": found,
                        "tokens_per_s": args.batch * length / found["median"],
                        "ratio": {k: found[k] / base[k] for k in found},
                        "target": TARGETS.get(name, {}).get(length),
                    }
                )
            show_progress(f"{what} at {length}: done")
    parameters = {n: build(n, args.dropout, 128).num_parameters() for n in MODELS}
    return {**setting(args), "parameters": parameters, "rows": rows}


# -- time per token by length ------------------------------------------------------------------


def flat(args: argparse.Namespace) -> dict[str, Any]:
    """Time per token of triple-latent, by length, all lengths in turn."""
    rows = []
    for what, make in WHAT.items():
        runs = {
            str(n): make("triple-latent", args.batch, n, args.dropout, unbounded=True)
            for n in args.long_lengths
        }
        for length, found in summary(interleaved(runs, args.rounds, warm_up=1)).items():
            tokens = args.batch * int(length)
            per_token = {k: 1e6 * v / tokens for k, v in found.items()}
            rows.append({"what": what, "length": int(length), "us_per_token": per_token})
    return {**setting(args), "rows": rows}


# -- memory ------------------------------------------------------------------------------------


def peak_mib() -> float:
    """The largest resident size of this process so far.

    Not ``ru_maxrss`` where there is a choice: Linux counts in it what the parent had at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def memory_of(name: str, batch: int, length: int, dropout: float) -> dict[str, float]:
    """Peak of this process before and after one training step; in a process of its own."""
    trainer(
        name, 1, 8, dropout, unbounded=True
    )()  # libraries and compiled loops are no memory of T
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")  # the peak so far is forgotten: compiling needed more than it left
    before = peak_mib()
    trainer(name, batch, length, dropout, unbounded=True)()
    return {"before_mib": before, "peak_mib": peak_mib()}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a training step by length, each in a fresh process."""
    rows = []
    for name in ("triple-latent", "transformer"):
        for length in args.long_lengths:
            own = [str(Path(__file__).resolve()), "memory-of", "--model", name]
            own += ["--batch", str(args.memory_batch), "--lengths", str(length)]
            own += ["--dropout", str(args.dropout), "--threads", str(args.threads)]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
            done = subprocess.run(
                [sys.executable, *own], capture_output=True, text=True, check=True, env=environment
            )
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append({"model": name, "length": length, **found})
            show_progress(f"{name} at {length}: peak {found['peak_mib']:.0f} MiB")
    return {**setting(args), "batch": args.memory_batch, "rows": rows}


# -- decoding ----------------------------------------------------------------------------------


def decoder(model: LanguageModel, position: int, tokens: int) -> Callable[[], None]:
    """Read ``tokens`` tokens one by one from a state that has read ``position`` of them."""
    torch.manual_seed(position)
    ids = torch.randint(0, SIZES["vocab_size"], (1, position + tokens))
    with torch.inference_mode():
        at_position = model(ids[:, :position]).state
    steps = ids[:, position:].split(1, dim=1)

    @torch.inference_mode()
    def run() -> None:
        state = at_position
        for token in steps:
            out = model(token, state)
            state, _ = out.state, out.logits

    return run


def decode(args: argparse.Namespace) -> dict[str, Any]:
    """Time per token at two positions, batch 1."""
    rows = []
    for name in (*RECURRENT, "gated-hybrid", "transformer"):
        model = build(name, 0.0).eval()
        runs = {str(p): decoder(model, p, args.tokens) for p in args.positions}
        found = summary(interleaved(runs, args.rounds, warm_up=1))
        for position, seconds in found.items():
            per_token = {k: 1e6 * v / args.tokens for k, v in seconds.items()}
            state = model.state_bytes(1, int(position))
            rows.append(
                {
                    "model": name,
                    "position": int(position),
                    "us_per_token": per_token,
                    "state_bytes": state,
                }
            )
        show_progress(f"{name}: done")
    return {**setting(args), "batch": 1, "tokens": args.tokens, "rows": rows}


# -- the command -------------------------------------------------------------------------------

MEASUREMENTS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., None]]] = {
    "ratios": (ratios, show_ratios),
    "flat": (flat, show_flat),
    "memory": (memory, show_memory),
    "decode": (decode, show_decode),
}


def setting(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **header(),
        "sizes": {**SIZES, **S8},
        "batch": args.batch,
        "dropout": args.dropout,
        "dtype": "float32",
        "rounds": args.rounds,
        "started": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def show_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", choices=[*MEASUREMENTS, "memory-of"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 512, 2048])
    parser.add_argument("--long-lengths", type=int, nargs="+", default=[512, 2048, 8192, 16384])
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--tokens", type=int, default=200, help="decoded in one round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory-batch", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", choices=MODELS, default="triple-latent", help="of memory-of")
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    parser.add_argument("--plot", type=Path, help="ratios: also draw time over length")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.measure == "memory-of":
        print(json.dumps(memory_of(args.model, args.batch, args.lengths[0], args.dropout)))
        return
    run, show = MEASUREMENTS[args.measure]
    result = run(args)
    show(result)
    write(args.out, result)
    if args.plot and args.measure == "ratios":
        plot(result, args.plot)


if __name__ == "__main__":
    main()
