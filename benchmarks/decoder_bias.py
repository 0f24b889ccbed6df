"""What an explicit decoder bias takes over from the mean state of GPN+M, both trained alike.

    python benchmarks/decoder_bias.py --train wiki.train.tokens --valid wiki.valid.tokens \\
        --out docs/results/decoder-bias.json

The paper (arXiv 2605.10643) finds that a bias lowers the norm of the mean state by 6 % only. Here a
model with and one without it read the same windows of bytes from the same seed; then both are
measured on the same held-out windows. A seed that is in the JSON file already is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import palimpsest
from common import header
from palimpsest.analysis.default_token import bias_effect, count_tokens
from palimpsest.analysis.passes import cut_windows
from palimpsest.files import write_json
from palimpsest.models import LanguageModel
from palimpsest.training.optimizer import lr_factor, make_optimizer, set_lr
from palimpsest.training.recipe import OptimizerRecipe
from state_study import bits_per_byte, read_bytes

MODEL = "gpnm"
FIELDS: dict[str, Any] = {
    "vocab_size": 259, "d_state": 128, "d_emb": 32, "d_ffn": 476,
    "n_heads": 4, "d_key": 16, "d_val": 32,
}  # fmt: skip
RECIPE = OptimizerRecipe(lr=4e-3, warmup_steps=20, weight_decay=0.1)


def train(ids: Tensor, seed: int, args: argparse.Namespace, *, bias: bool) -> LanguageModel:
    """A model after all steps; windows are drawn by a generator of the seed."""
    torch.manual_seed(seed)
    model = palimpsest.build(MODEL, **FIELDS, decoder_bias=bias)
    optimizer = make_optimizer(model, RECIPE)
    generator = torch.Generator().manual_seed(seed)
    for step in range(args.steps):
        starts = torch.randint(0, len(ids) - args.length - 1, (args.batch,), generator=generator)
        windows = torch.stack([ids[s : s + args.length + 1] for s in starts.tolist()])
        set_lr(optimizer, lr_factor(step, RECIPE, args.steps))
        loss = model(windows[:, :-1], targets=windows[:, 1:]).loss
        assert loss is not None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def measure(
    train_ids: Tensor, valid_WT: Tensor, seed: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Both models of a seed."""
    began = time.perf_counter()
    without, with_bias = (train(train_ids, seed, args, bias=b) for b in (False, True))
    unigram = count_tokens(train_ids, FIELDS["vocab_size"])
    found = bias_effect(without, with_bias, valid_WT, unigram=unigram).to_dict()
    return {
        "seed": seed,
        "parameters": [m.num_parameters() for m in (without, with_bias)],
        "bits_per_byte": [bits_per_byte(m, valid_WT) for m in (without, with_bias)],
        "norm": [found[k]["norm"] for k in ("without", "with_bias")],
        "norm_share": [found[k]["norm_share"] for k in ("without", "with_bias")],
        "spearman": [found[k]["spearman"] for k in ("without", "with_bias")],
        "norm_change": found["norm_change"],
        "share_change": found["share_change"],
        "bias_norm": found["bias_norm"],
        "bias_spearman": found["bias_spearman"],
        "bias_overlap": found["bias_overlap"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument(
        "--windows", type=int, default=64, help="held-out windows that are measured"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON; seeds in it are not repeated"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    setting = {k: getattr(args, k) for k in ("steps", "batch", "length", "windows")}
    setting |= {"model": MODEL, "fields": FIELDS, "lr": RECIPE.lr, "dtype": "float32"}
    result: dict[str, Any] = {"setting": setting, "where": header(), "runs": []}
    if args.out.exists():
        result = json.loads(args.out.read_text())
        if result["setting"] != setting:
            parser.error(f"{args.out} holds runs of another setting; choose another file")
    train_ids = read_bytes(args.train)
    valid_WT = cut_windows(read_bytes(args.valid), args.length, most=args.windows)
    for seed in args.seeds:
        if any(run["seed"] == seed for run in result["runs"]):
            continue
        run = measure(train_ids, valid_WT, seed, args)
        result["runs"].append(run)
        write_json(args.out, result)
        print(
            f"seed {seed}: norm of the mean state {run['norm_change']:+.1%} with a bias", flush=True
        )
    for name in ("norm_change", "share_change", "bias_norm", "bias_spearman", "bias_overlap"):
        values = [run[name] for run in result["runs"]]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: {statistics.mean(values):+.3f} ± {spread:.3f}")
    for i, name in enumerate(("without", "with bias")):
        for key in ("bits_per_byte", "norm", "norm_share", "spearman"):
            values = [run[key][i] for run in result["runs"]]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}, {key}: {statistics.mean(values):.3f} ± {spread:.3f}")


if __name__ == "__main__":
    main()
