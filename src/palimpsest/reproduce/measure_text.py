"""The text protocol of arXiv 2606.05175: random windows, a few steps, the first windows measured.

Windows come from a generator of the run's seed, weights and dropout from ``torch.manual_seed``.

Legend: B batch, T time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ConfigError, InputError, counted
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.registry import build
from palimpsest.reproduce.experiments import TextExperiment
from palimpsest.text import (
    Corpus,
    Document,
    RandomWindowSampler,
    Tokenizer,
    consecutive_windows,
    load_corpus,
    load_tokenizer,
    read_documents,
    split_documents,
)
from palimpsest.training import TrainingDivergedError
from palimpsest.training.optimizer import fused_adamw_works

__all__ = [
    "build_row",
    "first_windows",
    "optimizer_decaying_everything",
    "require_finite",
    "run",
    "train_on_windows",
]

Advance = Callable[[int], None]
HELD_OUT = 0.05  # of the documents, where no validation text is given
SPECIFIED = 1024  # windows of the published program's figures


def run(
    config: Mapping[str, Any], paths: Mapping[str, str], folder: str, advance: Advance
) -> dict[str, Any]:
    """Train and measure one row with one seed.

    Args:
        config: "experiment", "model", "fields", "parameters" and "seed", as plain values.
        paths: the files by flag.
        folder: not used; nothing is kept.
        advance: called with tokens done.

    Returns:
        "metrics", "parameters" and "facts".
    """
    experiment = TextExperiment(**config["experiment"])
    tokenizer = load_tokenizer("bytes" if experiment.tokenizer == "bytes" else paths["tokenizer"])
    training, validation = _corpora(experiment, tokenizer, paths)
    for name, corpus in (("train", training), ("valid", validation)):
        if corpus.num_tokens < experiment.length + 2:
            raise InputError(
                f"--{name} {paths.get(name, '(the documents held out)')}: has "
                f"{counted(corpus.num_tokens, 'token')}, and a window takes "
                f"{experiment.length + 2}; give a longer text"
            )
    torch.manual_seed(config["seed"])
    model = build_row(config, tokenizer.vocab_size)
    model = train_on_windows(model, training, experiment, config["seed"], advance)
    losses = first_windows(model, validation, experiment, advance)
    metrics = _metrics(losses, experiment)
    return {
        "metrics": metrics,
        "parameters": model.num_parameters(),
        "facts": {
            "windows_measured": min(len(losses), experiment.windows),
            "windows_of_the_split": (validation.num_tokens - 1) // experiment.length,
            "training_tokens": training.num_tokens,
            "validation_tokens": validation.num_tokens,
        },
    }


def build_row(config: Mapping[str, Any], vocab_size: int) -> LanguageModel:
    """The row's model with fresh parameters; its size must be the published one.

    Raises:
        ConfigError: it has another number of parameters.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")  # every table says so
        model = build(config["model"], **{"vocab_size": vocab_size, **config["fields"]})
    wanted = config.get("parameters")
    if wanted is not None and model.num_parameters() != wanted:
        raise ConfigError(
            f"{config['model']} has {model.num_parameters():,} parameters, the paper's has "
            f"{wanted:,}; the row's fields are not the published ones"
        )
    return model


def train_on_windows(
    model: LanguageModel,
    corpus: Corpus,
    experiment: TextExperiment,
    seed: int,
    advance: Advance | None = None,
) -> LanguageModel:
    """Some steps on random windows; the model comes back in training mode.

    Args:
        model: fresh, drawn after ``torch.manual_seed(seed)``, from which dropout goes on.
        corpus: the training text.
        experiment: the protocol.
        seed: of the windows' generator.
        advance: called with tokens done.

    Raises:
        TrainingDivergedError: the loss is no finite number.
    """
    optimizer = optimizer_decaying_everything(model, experiment.lr, experiment.weight_decay)
    sampler = RandomWindowSampler(corpus, experiment.length, experiment.batch, seed=seed)
    model.train()
    for step in range(experiment.steps):
        batch = sampler.batch_at(step)
        loss = model(batch.inputs, targets=batch.targets).loss
        assert loss is not None
        require_finite(loss, step, seed)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), experiment.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if advance is not None:
            advance(experiment.batch * experiment.length)
    return model


def require_finite(loss: Tensor, step: int, seed: int) -> None:
    """Stop a run whose loss, before a step's update, says that it has diverged.

    Raises:
        TrainingDivergedError: the loss is infinite or no number.
    """
    value = float(loss.detach())
    if not math.isfinite(value):
        raise TrainingDivergedError(f"the loss is {value} at step {step} of seed {seed}")


def optimizer_decaying_everything(
    model: LanguageModel, lr: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with weight decay on every parameter, as published.

    A parameter with a rate of its own, such as a learned temperature, which the published models
    do not have, keeps its rate and does not decay.
    """
    groups = model.param_groups(lr, weight_decay)
    for group in groups:
        if group["lr"] == lr:
            group["weight_decay"] = weight_decay
    fused = fused_adamw_works(model.device, {p.dtype for p in model.parameters()})
    return torch.optim.AdamW(groups, lr=lr, fused=fused or None)


@torch.no_grad()
def first_windows(
    model: LanguageModel,
    corpus: Corpus,
    experiment: TextExperiment,
    advance: Advance | None = None,
) -> list[float]:
    """The mean loss of each window in order: the first ones, or all where asked; nats."""
    model.eval()
    available = (corpus.num_tokens - 1) // experiment.length
    limit = None if experiment.whole else min(experiment.windows, available)
    losses: list[float] = []
    for batch in consecutive_windows(corpus, experiment.length, experiment.batch, limit=limit):
        losses_BT = model(batch.inputs, targets=batch.targets).token_losses
        assert losses_BT is not None
        losses += losses_BT.double().mean(1).tolist()
        if advance is not None:
            advance(batch.inputs.numel() // 3)
    return losses


def _metrics(losses: list[float], experiment: TextExperiment) -> dict[str, float]:
    """Means over the first windows; every token of a byte text counts, BOS and EOS too."""

    def mean(count: int) -> float:
        return math.fsum(losses[:count]) / min(count, len(losses))

    if experiment.tokenizer == "given":
        return {"token_loss": mean(experiment.windows)}
    metrics = {"bits_per_byte": mean(experiment.windows) / math.log(2)}
    if len(losses) >= SPECIFIED:
        metrics["bits_per_byte_1024"] = mean(SPECIFIED) / math.log(2)
    if experiment.whole:
        metrics["bits_per_byte_split"] = mean(len(losses)) / math.log(2)
    return metrics


def _corpora(
    experiment: TextExperiment, tokenizer: Tokenizer, paths: Mapping[str, str]
) -> tuple[Corpus, Corpus]:
    """Training and validation text."""
    if "valid" in paths and not experiment.max_documents:
        training = load_corpus(paths["train"], tokenizer, prepare=experiment.prepare)
        return training, load_corpus(paths["valid"], tokenizer, prepare=experiment.prepare)
    documents: list[Document] = []
    for document in read_documents(paths["train"]):
        if len(documents) == (experiment.max_documents or -1):
            break
        documents.append(document)
    if "valid" in paths:
        valid = load_corpus(paths["valid"], tokenizer, prepare=experiment.prepare)
    else:
        try:
            documents, held_out = split_documents(documents, HELD_OUT)
        except ValueError as failure:
            raise InputError(str(failure)) from failure
        valid = Corpus.from_documents(held_out, tokenizer, prepare=experiment.prepare)
    return Corpus.from_documents(documents, tokenizer, prepare=experiment.prepare), valid
