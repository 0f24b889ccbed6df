"""What a training run is: frozen sections that a reader can compare line by line.

A recipe says everything that decides the numbers of a run (and where its text lies); the run folder
keeps it fully resolved. Reading it from TOML and changing single values is in ``recipe_file.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from palimpsest.errors import ConfigError

__all__ = ["DataRecipe", "ModelRecipe", "OptimizerRecipe", "Recipe", "TrainRecipe"]

SEED_LIMIT = 1 << 63


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Which model.

    Attributes:
        name: an architecture or a preset (``palimpsest.list_models()``, ``list_presets()``).
        fields: its fields; for a preset, those to change. A ``vocab_size`` that neither names is
            that of the tokenizer, and a preset's grows to that of the tokenizer; a task sets its
            own unless it is named here.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """What is read: text (``train``), or a synthetic task (``task``).

    Attributes:
        train: files or folders of text, or one folder of token shards.
        validation: the same for validation; empty takes ``validation_fraction`` of the text.
        validation_fraction: share of the training text held out, 0 … 1; 0 holds nothing out.
            Ignored where ``validation`` is given.
        tokenizer: "bytes", a tokenizer file or a folder that holds one.
        text_field: the field of a JSON object that holds the text.
        prepare: "none", or "wikitext" (its non-empty lines as one document).
        seq_len: tokens of a window; the length of a task's examples.
        order: "epoch" reads every window once per epoch in a random order; "random" draws windows
            with replacement; "stream" lets every row read on where it stopped, and carries the
            state from step to step.
        reset_at_documents: with "stream", whether the state is cleared where a document starts.
        task: "recall" or "mqar"; "" reads text.
        task_fields: the task's fields; ``pairs`` may be a list, whose entries take turns.
    """

    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    validation_fraction: float = 0.05
    tokenizer: str = "bytes"
    text_field: str = "text"
    prepare: Literal["none", "wikitext"] = "none"
    seq_len: int = 256
    order: Literal["epoch", "random", "stream"] = "epoch"
    reset_at_documents: bool = True
    task: Literal["", "recall", "mqar"] = ""
    task_fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least(self, "data", 1, "seq_len")
        if not 0.0 <= self.validation_fraction < 1.0:
            raise ConfigError(
                f"data.validation_fraction={self.validation_fraction}: must be from 0 to below 1"
            )
        if self.task and (self.train or self.validation):
            raise ConfigError(
                f"data.task={self.task!r} with data.train or data.validation: "
                "a task makes its own examples; give one of the two"
            )
        if self.task and self.order == "stream":
            raise ConfigError(
                f"data.order='stream' with data.task={self.task!r}: the examples of a task do not "
                "go on; use 'epoch'"
            )
        if self.task_fields and not self.task:
            raise ConfigError("data.task_fields without data.task: name the task, such as 'recall'")


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW and its learning rate over the steps.

    Attributes:
        lr: peak learning rate.
        min_lr_ratio: the floor of the cosine, as a share of ``lr``, 0 … 1.
        warmup_steps: optimizer steps of linear warm-up.
        schedule: "cosine" falls to the floor at the last step; "constant" stays at ``lr``.
        weight_decay: decoupled, on the parameters that the architecture says decay.
        betas: the two decay rates of AdamW's moments.
        eps: AdamW's denominator floor.
        clip_norm: largest global gradient norm; 0 does not clip.
    """

    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    warmup_steps: int = 100
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "eps"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)}: must be above 0")
        for name in ("weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)}: must be at least 0")
        if not 0.0 <= self.min_lr_ratio <= 1.0:
            raise ConfigError(f"optimizer.min_lr_ratio={self.min_lr_ratio}: must be from 0 to 1")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ConfigError(f"optimizer.betas={list(self.betas)}: both must be from 0 to below 1")
        _at_least(self, "optimizer", 0, "warmup_steps")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """The loop.

    Attributes:
        steps: optimizer steps in all.
        batch_size: windows of one optimizer step, all pieces together.
        grad_accumulation: how many pieces a batch is computed in, one after another. It divides
            the memory and changes nothing else: the loss is the mean over all targets of the step.
        precision: "fp32", or "bf16" products with fp32 parameters and states.
        seed: of the initial parameters, the order of the data and dropout, 0 … 2^63 - 1.
        predict: "next" (position t predicts token t + 1) or "current" (the published reading of
            Grounded Prediction Networks: it predicts token t before it is seen).
        bptt: tokens that gradients flow back through; 0 is the whole window. The state is carried
            over a cut, only its gradient ends there.
        eval_every: optimizer steps between validations, and one at the end; 0 never.
        eval_batches: batches of a validation at most (for a task: per number of pairs).
        save_every: optimizer steps between checkpoints, and one at the end; 0 only at the end.
        log_every: optimizer steps between rows of the metrics.
        keep_checkpoints: how many checkpoints stay, the newest ones; 0 keeps all.
        keep_best: also keep the checkpoint with the lowest validation loss, as RUN/best.
        init_from: a run, checkpoint or model folder whose weights the run starts from; in a
            resolved recipe the folder of the weights themselves. "" draws them from the seed.
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1", …
    """

    steps: int = 1000
    batch_size: int = 16
    grad_accumulation: int = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    predict: Literal["next", "current"] = "next"
    bptt: int = 0
    eval_every: int = 100
    eval_batches: int = 20
    save_every: int = 500
    log_every: int = 10
    keep_checkpoints: int = 2
    keep_best: bool = False
    init_from: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        positive = ("steps", "batch_size", "grad_accumulation", "eval_batches", "log_every")
        _at_least(self, "train", 1, *positive)
        _at_least(self, "train", 0, "bptt", "eval_every", "save_every", "keep_checkpoints")
        if self.keep_best and self.eval_every == 0:
            raise ConfigError(
                "train.keep_best=true with train.eval_every=0: the best is chosen by validation; "
                "set eval_every"
            )
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"train.seed={self.seed}: must be from 0 to 2^63 - 1")
        if self.batch_size % self.grad_accumulation:
            raise ConfigError(
                f"train.grad_accumulation={self.grad_accumulation}: must divide "
                f"train.batch_size={self.batch_size}, the windows of all pieces together"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run. See :func:`palimpsest.training.load_recipe`."""

    model: ModelRecipe
    data: DataRecipe = field(default_factory=DataRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)

    def __post_init__(self) -> None:
        if self.train.bptt > self.data.seq_len:
            raise ConfigError(
                f"train.bptt={self.train.bptt}: is more than data.seq_len={self.data.seq_len}; "
                "use 0 for the whole window"
            )
        if self.data.task and self.train.predict == "current":
            raise ConfigError(
                f"train.predict='current' with data.task={self.data.task!r}: a task's answers "
                "belong to the position that asks; use 'next'"
            )

    def replace(self, section: str, **values: Any) -> Recipe:
        """A recipe with some values of one section changed."""
        changed = dataclasses.replace(getattr(self, section), **values)
        return dataclasses.replace(self, **{section: changed})


def _at_least(section: object, label: str, least: int, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if value < least:
            raise ConfigError(f"{label}.{name}={value}: must be at least {least}")
