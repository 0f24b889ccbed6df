"""GPN and GPN+M against the published program: logits, loss, gradients, states, two windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.interop.published import export_published, load_published
from palimpsest.models.gpn import GroundedState
from palimpsest.ops.dispatch import dispatchers
from tests.comparison import assert_close

CASES = ("gpn_1layer", "gpnm_1layer", "gpnm_2layer")
BACKENDS = dispatchers()["grounded_loop"].available()
TOLERANCE = 2e-5  # of the largest entry: the files are fp32, summed in another order

Case = dict[str, Any]


@pytest.fixture(scope="session", params=CASES)
def case(request: pytest.FixtureRequest, shared: Path) -> Case:
    path = shared / "golden" / f"{request.param}.npz"
    if not path.is_file():
        pytest.skip(f"needs {path.name}")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def case_of_two_windows(case: Case) -> Case:
    if "second.tokens" not in case:
        pytest.skip("the file has one window only")
    return case


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)


def load(case: Case, dtype: np.dtype) -> palimpsest.LanguageModel:
    params = {
        name.removeprefix("param."): array.astype(dtype)
        for name, array in case.items()
        if name.startswith("param.")
    }
    model = load_published(params, json.loads(str(case["config"])))
    assert model.dtype == getattr(torch, dtype.name)
    return model


def ids(case: Case, name: str = "tokens") -> torch.Tensor:
    return torch.from_numpy(case[name]).long()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    """Force a backend, and prove afterwards that it alone ran."""
    before = palimpsest.backend_calls()
    with palimpsest.force_backend(grounded_loop=request.param):
        yield request.param
    ran = {name for op, name in palimpsest.backend_calls() - before if op == "grounded_loop"}
    assert ran == {request.param}


def test_loss_logits_and_every_gradient(case: Case, backend: str, dtype: np.dtype) -> None:
    model, tokens = load(case, dtype), ids(case)
    out = model(tokens, targets=tokens, predict="current")
    assert_close(out.logits, case["logits"], TOLERANCE, "logits")
    assert_close(out.loss, case["loss"], TOLERANCE, "loss")
    out.loss.backward()
    gradients = export_published(model, gradients=True)
    wanted = {n.removeprefix("grad."): a for n, a in case.items() if n.startswith("grad.")}
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype
        assert_close(gradient, wanted[name], TOLERANCE, f"gradient of {name}")


def test_states_after_the_window(case: Case, backend: str, dtype: np.dtype) -> None:
    """The published state is the one that the next write would start from.

    After T tokens published ``s`` is ours ``grounded``; published ``prev_s`` and ``M`` have not
    yet taken the write that our state of T tokens has, so they are ours of T - 1 tokens.
    """
    model, tokens = load(case, dtype), ids(case)
    after = model(tokens).state
    before = model(tokens[:, :-1]).state
    assert isinstance(after, GroundedState)
    assert isinstance(before, GroundedState)
    assert_close(after.grounded, case["final_state.s"], TOLERANCE, "s")
    if "final_state.M" in case:
        assert_close(before.grounded, case["final_state.prev_s"], TOLERANCE, "prev_s")
        assert_close(before.memory, case["final_state.M"], TOLERANCE, "M")


def test_second_window_continues_the_first(
    case_of_two_windows: Case, backend: str, dtype: np.dtype
) -> None:
    case = case_of_two_windows
    model, second = load(case, dtype), ids(case, "second.tokens")
    state = model(ids(case)).state
    out = model(second, state, targets=second, predict="current")
    assert_close(out.logits, case["second.logits"], TOLERANCE, "logits")
    assert_close(out.loss, case["second.loss"], TOLERANCE, "loss")


def test_both_readings_give_one_distribution(case: Case, backend: str, dtype: np.dtype) -> None:
    model, tokens = load(case, dtype), ids(case)
    following = model(tokens, predict="next").logits
    current = model(tokens, predict="current").logits
    # the head multiplies rows of another number, in which a library may sum in another order
    torch.testing.assert_close(following[:, :-1], current[:, 1:], rtol=1e-5, atol=1e-6)
    if dtype == np.float64:
        torch.testing.assert_close(following[:, :-1], current[:, 1:], rtol=1e-12, atol=1e-13)
    assert_close(following[:, :-1], case["logits"][:, 1:], TOLERANCE, "logits")
