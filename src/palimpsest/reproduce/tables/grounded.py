"""Grounded Prediction Networks beside Transformer++ and Gated DeltaNet.

Source: Wang, arXiv 2605.10643. ``FULL`` is the published 130 M recipe, for GPUs; ``SMALL`` runs
every row at about 0.3 M parameters on bytes, on a CPU.
"""

from __future__ import annotations

from typing import Any

from palimpsest.reproduce.experiments import RecipeExperiment
from palimpsest.reproduce.table import Column, DataSource, Row, Table
from palimpsest.reproduce.tables.triple import WIKITEXT

__all__ = ["FULL", "SMALL"]

PAPER = "Wang, arXiv 2605.10643"


def _published(perplexity: float, accuracy: float, lambada: float) -> dict[str, float]:
    return {
        "perplexity": perplexity,
        "lambada_first_subword": accuracy,
        "lambada_perplexity": lambada,
    }


# FineWeb-Edu perplexity, LAMBADA accuracy of the first subword, LAMBADA perplexity
PUBLISHED = {
    "GPN+M 1L": _published(18.06, 0.146, 33.45),
    "GPN+M 2L": _published(16.95, 0.160, 27.39),
    "GPN 1L": _published(23.51, 0.015, 263.6),
    "Transformer++ 12L": _published(16.05, 0.223, 18.99),
    "Gated DeltaNet 10L": _published(15.34, 0.208, 17.23),
}

_SMALL_RECIPE: dict[str, dict[str, Any]] = {
    "data": {"seq_len": 256, "order": "epoch", "prepare": "wikitext"},
    "optimizer": {
        "lr": 3e-3,
        "min_lr_ratio": 0.1,
        "warmup_steps": 50,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "betas": [0.9, 0.95],
        "clip_norm": 1.0,
    },
    "train": {
        "steps": 500,
        "batch_size": 16,
        "eval_every": 100,
        "eval_batches": 8,
        "log_every": 20,
    },
}
# one memory of 2 heads of 32 × 48 cells; widths land every row within 1 % of 297,000 parameters
_MEMORY = {"d_emb": 48, "n_heads": 2, "d_key": 32, "d_val": 48}

SMALL = Table(
    name="grounded",
    title="GPN and GPN+M beside Transformer++ and Gated DeltaNet, 0.3 M parameters on bytes",
    source=PAPER,
    columns=(
        Column(metric="bits_per_byte", title="bits per byte"),
        Column(
            metric="perplexity",
            title="perplexity per byte",
            published_title="published (130 M, per subword of FineWeb-Edu)",
        ),
        Column(metric="tokens_per_s", title="training tok/s", style="integer"),
    ),
    experiments=(RecipeExperiment(recipe=_SMALL_RECIPE, windows=1024),),
    rows=(
        Row(
            label="GPN+M 1L",
            model="gpnm",
            fields={**_MEMORY, "d_state": 144, "d_ffn": 388},
            published=PUBLISHED["GPN+M 1L"],
        ),
        Row(
            label="GPN+M 2L",
            model="gpnm",
            fields={**_MEMORY, "d_state": 104, "d_ffn": 274, "n_layers": 2},
            published=PUBLISHED["GPN+M 2L"],
        ),
        Row(
            label="GPN 1L",
            model="gpn",
            fields={"d_emb": 48, "d_state": 164, "d_ffn": 436},
            published=PUBLISHED["GPN 1L"],
        ),
        Row(
            label="Transformer++ 4L",
            model="transformerpp",
            fields={"d_model": 72, "n_layers": 4, "n_heads": 4, "d_ffn": 204},
            published=PUBLISHED["Transformer++ 12L"],
        ),
        Row(
            label="Gated DeltaNet 4L",
            model="gdn",
            fields={"d_model": 64, "n_layers": 4, "n_heads": 3, "head_dim": 24, "d_ffn": 144},
            published=PUBLISHED["Gated DeltaNet 10L"],
        ),
    ),
    seeds=(0, 1, 2),
    notes=(
        "The small scale is ours and reproduces no figure: 0.3 M parameters, 500 steps and 2.0 M "
        "bytes in place of 130 M, 10,000 and 2.6 B subwords; the first 1,024 validation windows of "
        "256 bytes. The published perplexities stand beside it for the order of the rows only.",
        "One learning rate (3e-3) for all rows; palimpsest compare chooses one per row.",
    ),
    data=WIKITEXT,
)


def _full_recipe(bptt: int = 0, predict: str = "next") -> RecipeExperiment:
    """The published recipe; betas, clipping threshold and the cutting of the batch are ours."""
    return RecipeExperiment(
        recipe={
            "data": {"seq_len": 2048, "order": "epoch"},
            "optimizer": {
                "lr": 6e-4,
                "min_lr_ratio": 0.1,
                "warmup_steps": 100,
                "schedule": "cosine",
                "weight_decay": 0.1,
                "betas": [0.9, 0.95],
                "clip_norm": 1.0,
            },
            "train": {
                "steps": 10_000,
                "batch_size": 128,
                "grad_accumulation": 8,
                "precision": "bf16",
                "predict": predict,
                "bptt": bptt,
                "eval_every": 500,
                "eval_batches": 16,
                "save_every": 500,
                "log_every": 10,
            },
        },
        windows=2048,
        tokenizer="given",
    )


FULL = Table(
    name="grounded",
    title="The main table at 130 M parameters",
    source=PAPER,
    columns=(
        Column(metric="perplexity", title="FineWeb-Edu perplexity"),
        Column(metric="lambada_first_subword", title="LAMBADA, first subword", style="percent"),
        Column(metric="lambada_perplexity", title="LAMBADA perplexity"),
        Column(metric="tokens_per_s", title="training tok/s", style="integer"),
    ),
    experiments=(_full_recipe(),),
    rows=(
        Row(
            label="Transformer++ 12L",
            model="transformerpp-130m",
            published=PUBLISHED["Transformer++ 12L"],
        ),
        Row(
            label="Gated DeltaNet 10L",
            model="gdn-130m",
            published=PUBLISHED["Gated DeltaNet 10L"],
        ),
        Row(
            label="GPN+M 1L",
            model="gpnm-130m",
            published=PUBLISHED["GPN+M 1L"],
            experiments=(_full_recipe(predict="current"),),
        ),
        Row(
            label="GPN+M 2L",
            model="gpnm-130m-2l",
            published=PUBLISHED["GPN+M 2L"],
            experiments=(_full_recipe(bptt=512, predict="current"),),
            note="BPTT truncated at 512, as published",
        ),
        Row(
            label="GPN 1L",
            model="gpn-130m",
            published=PUBLISHED["GPN 1L"],
            experiments=(_full_recipe(predict="current"),),
        ),
    ),
    seeds=(0,),
    notes=(
        "Published: tokenizer (Llama-2), window 2048, batch 128, 10,000 steps, AdamW at 6e-4, 100 "
        "warm-up steps, cosine to 10 %, weight decay 0.1, clipping by the global norm, bf16, BPTT. "
        "Ours: the betas (0.9, 0.95), the threshold of the clipping (1), batches computed in 8 "
        "pieces, 2,048 validation windows, and the feed-forward widths that are not published.",
        "One seed, as published.",
    ),
    data={
        "train": DataSource(
            what="FineWeb-Edu, sample-10BT, without the documents held out",
            where="from HuggingFaceFW/fineweb-edu as .jsonl, or token shards; pass --train FOLDER",
        ),
        "valid": DataSource(
            what="held-out documents of FineWeb-Edu",
            where="documents that --train does not have; pass --valid FILE",
        ),
        "tokenizer": DataSource(
            what="the Llama-2 tokenizer, 32,000 pieces",
            where="tokenizer.model of Llama 2; pass --tokenizer FILE",
        ),
    },
)
