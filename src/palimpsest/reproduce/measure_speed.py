"""Seconds of a forward pass, in turn with the Transformer's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from palimpsest.evaluation.inference import inference
from palimpsest.models.language_model import LanguageModel
from palimpsest.reproduce.experiments import ThroughputExperiment
from palimpsest.reproduce.measure_text import build_row

__all__ = ["run"]

(REFERENCE,) = ThroughputExperiment.models


def run(
    config: Mapping[str, Any],
    paths: Mapping[str, str],
    folder: str,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Time one row (see ``measure_text.run``)."""
    experiment = ThroughputExperiment(**config["experiment"])
    torch.manual_seed(config["seed"])
    model = build_row(config, experiment.vocab_size)
    reference = build_row(
        {"model": REFERENCE, "fields": dict(experiment.reference)}, experiment.vocab_size
    )
    generator = torch.Generator().manual_seed(config["seed"])
    metrics: dict[str, float] = {}
    facts: dict[str, Any] = {"seconds": {}}
    for length in experiment.lengths:
        shape = (experiment.batch, length)
        ids = torch.randint(experiment.vocab_size, shape, generator=generator)
        own: list[float] = []
        other: list[float] = []
        for turn in range(experiment.warmup + experiment.iterations):
            # each goes first every other time: what comes second finds other caches
            pair = (model, own), (reference, other)
            for timed, seconds in pair if turn % 2 == 0 else reversed(pair):
                took = _forward(timed, ids)
                if turn >= experiment.warmup:
                    seconds.append(took)
            advance(ids.numel() // 3)
        metrics[f"tokens_per_s_{length}"] = ids.numel() / statistics.median(own)
        metrics[f"over_transformer_{length}"] = statistics.median(own) / statistics.median(other)
        facts["seconds"][str(length)] = own
    return {"metrics": metrics, "parameters": model.num_parameters(), "facts": facts}


def _forward(model: LanguageModel, ids: torch.Tensor) -> float:
    """Seconds until the logits are there."""
    began = time.perf_counter()
    with inference(model):
        _ = model(ids).logits
    return time.perf_counter() - began
