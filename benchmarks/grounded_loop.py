"""Speed of the grounded loop: training, forward, memory; every figure a ratio within this run.

    python benchmarks/grounded_loop.py --size 1m
    python benchmarks/grounded_loop.py --size 12m --rounds 5
    python benchmarks/grounded_loop.py --size 1m --curves docs/figures/precision.png
    python benchmarks/grounded_loop.py --long

A training step is forward, backward and AdamW on one window of random tokens. The floor is the
step's own matrix products alone: same shapes, dtype, order and layout, nothing between them.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import palimpsest
from common import header, interleaved, median, write
from palimpsest.models.gpn import GroundedModel
from palimpsest.ops.dispatch import dispatchers, force_backend
from palimpsest.ops.grounded_loop import grounded_loop
from palimpsest.ops.grounded_loop.folding import fold
from palimpsest.ops.grounded_loop.products import prepare

SIZES = {"1m": ("gpnm-1m", 16, 128), "12m": ("gpnm-12m", 8, 128)}
# Tokens/s of the published (jitted JAX) program, measured once by this project's authors on two
# cores of another machine of this kind; the calibration product below compares the machines.
PUBLISHED_PROGRAM = {"1m": 10_200.0, "12m": 793.0}
CALIBRATION_MS = {"fp32": 5.5, "bf16": 1.06}  # 8 × (2496 → 8192) there, in ms
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def autocast(precision: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")


def trainer(size: str, backend: str, precision: str) -> tuple[GroundedModel, Callable[[], float]]:
    """A model and its training step on one fixed window; the step returns the loss."""
    name, batch, length = SIZES[size]
    torch.manual_seed(0)
    model = palimpsest.build(name)
    assert isinstance(model, GroundedModel)
    optimizer = torch.optim.AdamW(model.param_groups(1e-3, 0.1), fused=True)
    ids = torch.randint(0, model.config.vocab_size, (batch, length + 1))

    def step() -> float:
        with force_backend(grounded_loop=backend), autocast(precision):
            loss = model(ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return model, step


def forward_only(size: str, backend: str, precision: str) -> Callable[[], None]:
    name, batch, length = SIZES[size]
    model = palimpsest.build(name)
    ids = torch.randint(0, model.config.vocab_size, (batch, length))

    @torch.no_grad()
    def run() -> None:
        with force_backend(grounded_loop=backend), autocast(precision):
            _ = model(ids, targets=ids).loss

    return run


def product_floor(size: str, precision: str) -> Callable[[], None]:
    """The matrix products of one training step, and nothing else."""
    name, batch, length = SIZES[size]
    model = palimpsest.build(name)
    assert isinstance(model, GroundedModel)
    dtype, rows = DTYPES[precision], batch * length
    with torch.no_grad():
        folded, _ = fold(model.cell.params())
        loop = [folded.ground_DD, folded.layers[0].first_ND, folded.layers[0].second_DZ]
        loop = [weight.to(dtype) for weight in loop]
    outer = [model.fuse.weight, model.decode.weight, model.embedding.weight]
    outer = [weight.detach().to(dtype) for weight in outer]
    small = [torch.randn(batch, w.shape[1]).to(dtype) for w in loop]
    small_back = [torch.randn(batch, w.shape[0]).to(dtype) for w in loop]
    large = [torch.randn(rows, w.shape[1]).to(dtype) for w in loop + outer]
    large_back = [torch.randn(rows, w.shape[0]).to(dtype) for w in loop + outer]

    @torch.no_grad()
    def run() -> None:
        forward = [prepare(w, batch, length) for w in loop]
        backward = [prepare(w.t(), batch, length) for w in loop]
        for _ in range(length):
            for product, x in zip(forward, small, strict=True):
                product(x)
            for product, x in zip(backward, small_back, strict=True):
                product(x)
        for weight, x, dy in zip(loop + outer, large, large_back, strict=True):
            dy.t() @ x
            if not any(weight is w for w in loop):
                x @ weight.t()
                dy @ weight

    return run


def saved_bytes_per_token(size: str, backend: str, precision: str) -> float:
    """Bytes that autograd keeps for the loop between forward and backward, per token.

    Parameters, and tensors that exist anyway (drive, predictions), are not counted.
    """
    name, batch, length = SIZES[size]
    model = palimpsest.build(name)
    assert isinstance(model, GroundedModel)
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    drive = torch.randn(batch, length, model.config.d_state, requires_grad=True)
    state = model.init_state(batch)
    params = model.cell.params()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    with force_backend(grounded_loop=backend), autocast(precision), hooks:
        out = grounded_loop(drive, params, state.predicted, state.grounded, state.memory)
    anyway = [drive, out[0], *model.parameters(), *(t for _, t in state.named_tensors())]
    for tensor in anyway:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    folded = sum(p.numel() for p in model.cell.parameters()) * 4
    return (sum(storages.values()) - folded) / (batch * length)


def product_inputs_per_token(size: str, precision: str) -> int:
    """Bytes per token of the inputs to the three products."""
    c = palimpsest.build(SIZES[size][0]).config
    width = c.d_state + (c.d_ffn + c.n_heads * c.d_val) + c.d_state
    return int(width * DTYPES[precision].itemsize)


def calibrate() -> dict[str, float]:
    """This machine's ms for the product that the published program's machine was timed with."""
    found = {}
    for precision, dtype in DTYPES.items():
        x, w = torch.randn(8, 2496).to(dtype), torch.randn(8192, 2496).to(dtype)
        times = interleaved({"p": lambda x=x, w=w: x @ w.t()}, 30, warm_up=3)["p"]
        found[precision] = median(times) * 1e3
    return found


def measure(size: str, rounds: int, precisions: list[str]) -> dict[str, Any]:
    name, batch, length = SIZES[size]
    tokens = batch * length
    backends = list(dispatchers()["grounded_loop"].available())
    steps, forwards, rows = {}, {}, []
    for precision in precisions:
        for backend in backends:
            model, steps[f"{backend} {precision}"] = trainer(size, backend, precision)
            forwards[f"{backend} {precision}"] = forward_only(size, backend, precision)
        steps[f"floor {precision}"] = product_floor(size, precision)
    train = {k: median(v) for k, v in interleaved(steps, rounds).items()}
    infer = {k: median(v) for k, v in interleaved(forwards, rounds).items()}
    for key in forwards:
        backend, precision = key.split()
        rows.append(
            {
                "backend": backend,
                "precision": precision,
                "train_tokens_per_s": tokens / train[key],
                "speed_over_reference": train[f"reference {precision}"] / train[key],
                "time_over_floor": train[key] / train[f"floor {precision}"],
                "over_published_program": tokens / train[key] / PUBLISHED_PROGRAM[size],
                "forward_s": infer[key],
                "saved_bytes_per_token": saved_bytes_per_token(size, backend, precision),
                "saved_over_product_inputs": saved_bytes_per_token(size, backend, precision)
                / product_inputs_per_token(size, precision),
            }
        )
    return {
        **header(),
        "model": name,
        "parameters": model.num_parameters(),
        "batch": batch,
        "length": length,
        "data": "random tokens, seed 0",
        "rounds": rounds,
        "calibration_ms": calibrate(),
        "calibration_ms_of_published": CALIBRATION_MS,
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    console = Console(width=150)
    here, there = result["calibration_ms"], result["calibration_ms_of_published"]
    title = (
        f"{result['model']}, {result['parameters']:,} parameters, batch {result['batch']} × "
        f"{result['length']}, {result['threads']} threads, torch {result['torch']}, commit "
        f"{result['commit']}, medians of {result['rounds']}"
    )
    table = Table(title=title)
    for column in (
        "backend", "dtype", "train tok/s", "× reference", "time / floor", "× published program",
        "forward s", "saved B/token", "/ product inputs",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("backend", "dtype") else "right")
    for r in result["rows"]:
        table.add_row(
            r["backend"],
            r["precision"],
            f"{r['train_tokens_per_s']:,.0f}",
            f"{r['speed_over_reference']:.2f}",
            f"{r['time_over_floor']:.2f}",
            f"{r['over_published_program']:.2f}",
            f"{r['forward_s']:.3f}",
            f"{r['saved_bytes_per_token']:,.0f}",
            f"{r['saved_over_product_inputs']:.2f}",
        )
    console.print(table)
    for precision in here:
        console.print(
            f"calibration, 8 × (2496 → 8192) {precision}: {here[precision]:.2f} ms here, "
            f"{there[precision]:.2f} ms where the published program was timed "
            f"({here[precision] / there[precision]:.2f}× slower)"
        )


def curves(size: str, path: Path, steps: int = 200) -> dict[str, list[float]]:
    """Losses over some steps on Python's own documentation, fp32 and bf16, overlaid in a plot."""
    import pydoc_data.topics

    from palimpsest.text import ByteTokenizer, Corpus, RandomWindowSampler

    name, batch, length = SIZES[size]
    corpus = Corpus.from_text("\n".join(pydoc_data.topics.topics.values()), ByteTokenizer())
    losses: dict[str, list[float]] = {}
    for precision in DTYPES:
        torch.manual_seed(0)
        model = palimpsest.build(name)
        optimizer = torch.optim.AdamW(model.param_groups(2e-3, 0.1), fused=True)
        sampler = RandomWindowSampler(corpus, length, batch, seed=0)
        losses[precision] = []
        for step in range(steps):
            inputs, targets = sampler.batch_at(step)[:2]
            with autocast(precision):
                loss = model(inputs, targets=targets).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses[precision].append(loss.item())
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (precision, values), style in zip(losses.items(), ("-", "--"), strict=True):
        axes.plot(values, style, label=precision, linewidth=1.4)
    axes.set(xlabel="step", ylabel="training loss, nats per byte")
    axes.set_title(f"{name} ({model.num_parameters():,} parameters), seed 0, same batches")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    gap = max(abs(a - b) for a, b in zip(losses["fp32"], losses["bf16"], strict=True))
    print(f"written: {path}; largest difference {gap:.4f} nats in {steps} steps")
    return losses


def long_window() -> None:
    """One T = 2048 training step at d 768, batch 4, with full backpropagation through time."""
    model = palimpsest.build("gpnm-12m")
    ids = torch.randint(0, model.config.vocab_size, (4, 2049))
    for precision in DTYPES:
        start = time.perf_counter()
        with autocast(precision):
            loss = model(ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"T 2048, batch 4, {model.num_parameters():,} parameters, {precision}: loss "
            f"{loss.item():.3f}, {seconds:.1f} s, peak memory of the process {peak:.2f} GiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=[*DTYPES, "both"], default="both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    parser.add_argument("--curves", type=Path, help="instead: plot fp32 and bf16 losses here")
    parser.add_argument("--long", action="store_true", help="instead: one T = 2048 step")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.long:
        long_window()
    elif args.curves:
        write(args.out, {**header(), "losses": curves(args.size, args.curves)})
    else:
        precisions = list(DTYPES) if args.precision == "both" else [args.precision]
        result = measure(args.size, args.rounds, precisions)
        show(result)
        write(args.out, result)


if __name__ == "__main__":
    main()
