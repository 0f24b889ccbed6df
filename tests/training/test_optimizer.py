"""The learning rate as a function of the step, clipping, and the choice of AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from palimpsest import build
from palimpsest.training.optimizer import (
    clip_to_norm,
    fused_adamw_works,
    gradient_norm,
    lr_factor,
    make_optimizer,
    set_lr,
)
from palimpsest.training.recipe import OptimizerRecipe


def test_warmup_then_cosine_to_the_floor():
    recipe = OptimizerRecipe(warmup_steps=4, min_lr_ratio=0.1)
    factors = [lr_factor(step, recipe, 25) for step in range(25)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0 and factors[-1] == pytest.approx(0.1)
    assert factors[14] == pytest.approx(0.55)  # half way between 4 and 24
    assert factors[3:] == sorted(factors[3:], reverse=True)
    assert lr_factor(99, recipe, 25) == pytest.approx(0.1)


def test_constant_schedule_and_no_warmup():
    recipe = OptimizerRecipe(warmup_steps=0, schedule="constant")
    assert [lr_factor(step, recipe, 3) for step in range(3)] == [1.0, 1.0, 1.0]
    assert lr_factor(0, OptimizerRecipe(warmup_steps=0), 1) == 1.0


def test_groups_keep_their_own_peak_and_decay():
    model = build("gpnm-tiny")
    optimizer = make_optimizer(model, OptimizerRecipe(lr=2e-3, weight_decay=0.3))
    optimizer.param_groups[1]["peak_lr"] = 1e-2
    set_lr(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 5e-3]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]


@pytest.mark.parametrize("limit", [0.0, 1.0, 100.0])
def test_clipping_matches_torch(limit):
    torch.manual_seed(3)
    mine = [
        nn.Parameter(torch.zeros(3, 5)),
        nn.Parameter(torch.zeros(7)),
        nn.Parameter(torch.ones(1)),
    ]
    theirs = [nn.Parameter(p.detach().clone()) for p in mine]
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    norm = float(gradient_norm(list(mine)))
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit or float("inf"))
    assert norm == pytest.approx(float(expected))
    clip_to_norm(list(mine), norm, limit)
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert mine[2].grad is None


def test_fused_adamw_is_taken_where_it_works(monkeypatch):
    model = build("gpnm-tiny")
    works = fused_adamw_works(torch.device("cpu"), {torch.float32})
    assert bool(make_optimizer(model, OptimizerRecipe()).param_groups[0]["fused"]) == works
    plain = torch.optim.AdamW.__init__

    def refuse(self, *args, fused=None, **kwargs):
        if fused:
            raise RuntimeError("fused=True requires another device")
        plain(self, *args, fused=fused, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "__init__", refuse)
    assert not fused_adamw_works(torch.device("cpu"), {torch.float32})
    assert not make_optimizer(model, OptimizerRecipe()).param_groups[0]["fused"]
