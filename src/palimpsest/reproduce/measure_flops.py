"""Counted operations of a forward pass over one text, in MFLOP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from palimpsest.evaluation.flops import count_flops
from palimpsest.reproduce.experiments import FlopsExperiment
from palimpsest.reproduce.measure_text import build_row

__all__ = ["run"]

MEGA = 1e6


def run(
    config: Mapping[str, Any],
    paths: Mapping[str, str],
    folder: str,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Count one row by the paper's convention and in full (see ``measure_text.run``)."""
    experiment = FlopsExperiment(**config["experiment"])
    model = build_row(config, experiment.vocab_size)
    metrics: dict[str, float] = {}
    for length in experiment.lengths:
        count = count_flops(model, length)
        if count.published_total is not None:
            metrics[f"mflop_paper_{length}"] = count.published_total / MEGA
        metrics[f"mflop_full_{length}"] = count.total / MEGA
    advance(experiment.work)
    return {"metrics": metrics, "parameters": model.num_parameters(), "facts": {}}
