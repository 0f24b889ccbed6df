"""The kinds of experiments, as frozen values: everything that decides a number is a field.

``needs`` names the files that a kind reads, ``executor`` what carries it out (a module and a
function, imported when it runs), ``work`` its size in tokens for the progress display.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

__all__ = [
    "Experiment",
    "FlopsExperiment",
    "RecallExperiment",
    "RecipeExperiment",
    "TextExperiment",
    "ThroughputExperiment",
]

FORWARD_SHARE = 3  # a token of evaluation costs about this fraction of one of training


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is done with a model."""

    kind: ClassVar[str] = ""
    executor: ClassVar[str] = ""
    chance: ClassVar[bool] = True  # whether seeds make a difference
    exclusive: ClassVar[bool] = False  # whether it must have the machine for itself
    models: ClassVar[tuple[str, ...]] = ()  # measured beside the row's own, so that they count too

    @property
    def needs(self) -> tuple[str, ...]:
        """The files it reads."""
        return ()

    @property
    def optional(self) -> tuple[str, ...]:
        """The files it reads where they are given."""
        return ()

    @property
    def work(self) -> int:
        """Its size in tokens of training."""
        return 1

    def as_quick(self) -> Experiment:
        """The same in seconds; its numbers mean nothing."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class TextExperiment(Experiment):
    """Training on random windows of a text, validation on the first windows of another.

    Defaults are the byte protocol of arXiv 2606.05175: AdamW without a schedule, weight decay on
    everything, window starts from a generator of the run's seed.

    Attributes:
        steps, batch, length: optimizer steps, windows of a step, tokens of a window.
        lr, weight_decay, clip_norm: of AdamW; the decay is on every parameter.
        windows: validation windows, in order, that the figure is the mean of.
        whole: also measure the whole validation split.
        tokenizer: "bytes", or "given": the user's file.
        prepare: "wikitext" (non-empty lines, stripped, as one document) or "none".
        max_documents: documents of the training file that are read at most; 0: all.
    """

    kind = "text"
    executor = "palimpsest.reproduce.measure_text:run"

    steps: int = 80
    batch: int = 16
    length: int = 128
    lr: float = 3e-4
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    windows: int = 2048
    whole: bool = True
    tokenizer: Literal["bytes", "given"] = "bytes"
    prepare: Literal["wikitext", "none"] = "wikitext"
    max_documents: int = 0

    @property
    def needs(self) -> tuple[str, ...]:
        return ("train", "valid") if self.tokenizer == "bytes" else ("train", "tokenizer")

    @property
    def optional(self) -> tuple[str, ...]:
        return () if self.tokenizer == "bytes" else ("valid",)

    @property
    def work(self) -> int:
        evaluated = self.windows * (5 if self.whole else 1)
        return (self.steps * self.batch + evaluated // FORWARD_SHARE) * self.length

    def as_quick(self) -> TextExperiment:
        return dataclasses.replace(self, steps=2, windows=4, whole=False)


@dataclass(frozen=True, kw_only=True)
class RecallExperiment(Experiment):
    """Training on the recall task of arXiv 2606.05175; accuracy on fresh examples.

    Attributes:
        steps, batch, length: as above; lengths are those of the task.
        lr, weight_decay, clip_norm: of AdamW; which parameters decay, the architecture says.
        eval_batches: batches of a generator seeded seed + 1.
        warmup_steps: linear warm-up; 0: none.
        start_length, growth_steps: the length grows linearly from ``start_length`` to ``length``
            over so many steps; 0: it does not.
        read_gate_bias: what the read gate's bias starts at; None: as the model has it.
    """

    kind = "recall"
    executor = "palimpsest.reproduce.measure_recall:run"

    steps: int = 200
    batch: int = 32
    length: int = 128
    lr: float = 3e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    eval_batches: int = 64
    warmup_steps: int = 0
    start_length: int = 0
    growth_steps: int = 0
    read_gate_bias: float | None = None

    @property
    def work(self) -> int:
        return (self.steps + self.eval_batches // FORWARD_SHARE) * self.batch * self.length

    def length_at(self, step: int) -> int:
        """The length of the examples of a step, counted from 0."""
        if not self.growth_steps:
            return self.length
        share = min(1.0, step / self.growth_steps)
        return round(self.start_length + share * (self.length - self.start_length))

    def as_quick(self) -> RecallExperiment:
        return dataclasses.replace(self, steps=2, batch=4, eval_batches=1)


@dataclass(frozen=True, kw_only=True)
class ThroughputExperiment(Experiment):
    """Forward only, in turn with a reference model so that a slow moment hits both.

    Attributes:
        batch, lengths: rows, and tokens of a row, one after another.
        iterations: timed forwards of each length.
        warmup: forwards before them.
        reference: fields of the Transformer that times are relative to.
    """

    kind = "throughput"
    executor = "palimpsest.reproduce.measure_speed:run"
    chance = False
    exclusive = True
    models = ("transformer",)

    batch: int = 8
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    iterations: int = 20
    warmup: int = 3
    vocab_size: int = 259
    reference: Mapping[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> int:
        return self.batch * sum(self.lengths) * (self.iterations + self.warmup) // FORWARD_SHARE

    def as_quick(self) -> ThroughputExperiment:
        return dataclasses.replace(self, batch=1, iterations=1, warmup=1)


@dataclass(frozen=True, kw_only=True)
class FlopsExperiment(Experiment):
    """Counted floating-point operations of a forward pass, by the package's own count.

    Attributes:
        lengths: tokens.
        vocab_size: of the model.
    """

    kind = "flops"
    executor = "palimpsest.reproduce.measure_flops:run"
    chance = False

    lengths: tuple[int, ...] = (64, 128, 512)
    vocab_size: int = 259


@dataclass(frozen=True, kw_only=True)
class RecipeExperiment(Experiment):
    """A run of the product's training loop, then its evaluation with windows.

    Attributes:
        recipe: the sections "data", "optimizer" and "train" of a recipe, without paths.
        windows: validation windows of ``data.seq_len`` tokens at most; 0: all.
        tokenizer: "bytes", or "given": the user's file.
    """

    kind = "recipe"
    executor = "palimpsest.reproduce.measure_recipe:run"

    recipe: Mapping[str, Mapping[str, Any]]
    windows: int = 0
    tokenizer: Literal["bytes", "given"] = "bytes"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("train", "valid") if self.tokenizer == "bytes" else ("train", "valid", "tokenizer")

    @property
    def optional(self) -> tuple[str, ...]:
        return () if self.tokenizer == "bytes" else ("lambada",)

    @property
    def work(self) -> int:
        train, data = self.recipe["train"], self.recipe["data"]
        return int(train["steps"] * train["batch_size"] * data["seq_len"])

    def as_quick(self) -> RecipeExperiment:
        small: dict[str, dict[str, Any]] = {k: dict(v) for k, v in self.recipe.items()}
        small["train"] |= {
            "steps": 2,
            "batch_size": 2,
            "grad_accumulation": 1,
            "eval_every": 0,
            "log_every": 1,
        }
        small["data"]["seq_len"] = min(32, small["data"]["seq_len"])
        small["train"]["bptt"] = min(small["train"].get("bptt", 0), small["data"]["seq_len"])
        small["optimizer"]["warmup_steps"] = 1
        return dataclasses.replace(self, recipe=small, windows=2)
