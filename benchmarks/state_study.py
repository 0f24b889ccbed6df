"""Do fast and slow heads and a default token appear for every seed, when, and in which models?

    python benchmarks/state_study.py run --train wiki.train.tokens --valid wiki.valid.tokens
    python benchmarks/state_study.py run --train … --valid … --models gpnm gdn --seeds 2
    python benchmarks/state_study.py show
    python benchmarks/state_study.py plot --figures docs/figures

Models of one layer and equally many parameters (``palimpsest.match``), with more and smaller heads
than usual so that there are pools to find, are trained on bytes. Along the way each is measured on
held-out text: half-lives of its heads, mean state, geometry; at the end interventions too. A run
that is in the JSON file already is not done again; checkpoints stay under ``--runs`` if given.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import palimpsest
from common import header
from palimpsest.analysis.battery import head_half_lives, name_pools
from palimpsest.analysis.causal import measure_interventions
from palimpsest.analysis.default_token import count_tokens, measure_default_token
from palimpsest.analysis.geometry import measure_geometry
from palimpsest.analysis.horizons import decay_taps, measure_retention
from palimpsest.analysis.passes import cut_windows
from palimpsest.analysis.pools import split_pools
from palimpsest.files import write_json
from palimpsest.models import LanguageModel
from palimpsest.text import WindowSampler
from palimpsest.training.optimizer import lr_factor, make_optimizer, set_lr
from palimpsest.training.recipe import OptimizerRecipe
from state_study_tables import show

VOCABULARY = 259
OUT = Path("docs/results/state-study.json")
HEADS: dict[str, dict[str, Any]] = {
    "gpnm": {"n_heads": 8, "d_key": 16, "d_val": 16},
    "gpn": {},
    "gdn": {"n_heads": 8, "head_dim": 16},
    "mamba2": {"head_dim": 32},
    "transformerpp": {"n_heads": 8},
}
FINE = {"gpnm": "d_ffn", "gpn": "d_ffn", "gdn": "d_ffn", "transformerpp": "d_ffn"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One study; all of its runs share these.

    Attributes:
        params, steps, batch, length, lr, warmup: of the training, ``length`` of all windows too.
        checkpoints: steps at which a model is measured, and the last one.
        windows: windows that states are measured on.
        horizon, horizon_windows: tokens of the windows that half-lives are measured on, half of
            which is the longest one that can be seen; how many windows.
        blocks, draws: windows that interventions read, and random controls of each.
    """

    params: int = 300_000
    steps: int = 300
    batch: int = 8
    length: int = 128
    lr: float = 2e-3
    warmup: int = 30
    checkpoints: tuple[int, ...] = (0, 10, 25, 50, 100, 150, 200, 300)
    windows: int = 48
    horizon: int = 512
    horizon_windows: int = 12
    blocks: int = 32
    draws: int = 3


QUICK = Settings(
    params=100_000, steps=4, batch=2, length=32, warmup=1, checkpoints=(0, 2, 4), windows=4,
    horizon=64, horizon_windows=2, blocks=4, draws=1,
)  # fmt: skip


def sized(name: str, params: int) -> dict[str, Any]:
    """Fields of about so many parameters in one layer: matched, its heads made smaller, and its
    feed-forward network moved to where the count was."""
    (found,) = palimpsest.match(params, VOCABULARY, [name], n_layers=1, length=256, tolerance=0.1)
    fields = {**found.fields, **HEADS[name]}
    if params < 200_000 and name in ("gpnm", "gdn"):
        fields |= {"n_heads": 4}

    def count(width: int) -> int:
        with torch.device("meta"):
            return palimpsest.build(name, **{**fields, FINE[name]: width}).num_parameters()

    if name in FINE:
        usual = fields[FINE[name]]
        each = (count(usual + 4) - count(usual)) / 4  # parameters of one more, the same for all
        fields[FINE[name]] = usual + 4 * round((params - count(usual)) / each / 4)
    return fields


def read_bytes(path: Path) -> Tensor:
    """The ids of a file's bytes."""
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()


@torch.no_grad()
def bits_per_byte(model: LanguageModel, ids_WT: Tensor) -> float:
    """Of all tokens of the windows but the first of each."""
    model.eval()
    nats = sum(
        float(model(part[:, :-1], targets=part[:, 1:]).loss_sum) for part in ids_WT.split(32)
    )
    model.train()
    return nats / ids_WT[:, 1:].numel() / 0.6931471805599453


def observe(
    model: LanguageModel, step: int, ids_WT: Tensor, long_WT: Tensor, unigram: Tensor
) -> dict[str, Any]:
    """What is measured at a checkpoint; half-lives on the longer windows."""
    default = measure_default_token(model, ids_WT, unigram=unigram, batch_size=32)
    geometry = measure_geometry(model, ids_WT, batch_size=32)
    found: dict[str, Any] = {
        "step": step,
        "bits_per_byte": bits_per_byte(model, ids_WT),
        "mean_state": list(default.mean_state),
        "mean_norm": default.norm,
        "norm_share": default.norm_share,
        "norm": geometry.norm_mean,
        "group_cosine": default.group_cosine_mean,
        "spearman": default.spearman,
        "top": [token.id for token in default.top],
        "stable_rank": geometry.stable_rank,
        "participation_ratio": geometry.participation_ratio,
        "components_90": geometry.components_90,
        "width": geometry.width,
    }
    if decay_taps(model):
        retention = measure_retention(model, long_WT, batch_size=16)
        lives = [life for _, life in head_half_lives(model, retention)]
        pools = split_pools(lives, longest=retention.longest)
        found |= {
            "half_lives": lives,
            "longest": retention.longest,
            "pools": pools.to_dict(),
            "pools_in_words": str(pools),
        }
    return found


def train(
    name: str, seed: int, s: Settings, train_N: Tensor, valid_N: Tensor, folder: Path | None
) -> dict[str, Any]:
    """One run. Weights from ``torch.manual_seed(seed)``, the order of the text from the seed."""
    torch.manual_seed(seed)
    fields = sized(name, s.params)
    model = palimpsest.build(name, **fields)
    recipe = OptimizerRecipe(lr=s.lr, warmup_steps=s.warmup)
    optimizer = make_optimizer(model, recipe)
    sampler = WindowSampler(train_N.numpy(), s.length, s.batch, seed)
    ids_WT = cut_windows(valid_N, s.length, most=s.windows)
    long_WT = cut_windows(valid_N, s.horizon, most=s.horizon_windows)
    unigram = count_tokens(train_N, VOCABULARY)
    began, points = time.perf_counter(), []
    for step in range(s.steps + 1):
        if step in s.checkpoints or step == s.steps:
            points.append(observe(model, step, ids_WT, long_WT, unigram))
            if folder is not None:
                model.save(folder / f"{name}-{s.params}-{seed}" / f"step-{step}")
            model.train()
        if step == s.steps:
            break
        inputs, targets = sampler.batch_at(step)[:2]
        set_lr(optimizer, lr_factor(step, recipe, s.steps))
        loss = model(inputs, targets=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    trained = time.perf_counter() - began
    _with_cosines(points)
    return {
        "model": name,
        "seed": seed,
        "fields": fields,
        "parameters": model.num_parameters(),
        "points": points,
        "interventions": interventions(model.eval(), s, valid_N, long_WT).to_dict(),
        "seconds_training": round(trained, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def interventions(model: LanguageModel, s: Settings, valid_N: Tensor, long_WT: Tensor) -> Any:
    """All interventions, on the pools that the model has by then."""
    blocks = cut_windows(valid_N, s.length, most=s.blocks)
    pools = {}
    if decay_taps(model):
        retention = measure_retention(model, long_WT, batch_size=16)
        lives = head_half_lives(model, retention)
        rule = split_pools([life for _, life in lives], longest=retention.longest)
        pools = name_pools(lives, rule)
    return measure_interventions(
        model, blocks, pools=pools, draws=s.draws, batch_size=s.blocks, seed=0
    )


def _with_cosines(points: list[dict[str, Any]]) -> None:
    """Each mean state's cosine with the last one; the vectors themselves are not kept."""
    last = torch.tensor(points[-1]["mean_state"])
    for point in points:
        mean = torch.tensor(point.pop("mean_state"))
        point["cosine_to_final"] = float(torch.cosine_similarity(mean, last, dim=0))


def run(
    models: Sequence[str],
    seeds: int,
    s: Settings,
    train_path: Path,
    valid_path: Path,
    out: Path,
    folder: Path | None,
) -> dict[str, Any]:
    """All runs that are not done yet, each written as soon as it is."""
    torch.set_flush_denormal(True)
    settings = json.loads(json.dumps(asdict(s)))
    result: dict[str, Any] = {"where": header(), "settings": settings, "runs": []}
    if out.exists():
        result = json.loads(out.read_text())
        if result["settings"] != settings:
            raise SystemExit(f"{out}: was made with other settings; choose another --out")
    result["train"], result["valid"] = train_path.name, valid_path.name
    train_N, valid_N = read_bytes(train_path), read_bytes(valid_path)
    for seed in range(1, seeds + 1):
        for name in models:
            if any(r["model"] == name and r["seed"] == seed for r in result["runs"]):
                continue
            done = train(name, seed, s, train_N, valid_N, folder)
            result["runs"].append(done)
            write_json(out, result)
            last = done["points"][-1]
            print(
                f"{name}, seed {seed}: {last['bits_per_byte']:.3f} bits per byte, mean state "
                f"{last['norm_share']:.2f}; {last.get('pools_in_words', 'no decays')} "
                f"({done['seconds']} s)",
                flush=True,
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "show", "plot"))
    parser.add_argument("--train", type=Path, help="text to train on, read as bytes")
    parser.add_argument("--valid", type=Path, help="text to measure on")
    parser.add_argument("--models", nargs="+", choices=sorted(HEADS), default=list(HEADS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 … N")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    parser.add_argument("--params", type=int, help="parameters of each model")
    parser.add_argument("--steps", type=int, help="optimizer steps of each run")
    parser.add_argument("--batch", type=int, help="windows of a step")
    parser.add_argument("--length", type=int, help="tokens of all windows")
    parser.add_argument("--lr", type=float, help="peak learning rate, of all models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, help="keep checkpoints in this folder")
    parser.add_argument("--out", type=Path, default=OUT, help="runs in it are not repeated")
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if args.what == "run":
        if args.train is None or args.valid is None:
            parser.error("run needs --train and --valid")
        torch.set_num_threads(args.threads)
        base = asdict(QUICK if args.quick else Settings())
        given = {name: getattr(args, name) for name in ("params", "steps", "batch", "length", "lr")}
        settings = Settings(**base | {k: v for k, v in given.items() if v is not None})
        given_paths = (args.train, args.valid, args.out, args.runs)
        run(args.models, args.seeds, settings, *given_paths)
    if not args.out.exists():
        parser.error(f"--out {args.out}: is not there; do a run first")
    result = json.loads(args.out.read_text())
    if args.what == "plot":
        from state_study_plots import plot_all

        for path in plot_all(result, args.figures):
            print(f"written: {path}")
    else:
        show(result, args.markdown)


if __name__ == "__main__":
    main()
