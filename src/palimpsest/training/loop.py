"""One optimizer step, and the loop of steps with validation, metrics and checkpoints.

The loss of a step is the sum over all its targets divided by their number, whatever pieces and
segments it is computed in. A step waits for the device once, for its loss and gradient norm.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import PalimpsestError
from palimpsest.models import LanguageModel
from palimpsest.state import State
from palimpsest.training.batch import TrainingData
from palimpsest.training.checkpoint import Checkpoint, latest_checkpoint, save_best, save_checkpoint
from palimpsest.training.log import MetricsLog
from palimpsest.training.optimizer import (
    clip_to_norm,
    gradient_norm,
    lr_factor,
    make_optimizer,
    parameters_of,
    set_lr,
)
from palimpsest.training.progress import TrainingProgress
from palimpsest.training.recipe import Recipe
from palimpsest.training.signals import StopSignals

__all__ = ["StepResult", "Trainer", "TrainingDivergedError"]


class TrainingDivergedError(PalimpsestError, ArithmeticError):
    """The loss or the gradient norm is not finite."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step gave.

    Attributes:
        loss: nats per target.
        grad_norm: global norm of the gradients before clipping.
        lr: the highest rate of a parameter group.
    """

    loss: float
    grad_norm: float
    lr: float


class Trainer:
    """A model, its optimizer and its data, between two steps.

    Args:
        recipe: resolved.
        model: on its device.
        data: what it reads.
        run: the run's folder, for checkpoints and messages.
    """

    def __init__(self, recipe: Recipe, model: LanguageModel, data: TrainingData, run: Path) -> None:
        self.recipe = recipe
        self.model = model
        self.data = data
        self.run = run
        self.step = 0
        self.elapsed = 0.0
        self.optimizer = make_optimizer(model, recipe.optimizer)
        self._parameters = parameters_of(self.optimizer)
        self._states: list[State | None] = [None] * recipe.train.grad_accumulation

    # -- one step -----------------------------------------------------------------------------

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        return torch.autocast(
            self.model.device.type,
            dtype=torch.bfloat16,
            enabled=self.recipe.train.precision == "bf16",
        )

    def train_step(self) -> StepResult:
        """One optimizer step.

        Raises:
            TrainingDivergedError: before anything is changed by it.
        """
        optimizer, train = self.recipe.optimizer, self.recipe.train
        factor = lr_factor(self.step, optimizer, train.steps)
        set_lr(self.optimizer, factor)
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum, states = self._accumulate_gradients()
        norm = gradient_norm(self._parameters)
        loss, grad_norm = torch.stack([loss_sum, norm.to(loss_sum.dtype)]).tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise self._diverged(loss, grad_norm)
        clip_to_norm(self._parameters, grad_norm, optimizer.clip_norm)
        self.optimizer.step()
        self._states = states
        self.step += 1
        return StepResult(loss, grad_norm, max(g["lr"] for g in self.optimizer.param_groups))

    def _accumulate_gradients(self) -> tuple[Tensor, list[State | None]]:
        """Add up the gradients of a batch; its mean loss, and the states to carry on."""
        train, model = self.recipe.train, self.model
        batch = self.data.source.batch_at(self.step)
        n_targets = max(1, batch.n_targets)
        sums: list[Tensor] = []
        carried: list[State | None] = []
        for piece, start in zip(batch.pieces(train.grad_accumulation), self._states, strict=True):
            state = start
            for segment in piece.to(model.device).segments(train.bptt):
                with self.autocast():
                    out = model(
                        segment.inputs,
                        state,
                        targets=segment.targets,
                        reset_mask=segment.reset,
                        predict=train.predict,
                    )
                assert out.loss_sum is not None
                share = out.loss_sum / n_targets
                torch.autograd.backward(share)
                sums.append(share.detach())
                state = out.state.detach()
            carried.append(state if self.data.source.carries_state else None)
        return torch.stack(sums).sum(), carried

    # -- the loop -----------------------------------------------------------------------------

    def fit(
        self,
        log: MetricsLog,
        progress: TrainingProgress,
        stop: StopSignals,
        *,
        stop_after: int | None = None,
    ) -> None:
        """Step until the recipe's last step, a signal, or ``stop_after``; leaves a checkpoint.

        A validation due at a checkpoint's step comes after the save: when a signal stops the run
        between the two, the resumed run begins with it.
        """
        train = self.recipe.train
        last = train.steps if stop_after is None else min(stop_after, train.steps)
        self._validate_if_due(log, progress)
        saved = self.step if latest_checkpoint(self.run) is not None else -1
        self.model.train()
        tokens_since, seconds_since = 0, 0.0
        first = self.step + 1
        while self.step < last and stop.received is None:
            began = time.perf_counter()
            result = self.train_step()
            took = time.perf_counter() - began
            self.elapsed += took
            tokens_since += self._tokens_per_step
            seconds_since += took
            rate = tokens_since / seconds_since
            if self.step % train.log_every == 0 or self.step == train.steps:
                log.add(self._row("train", tokens_per_s=round(rate, 1), **vars(result)))
                tokens_since, seconds_since = 0, 0.0
            elif self.step == first:  # its compilation and first touches of memory are no speed
                tokens_since, seconds_since = 0, 0.0
            progress.update(self.step, result.loss, rate)
            if train.save_every and self.step % train.save_every == 0:
                self.save(log)
                saved = self.step
            if stop.received is None:
                self._validate_if_due(log, progress)
        if saved != self.step:
            self.save(log)

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        return self.step * self._tokens_per_step

    @property
    def _tokens_per_step(self) -> int:
        return self.recipe.train.batch_size * self.recipe.data.seq_len

    def _row(self, kind: str, **values: Any) -> dict[str, Any]:
        return {
            "kind": kind,
            "step": self.step,
            "tokens": self.tokens,
            **values,
            "elapsed": round(self.elapsed, 3),
        }

    def _validate_if_due(self, log: MetricsLog, progress: TrainingProgress) -> None:
        train, data = self.recipe.train, self.data
        due = self.step > 0 and (
            self.step == train.steps or (train.eval_every > 0 and self.step % train.eval_every == 0)
        )
        if data.validation is None or not due or self.step in log.validated:
            return
        began = time.perf_counter()
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            measured = data.validation.measure(self.model, self.autocast)
        self.model.train(was_training)
        self.elapsed += time.perf_counter() - began
        if not math.isfinite(measured["loss"]):
            raise self._diverged(measured["loss"], math.nan, what="validation loss")
        row = self._row("validation", **measured)
        if train.keep_best and row["loss"] < log.lowest_before(self.step):
            # before the row: a kill between the two repeats the validation
            save_best(self.run, self._checkpoint(log), row, tokenizer=data.tokenizer)
        log.add(row)
        progress.say(describe_validation(row, train.steps))

    # -- checkpoints --------------------------------------------------------------------------

    def save(self, log: MetricsLog) -> Path:
        """Write a checkpoint of this moment."""
        keep = self.recipe.train.keep_checkpoints
        return save_checkpoint(
            self.run, self._checkpoint(log), tokenizer=self.data.tokenizer, keep=keep
        )

    def _checkpoint(self, log: MetricsLog) -> Checkpoint:
        log.sync()
        generators: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.model.device)
        kept = [state for state in self._states if state is not None]
        return Checkpoint(
            step=self.step,
            elapsed=self.elapsed,
            model=self.model,
            optimizer=self.optimizer.state_dict(),
            training={"source": self.data.source.state_dict(), **generators},
            state=State.cat(kept) if kept else None,
            metrics=log.digest(),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up a checkpoint; its model must be this trainer's."""
        self.step = checkpoint.step
        self.elapsed = checkpoint.elapsed
        here = self.optimizer.param_groups[0]["fused"]  # what works on this device
        self.optimizer.load_state_dict(checkpoint.optimizer)
        for group in self.optimizer.param_groups:
            group["fused"] = here
        torch.set_rng_state(checkpoint.training["cpu"])
        if self.model.device.type == "cuda" and "cuda" in checkpoint.training:
            torch.cuda.set_rng_state(checkpoint.training["cuda"], self.model.device)
        if checkpoint.training["source"]:
            self.data.source.load_state_dict(checkpoint.training["source"])
        if checkpoint.state is not None:
            count = self.recipe.train.grad_accumulation
            rows = checkpoint.state.batch_size // count
            self._states = [
                checkpoint.state.select(slice(i * rows, (i + 1) * rows)) for i in range(count)
            ]

    # -- when it goes wrong -------------------------------------------------------------------

    def _diverged(self, loss: float, grad_norm: float, what: str = "loss") -> TrainingDivergedError:
        optimizer, train = self.recipe.optimizer, self.recipe.train
        good = latest_checkpoint(self.run)
        causes = [f"too high a learning rate (optimizer.lr={optimizer.lr:g}; try a third)"]
        if self.step < optimizer.warmup_steps or optimizer.warmup_steps < 20:
            causes.append(f"too short a warm-up (optimizer.warmup_steps={optimizer.warmup_steps})")
        if optimizer.clip_norm == 0.0:
            causes.append("no clipping (optimizer.clip_norm=0; try 1)")
        if train.precision == "bf16":
            causes.append("precision (train.precision='bf16'; try 'fp32')")
        norm = "" if math.isnan(grad_norm) and what != "loss" else f", gradient norm {grad_norm}"
        at = self.step + 1 if what == "loss" else self.step
        return TrainingDivergedError(
            f"step {at}: the {what} is {loss}{norm}; stopped, and nothing was overwritten. "
            f"Last good checkpoint: {good or 'none yet'}. Likely causes: {'; '.join(causes)}"
        )


def describe_validation(row: dict[str, Any], steps: int) -> str:
    """A row of validation as one line."""
    parts = [f"step {row['step']}/{steps}  validation loss {row['loss']:.4f}"]
    if "bits_per_byte" in row:
        parts.append(f"{row['bits_per_byte']:.4f} bits per byte")
    if "accuracy" in row:
        by_pairs = row["accuracy_by_pairs"].items()
        parts.append("accuracy " + ", ".join(f"{a:.1%} of {p} pairs" for p, a in by_pairs))
    return "  ".join(parts)
