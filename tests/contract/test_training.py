"""Losses and gradients as a training loop needs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

import palimpsest
from tests.contract.configs import CONFIGS, OWN_LEARNING_RATES
from tests.contract.harness import (
    AUTOMATIC,
    LENGTH,
    Setting,
    gradients,
    models_only,
    random_ids,
    settings,
)


@settings("fp64")
def test_loss_is_the_cross_entropy_of_the_logits(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 3, LENGTH)
    targets = random_ids(model, 3, LENGTH, seed=9)
    targets[0, :4] = -100
    targets[2, -1] = -100
    with setting.active():
        out = model(ids, targets=targets)
        assert "logits" not in vars(out), "the loss alone must not make the logits"
        want = functional.cross_entropy(
            out.logits.transpose(1, 2).double(), targets, reduction="none"
        )
    setting.assert_close(out.token_losses, want, "token losses")
    setting.assert_close(out.loss, want.sum() / (targets != -100).sum(), "loss")
    assert out.n_targets == (targets != -100).sum()
    assert model(ids).loss is None


@settings("fp64")
def test_accumulated_gradients_equal_one_batch(setting: Setting) -> None:
    """Micro-batches of very different numbers of targets: sums over the whole count."""
    model = setting.build()
    ids = random_ids(model, 6, LENGTH)
    targets = random_ids(model, 6, LENGTH, seed=9)
    targets[0, 1:] = -100
    targets[1] = -100
    targets[3, ::2] = -100
    with setting.active():
        whole = model(ids, targets=targets)
        want = gradients(model, whole.loss)
        count = (targets != -100).sum()
        model.zero_grad()
        for rows in (slice(0, 2), slice(2, 3), slice(3, 6)):
            (model(ids[rows], targets=targets[rows]).loss_sum / count).backward()
    parameters = dict(model.named_parameters())
    got = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
    setting.assert_same_gradients(got, want)


@settings("fp32", "bf16", backends=[AUTOMATIC])
def test_all_targets_ignored(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, LENGTH)
    with setting.active():
        out = model(ids, targets=torch.full_like(ids, -100))
        assert out.loss == 0
        assert out.n_targets == 0
        for name, gradient in gradients(model, out.loss).items():
            assert not gradient.any(), name


@settings("fp32", "bf16", backends=[AUTOMATIC])
def test_some_steps_of_training_lower_the_loss(setting: Setting) -> None:
    """Also in train mode, with the carried state cut between windows."""
    model = setting.build().train()
    ids = random_ids(model, 2, 2 * LENGTH)
    optimizer = torch.optim.AdamW(model.param_groups(lr=1e-2, weight_decay=0.1))
    losses = []
    with setting.active():
        for _ in range(15):
            state, total = None, 0.0
            for window in (slice(0, LENGTH), slice(LENGTH, 2 * LENGTH)):
                x = ids[:, window]
                out = model(x[:, :-1], state, targets=x[:, 1:])
                optimizer.zero_grad()
                out.loss.backward()
                optimizer.step()
                state, total = out.state.detach(), total + float(out.loss.detach())
            losses.append(total / 2)
    assert losses[-1] < 0.9 * losses[0], losses


@models_only()
def test_parameter_groups(setting: Setting) -> None:
    """Every parameter once; decay on arrays of two or more dimensions only."""
    model = setting.build()
    groups = model.param_groups(lr=1e-3, weight_decay=0.1)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    factors = OWN_LEARNING_RATES.get(setting.model, {})
    names = {id(p): name.split(".")[-1] for name, p in model.named_parameters()}
    for group in groups:
        for parameter in group["params"]:
            assert group["lr"] == 1e-3 * factors.get(names[id(parameter)], 1.0)
        assert group["weight_decay"] in (0.0, 0.1)
        if group["weight_decay"]:
            assert all(p.ndim >= 2 for p in group["params"])


@pytest.fixture
def bf16_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@models_only()
def test_construction_where_bf16_is_the_default(setting: Setting, bf16_by_default: None) -> None:
    """Initial values are drawn in fp32: a draw in bf16 rounds to 0, and its logarithm to -inf."""
    for seed in range(20):
        torch.manual_seed(seed)
        model = palimpsest.build(setting.model, **CONFIGS[setting.model][setting.label])
        for name, parameter in model.named_parameters():
            assert parameter.dtype == torch.bfloat16, name
            assert torch.isfinite(parameter).all(), name
    assert model.state_dtype == torch.float32
    ids = random_ids(model, 2, LENGTH)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids, targets=ids)
    out.loss.backward()
    assert torch.isfinite(out.loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@models_only()
def test_fresh_model_is_near_the_uniform_guess(setting: Setting) -> None:
    torch.manual_seed(0)
    model = palimpsest.build(setting.model, **CONFIGS[setting.model][setting.label])
    ids = random_ids(model, 3, LENGTH)
    loss = float(model(ids, targets=ids).loss.detach())
    assert abs(loss - torch.tensor(float(model.config.vocab_size)).log()) < 0.5
