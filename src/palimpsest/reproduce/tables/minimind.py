"""MiniMind's tokenised benchmark: mean token loss after 120 steps.

Source: Xiao, arXiv 2606.05175.
"""

from __future__ import annotations

from palimpsest.reproduce.experiments import TextExperiment
from palimpsest.reproduce.table import Column, DataSource, Row, Table
from palimpsest.reproduce.tables.triple import GATED, PAPER, S8, SAME, SIZES

__all__ = ["MINIMIND"]


MINIMIND = Table(
    name="minimind",
    title="MiniMind's tokenizer and corpus, 120 steps, three seeds",
    source=PAPER,
    columns=(Column(metric="token_loss", title="mean token loss (nats)"),),
    experiments=(
        TextExperiment(
            steps=120,
            tokenizer="given",
            prepare="none",
            windows=512,
            whole=False,
            max_documents=20_000,
        ),
    ),
    rows=(
        Row(
            label="Transformer",
            model="transformer",
            fields=SIZES,
            note="published: no figure; the three others are below it",
        ),
        Row(
            label="Transformer+Triple",
            model="transformer-triple",
            fields=S8,
            published={"token_loss": 7.239},
        ),
        Row(
            label="Triple-Hybrid, published convolution",
            model="triple-hybrid",
            fields={**S8, **SAME},
            published={"token_loss": 7.035},
        ),
        Row(label="Triple-Hybrid, causal", model="triple-hybrid", fields=S8, note="ours"),
        Row(
            label="Gated Hybrid, published start and convolution",
            model="gated-hybrid",
            fields={**GATED, **SAME},
            published={"token_loss": 6.766},
        ),
        Row(
            label="Gated Hybrid, published start, causal",
            model="gated-hybrid",
            fields=GATED,
            note="ours",
        ),
        Row(
            label="Gated Hybrid, stable start, causal",
            model="gated-hybrid",
            fields=S8,
            note="ours",
        ),
    ),
    notes=(
        "Width, batch and learning rate were not published. Ours: d_model 64, 3 layers, 4 heads, "
        "state_dim 8, batch 16 of 128 tokens, learning rate 3e-4, weight decay 0.05, clipping at "
        "1, dropout 0.1; the first 20,000 documents of the corpus; the loss is the mean over the "
        "first 512 windows of --valid, or of 5 % of the documents held out by their hash.",
        "Another corpus than MiniMind's gives other losses: read the order of the rows only.",
        "Rows labelled 'not causal' have the published convolution, which sees the next two "
        "tokens: their losses are no language-model results.",
    ),
    data={
        "train": DataSource(
            what="MiniMind's pre-training corpus (pretrain_hq.jsonl), or any text",
            where="from MiniMind's data set page (jingyaogong/minimind_dataset); .jsonl with a "
            "field 'text', or .txt; pass --train FILE",
        ),
        "tokenizer": DataSource(
            what="MiniMind's tokenizer, 6,400 entries (a folder with tokenizer.json)",
            where="from the repository jingyaogong/minimind; pass --tokenizer FOLDER",
        ),
    },
)
