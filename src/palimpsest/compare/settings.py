"""What is compared, and under which conditions all models train."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from palimpsest.errors import ConfigError
from palimpsest.training.recipe_file import parse_assignment, recipe_from_dict

__all__ = ["CompareSettings", "ModelChoice", "parse_model"]

EVALUATIONS = 20  # points of a curve
WARMUP_SHARE = 20  # one step in so many


@dataclass(frozen=True)
class ModelChoice:
    """An architecture or preset, and the fields of it that are given.

    Attributes:
        label: what tables call it.
        name: registered name.
        fields: as given; the others follow from the size.
    """

    label: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def parse_model(text: str) -> ModelChoice:
    """``name`` or ``name:field=value,field=value``; ``label@name:…`` gives it a label.

    Raises:
        ConfigError: a field without a value.
    """
    label, at, rest = text.rpartition("@")
    name, _, assignments = rest.partition(":")
    given = [part for part in assignments.split(",") if part.strip()]
    fields = dict(parse_assignment(part) for part in given)
    if at and not label:
        raise ConfigError(f"model {text!r}: the label before @ is empty")
    return ModelChoice(label or rest, name, fields)


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Conditions, the same for every model.

    Attributes:
        models: what is compared (:func:`parse_model`).
        train: training text.
        valid: validation text, which also chooses the learning rates.
        sizes: parameters.
        steps: optimizer steps of every run.
        batch_size: windows of a step.
        seq_len: tokens of a window.
        lrs: the grid; each rate is tried with the first seed, the best is run with all.
        seeds: of weights and the order of the data, which is the same for every model.
        baseline: label of the model that gaps are to; "" takes the first.
        warmup_steps: None takes a twentieth of the steps.
        min_lr_ratio: where the cosine ends, as a share of the peak.
        weight_decay, betas, clip_norm: of AdamW and clipping.
        eval_every: steps between the points of a curve; None gives 20 points.
        eval_batches: batches of a point on a curve; the last figure has the whole validation text.
        tokenizer: "bytes", or a tokenizer's file or folder.
        prepare: "none", or "wikitext" (non-empty lines as one document).
        dropout: of the models that have one and whose field is not given.
        tolerance: largest deviation from a size, as a share.
    """

    models: tuple[ModelChoice, ...]
    train: Path
    valid: Path
    sizes: tuple[int, ...] = (300_000,)
    steps: int = 2000
    batch_size: int = 16
    seq_len: int = 256
    lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    seeds: tuple[int, ...] = (0, 1, 2)
    baseline: str = ""
    warmup_steps: int | None = None
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    eval_every: int | None = None
    eval_batches: int = 20
    tokenizer: str = "bytes"
    prepare: Literal["none", "wikitext"] = "none"
    dropout: float = 0.0
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name in ("models", "sizes", "lrs", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ConfigError(f"{name} is empty: give at least one")
            keys = [v.label for v in values] if name == "models" else list(values)
            if len(set(keys)) < len(keys):
                raise ConfigError(f"{name}={keys}: one of them is given twice")
        for name in ("steps", "batch_size", "seq_len", "eval_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.eval_every is not None and self.eval_every < 1:
            raise ConfigError(f"eval_every={self.eval_every}: must be at least 1, or left out")
        if self.warmup_steps is not None and self.warmup_steps >= self.steps:
            raise ConfigError(
                f"warmup_steps={self.warmup_steps}: must be fewer than steps={self.steps}, or the "
                "chosen rate is never reached"
            )
        for size in self.sizes:
            if size < 1:
                raise ConfigError(f"sizes={list(self.sizes)}: must be parameters, at least 1 each")
        if not 0.0 < self.tolerance < 1.0:
            raise ConfigError(f"tolerance={self.tolerance}: must be above 0 and below 1")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout={self.dropout}: must be from 0 to below 1")
        for lr in self.lrs:
            if not math.isfinite(lr):
                raise ConfigError(f"lrs={list(self.lrs)}: must be finite numbers above 0")
            for seed in self.seeds:  # whatever a recipe refuses, before the first run and not in it
                recipe = self.recipe(lr)
                recipe["train"]["seed"] = seed
                recipe_from_dict({"model": {"name": self.models[0].name}, **recipe})
        labels = [model.label for model in self.models]
        if self.baseline and self.baseline not in labels:
            raise ConfigError(
                f"baseline={self.baseline!r}: is none of the models compared: {', '.join(labels)}"
            )

    @property
    def base(self) -> str:
        """The label of the baseline."""
        return self.baseline or self.models[0].label

    @property
    def tokens(self) -> int:
        """What every run reads."""
        return self.steps * self.batch_size * self.seq_len

    def recipe(self, lr: float) -> dict[str, dict[str, Any]]:
        """The sections of a recipe with one learning rate."""
        warmup = self.warmup_steps
        return {
            "data": {"seq_len": self.seq_len, "order": "epoch", "prepare": self.prepare},
            "optimizer": {
                "lr": lr,
                "min_lr_ratio": self.min_lr_ratio,
                "warmup_steps": self.steps // WARMUP_SHARE if warmup is None else warmup,
                "schedule": "cosine",
                "weight_decay": self.weight_decay,
                "betas": list(self.betas),
                "clip_norm": self.clip_norm,
            },
            "train": {
                "steps": self.steps,
                "batch_size": self.batch_size,
                "eval_every": self.eval_every or max(1, self.steps // EVALUATIONS),
                "eval_batches": self.eval_batches,
                "log_every": max(1, self.steps // 100),
                "device": "cpu",
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values = dataclasses.asdict(self)
        return {**values, "train": self.train.name, "valid": self.valid.name}
