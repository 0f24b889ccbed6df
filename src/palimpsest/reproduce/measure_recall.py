"""The recall protocol of arXiv 2606.05175: train on fresh examples, count right answers.

Weights and dropout come from ``torch.manual_seed(seed)``, examples from a generator of the same
seed, those of the evaluation from one seeded seed + 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from palimpsest.errors import ConfigError
from palimpsest.models.language_model import LanguageModel
from palimpsest.reproduce.experiments import RecallExperiment
from palimpsest.reproduce.measure_text import build_row, require_finite
from palimpsest.tasks import RecallTask, Task
from palimpsest.training.optimizer import make_optimizer, set_lr
from palimpsest.training.recipe import OptimizerRecipe

__all__ = ["accuracy", "run", "subnormals_flushed"]

Advance = Callable[[int], None]


def run(
    config: Mapping[str, Any], paths: Mapping[str, str], folder: str, advance: Advance
) -> dict[str, Any]:
    """Train and measure one row with one seed (see ``measure_text.run``)."""
    experiment, seed = RecallExperiment(**config["experiment"]), config["seed"]
    task = RecallTask(length=experiment.length)
    with subnormals_flushed():
        torch.manual_seed(seed)
        model = build_row({**config, "parameters": None}, task.vocab_size)
        if experiment.read_gate_bias is not None:
            set_read_gate_bias(model, experiment.read_gate_bias)
        loss = _train(model, task, experiment, seed, advance)
        share = accuracy(model, task, seed + 1, experiment.eval_batches, experiment.batch)
    return {
        "metrics": {"recall": share},
        "parameters": model.num_parameters(),
        "facts": {"last_loss": loss, "chance": task.chance, "task": task.name},
    }


def _train(
    model: LanguageModel,
    task: RecallTask,
    experiment: RecallExperiment,
    seed: int,
    advance: Advance,
) -> float:
    """All steps; the loss of the last one, nats."""
    recipe = OptimizerRecipe(
        lr=experiment.lr, weight_decay=experiment.weight_decay, betas=(0.9, 0.999)
    )
    optimizer = make_optimizer(model, recipe)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    last = 0.0
    for step in range(experiment.steps):
        if experiment.warmup_steps:
            set_lr(optimizer, min(1.0, (step + 1) / experiment.warmup_steps))
        length = experiment.length_at(step)
        examples = dataclasses.replace(task, length=length).batch(experiment.batch, generator)
        loss = model(examples.inputs, targets=examples.labels).loss
        assert loss is not None
        require_finite(loss, step, seed)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), experiment.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        last = float(loss.detach())
        advance(experiment.batch * experiment.length)
    return last


@torch.no_grad()
def accuracy(model: LanguageModel, task: Task, seed: int, batches: int, batch: int) -> float:
    """The share of right answers on fresh examples, in evaluation mode.

    Args:
        model: comes back in training mode.
        task: what is asked.
        seed: of the examples' generator.
        batches: how many.
        batch: examples of each.
    """
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    scores = []
    for _ in range(batches):
        examples = task.batch(batch, generator)
        scores.append(task.accuracy(model(examples.inputs).logits, examples.labels))
    model.train()
    return sum(scores[1:], scores[0]).accuracy


def set_read_gate_bias(model: LanguageModel, value: float) -> None:
    """Start the bias of every read gate at a value.

    Raises:
        ConfigError: the model has no read gate.
    """
    biases = [p for name, p in model.named_parameters() if name.endswith("read_gate.bias")]
    if not biases:
        raise ConfigError(f"read_gate_bias={value}: {model.registry_name} has no read gate")
    for bias in biases:
        torch.nn.init.constant_(bias, value)


@contextlib.contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Take numbers too small for full precision as zero inside the block.

    The loss sits on the last position alone: gradients that have decayed over a hundred tokens are
    subnormal numbers, with which a CPU multiplies many times slower.
    """
    before = float(torch.tensor(1e-39) * 0.5) == 0.0  # how it is set now
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
