"""A second derivative is right or refused, whatever the backend and however it is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import GradientError
from tests.comparison import assert_all_close
from tests.contract.configs import CONFIGS
from tests.contract.harness import (
    LENGTH,
    Setting,
    fixed_weights,
    models_only,
    objective,
    random_ids,
    settings,
)

Loss = Callable[[], Tensor]
STEP = 1e-6


def named(model: palimpsest.LanguageModel) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def first(model: palimpsest.LanguageModel, loss: Loss, *, graph: bool) -> dict[str, Tensor]:
    parameters = named(model)
    found = torch.autograd.grad(
        loss(),
        list(parameters.values()),
        create_graph=graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, found, strict=True))


def second(model: palimpsest.LanguageModel, loss: Loss, via: str) -> dict[str, Tensor]:
    """The Hessian times fixed weights."""
    model.zero_grad()
    along = first(model, loss, graph=True)
    total = sum((g * fixed_weights(g.shape, 20 + i)).sum() for i, g in enumerate(along.values()))
    parameters = named(model)
    if via == "backward":
        total.backward()
        return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
    # one parameter alone: nothing else keeps a node that raises in the graph
    name, parameter = next(iter(parameters.items()))
    return {name: torch.autograd.grad(total, [parameter])[0]}


def losses(model: palimpsest.LanguageModel, length: int = LENGTH) -> dict[str, Loss]:
    ids = random_ids(model, 2, length)
    return {
        "logits": lambda: objective(model(ids).logits, None),
        "loss": lambda: model(ids, targets=ids).loss,
    }


@settings("fp64", skip=["reference"])
def test_right_or_refused(setting: Setting) -> None:
    model = setting.build()
    for name, loss in losses(model).items():
        with palimpsest.force_backend("reference"):
            want = second(model, loss, "backward")
        with setting.active():
            for via in ("grad", "backward"):
                try:
                    got = second(model, loss, via)
                except GradientError as refusal:
                    assert 'palimpsest.force_backend("reference")' in str(refusal)
                    continue
                assert_all_close(got, {n: want[n] for n in got}, 1e-8, f"{name}, {via}: ")


@models_only()
def test_reference_is_the_slope_of_the_gradient(setting: Setting) -> None:
    model = setting.build()
    with palimpsest.force_backend("reference"):
        for name, loss in losses(model, 4).items():
            got = second(model, loss, "backward")
            model.zero_grad()
            ends = []
            for side in (1.0, -2.0):
                with torch.no_grad():
                    for i, parameter in enumerate(model.parameters()):
                        parameter += side * STEP * fixed_weights(parameter.shape, 20 + i)
                ends.append(first(model, loss, graph=False))
            with torch.no_grad():
                for i, parameter in enumerate(model.parameters()):
                    parameter += STEP * fixed_weights(parameter.shape, 20 + i)
            slope = {n: (ends[0][n] - ends[1][n]) / (2 * STEP) for n in got}
            assert_all_close(got, slope, 1e-5, f"{name}: ")


@pytest.mark.parametrize("name", ["gpnm", "gdn", "transformer"])
def test_refused_at_the_first_backward(name: str) -> None:
    """The fast forms run by default, and their first derivatives never need the remedy."""
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).eval()
    ids = random_ids(model, 2, 9)
    with pytest.raises(GradientError, match="create_graph"):
        model(ids).logits.sum().backward(create_graph=True)
    model(ids).logits.sum().backward()
