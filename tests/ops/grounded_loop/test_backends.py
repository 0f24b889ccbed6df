"""Every backend of the grounded loop against the reference: values and every gradient."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.ops import BackendUnavailableError, backend_calls, force_backend
from palimpsest.ops.dispatch import dispatchers
from palimpsest.ops.grounded_loop import grounded_loop
from tests.comparison import assert_all_close, assert_close
from tests.ops.grounded_loop.blocks import (
    BATCH,
    Inputs,
    make_inputs,
    random_loss,
    values_and_gradients,
)

DISPATCHER = dispatchers()["grounded_loop"]
BACKENDS = DISPATCHER.available()
FAST = [name for name in BACKENDS if name != "reference"]

FP64 = 1e-10  # of the largest entry of each tensor
FP32_VALUES, FP32_GRADIENTS = 2e-5, 2e-4  # up to T = 100: rounding in another order, fed back

# (T, layers, memory, masks): lengths on both sides of chunks of 32, resets at their edges
SHORT = [(1, 1, True, False), (2, 2, True, True), (3, 3, True, False), (3, 1, False, True)]
EDGES = [
    (31, 1, True, True),
    (32, 2, True, False),
    (33, 1, True, True),
    (64, 1, True, False),
    (65, 2, True, True),
    (65, 2, False, True),
    (100, 1, True, True),
]
Case = tuple[int, int, bool, bool]
Results = tuple[dict[str, Tensor], dict[str, Tensor]]


def inputs_of(case: Case) -> Inputs:
    length, layers, memory, masks = case
    return make_inputs(length, layers=layers, memory=memory, masks=masks, seed=length)


@functools.cache
def reference_of(case: Case, last_state_only: bool = False) -> Results:
    return values_and_gradients(inputs_of(case), "reference", last_state_only=last_state_only)


@pytest.fixture(params=FAST)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("case", SHORT + EDGES, ids=str)
def test_equals_reference_in_fp64(case: Case, backend: str) -> None:
    want_values, want_grads = reference_of(case)
    before = backend_calls()
    values, grads = values_and_gradients(inputs_of(case), backend)
    assert backend_calls() - before == {("grounded_loop", backend): 1}
    assert_all_close(values, want_values, FP64)
    assert_all_close(grads, want_grads, FP64, "gradient of ")


@pytest.mark.parametrize("case", [SHORT[1], EDGES[2], EDGES[6]], ids=str)
def test_near_reference_in_fp32(case: Case, backend: str) -> None:
    want_values, want_grads = reference_of(case)
    values, grads = values_and_gradients(inputs_of(case).to(torch.float32), backend)
    assert all(t.dtype == torch.float32 for t in (*values.values(), *grads.values()))
    assert_all_close(values, want_values, FP32_VALUES)
    assert_all_close(grads, want_grads, FP32_GRADIENTS, "gradient of ")


@pytest.mark.parametrize("case", [(33, 1, True, False), (33, 1, False, True)], ids=str)
def test_bf16_products_are_as_exact_as_the_reference_with_them(case: Case, backend: str) -> None:
    """Both round the operands of the same products; neither may round more."""

    def errors(name: str) -> tuple[float, float]:
        with torch.autocast("cpu", torch.bfloat16):
            got = values_and_gradients(inputs_of(case).to(torch.float32), name)
        assert all(t.dtype == torch.float32 for part in got for t in part.values())
        distances = []
        for part, want in zip(got, reference_of(case), strict=True):
            a, b = (torch.cat([t[n].double().flatten() for n in want]) for t in (part, want))
            distances.append(float((a - b).norm() / b.norm()))
        return distances[0], distances[1]

    (values, grads), (own_values, own_grads) = errors(backend), errors("reference")
    assert values < 2 * own_values + 0.01, (values, own_values)
    assert grads < 2 * own_grads + 0.02, (grads, own_grads)


@pytest.mark.parametrize("case", [SHORT[1], EDGES[0], EDGES[5]], ids=str)
def test_loss_on_the_last_state_only(case: Case, backend: str) -> None:
    _, want = reference_of(case, last_state_only=True)
    _, grads = values_and_gradients(inputs_of(case), backend, last_state_only=True)
    assert_all_close(grads, want, FP64, "gradient of ")


@pytest.mark.parametrize(
    "names",
    [
        ("drive",),
        ("memory",),
        ("predicted", "grounded"),
        ("params.ground.gate_DD",),
        ("params.write.A_log_H", "params.layers.1.read.out_DQ"),
        ("params.layers.0.ffn_out_DF", "drive"),
    ],
    ids=str,
)
def test_gradients_of_some_inputs_only(names: tuple[str, ...], backend: str) -> None:
    inputs = make_inputs(34, layers=2, masks=True)
    _, want = values_and_gradients(inputs, "reference", *names)
    _, grads = values_and_gradients(inputs, backend, *names)
    assert_all_close(grads, want, FP64, "gradient of ")


@pytest.mark.parametrize("name", BACKENDS)
def test_no_gradient_wanted(name: str) -> None:
    inputs = make_inputs(34, masks=True)
    want = inputs.run("reference")
    for output, expected in zip(inputs.run(name), want, strict=True):
        assert not output.requires_grad
        assert_close(output, expected, FP64)
    with torch.no_grad():
        for output, expected in zip(inputs.require_grad().run(name), want, strict=True):
            assert not output.requires_grad
            assert_close(output, expected, FP64)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradcheck(name: str) -> None:
    """Against finite differences: drive, initial state and parameters, with masks."""
    inputs = make_inputs(3, layers=2, masks=True, batch=2, seed=4, sizes=(3, 2, 2, 2, 3))
    given = inputs.require_grad()
    leaves = given.leaves()

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        table = dict(zip(leaves, values, strict=True))
        return given.map(lambda n, t: table.get(n, t)).run(name)

    assert torch.autograd.gradcheck(run, tuple(leaves.values()), fast_mode=True)


def test_gradients_of_the_reference_by_finite_differences() -> None:
    """Each parameter moved along its own gradient changes the loss as the gradient says."""
    inputs = make_inputs(5, layers=2, masks=True)
    _, grads = values_and_gradients(inputs, "reference")
    for name, grad in grads.items():
        step = 1e-6 / float(grad.norm())

        def loss(sign: float, name: str = name, grad: Tensor = grad, step: float = step) -> Tensor:
            moved = inputs.map(lambda n, t: t + sign * step * grad if n == name else t)
            return random_loss(moved.run("reference"))

        slope = (loss(1.0) - loss(-1.0)) / (2 * step)
        assert_close(slope, grad.square().sum(), 1e-5, name)


@pytest.mark.parametrize("name", BACKENDS)
def test_second_backward_raises_or_gives_the_same(name: str) -> None:
    given = make_inputs(34).require_grad()
    leaves = list(given.leaves().values())
    loss = random_loss(given.run(name))
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    try:
        second = torch.autograd.grad(loss, leaves)
    except RuntimeError:
        pass
    else:
        for one, two in zip(first, second, strict=True):
            assert torch.equal(one, two)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("name", BACKENDS)
def test_second_derivative_raises_or_is_right(name: str) -> None:
    """Never a wrong one in silence."""
    inputs = make_inputs(9)

    def second(backend: str) -> Tensor:
        given = inputs.require_grad("drive")
        loss = random_loss(given.run(backend))
        (first,) = torch.autograd.grad(loss, [given.drive], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [given.drive])[0]

    try:
        got = second(name)
    except RuntimeError:
        return
    assert_close(got, second("reference"), FP64)


def test_layout_in_memory_does_not_matter(backend: str) -> None:
    """Transposed, strided and expanded inputs, as models and callers make them."""
    inputs = make_inputs(33, masks=True)
    want_values, want_grads = values_and_gradients(inputs, "reference")

    def strided(name: str, tensor: Tensor) -> Tensor:
        if tensor.ndim == 1:
            return torch.stack([tensor, tensor], 1)[:, 0]
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)

    scattered = inputs.map(strided)
    assert not scattered.drive.is_contiguous()
    scattered = scattered.map(lambda _, t: t.requires_grad_())
    outputs = scattered.run(backend)
    leaves = scattered.leaves()
    grads = torch.autograd.grad(random_loss(outputs), list(leaves.values()))
    assert_all_close(dict(zip(leaves, grads, strict=True)), want_grads, FP64, "gradient of ")
    assert_close(outputs[0], want_values["predicted_BTD"], FP64)


def test_one_mask_for_all_rows(backend: str) -> None:
    """A mask expanded from one row shares its memory between rows."""
    inputs = make_inputs(33, masks=True)
    assert inputs.hold is not None
    inputs.hold = inputs.hold[:1].expand(BATCH, -1)
    want, got = inputs.run("reference"), inputs.run(backend)
    for one, two in zip(got, want, strict=True):
        assert_close(one, two, FP64)


@pytest.mark.parametrize("name", BACKENDS)
def test_inputs_are_left_as_they_were(name: str) -> None:
    inputs = make_inputs(34, layers=2, masks=True)
    before = {n: t.clone() for n, t in inputs.leaves().items()}
    values_and_gradients(inputs, name)
    given = inputs.require_grad()
    random_loss(given.run(name)).backward()
    for name_, tensor in inputs.leaves().items():
        assert torch.equal(tensor, before[name_]), name_
    for name_, tensor in given.leaves().items():
        assert torch.equal(tensor.detach(), before[name_]), name_


@pytest.mark.parametrize("name", BACKENDS)
def test_reset_clears_and_hold_keeps(name: str) -> None:
    inputs = make_inputs(34)
    inputs.reset = torch.zeros(BATCH, 34, dtype=torch.bool)
    inputs.reset[:, 20] = True
    fresh = make_inputs(34).map(lambda n, t: t if n.startswith(("params", "drive")) else t * 0)
    fresh.drive = fresh.drive[:, 20:]
    assert_close(inputs.run(name)[0][:, 20:], fresh.run(name)[0], FP64)
    inputs.reset = None
    inputs.hold = torch.ones(BATCH, 34, dtype=torch.bool)
    outputs = inputs.run(name)
    assert torch.equal(outputs[0], inputs.predicted[:, None].expand(-1, 34, -1))
    for output, kept in zip(
        outputs[1:], (inputs.predicted, inputs.grounded, inputs.memory), strict=True
    ):
        assert torch.equal(output, kept)


def test_forced_backend_runs() -> None:
    inputs = make_inputs(3)
    for name in BACKENDS:
        before = backend_calls()
        with force_backend(grounded_loop=name):
            inputs.run(None)
        assert backend_calls() - before == {("grounded_loop", name): 1}


def test_backend_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(3)
    monkeypatch.setattr(DISPATCHER, "_backends", dict(DISPATCHER._backends))
    DISPATCHER.register("absent", lambda *_: None, missing=lambda: "needs the package 'absent'")
    assert "absent" not in DISPATCHER.available()
    for run in (lambda: inputs.run("absent"), lambda: _forced(inputs, "absent")):
        with pytest.raises(BackendUnavailableError, match=r"'absent'.*needs the package"):
            run()
    with pytest.raises(InputError, match=r"'quick'.*reference"):
        inputs.run("quick")
    with pytest.raises(InputError, match=r"'quick'.*reference"):
        _forced(inputs, "quick")
    with pytest.raises(InputError, match="'grounded_lop'"), force_backend(grounded_lop="fused"):
        pass


def _forced(inputs: Inputs, name: str) -> None:
    with force_backend(grounded_loop=name):
        inputs.run(None)


BAD_ARGUMENTS = {
    "drive of shape": {"drive_BTD": torch.zeros(BATCH, 4, 12)},
    "predicted of shape": {"predicted_BD": torch.zeros(2, 13)},
    "grounded of shape": {"grounded_BD": torch.zeros(2, 13)},
    "memory of shape": {"memory_BHKU": torch.zeros(BATCH, 3, 7, 5)},
    "memory must be given": {"memory_BHKU": None},
    "hold of shape": {"hold_BT": torch.zeros(BATCH, 3, dtype=torch.bool)},
    "reset of dtype": {"reset_BT": torch.zeros(BATCH, 4, dtype=torch.long)},
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_arguments_that_do_not_belong_together(message: str) -> None:
    x = make_inputs(4)
    arguments = {
        "drive_BTD": x.drive,
        "params": x.params,
        "predicted_BD": x.predicted,
        "grounded_BD": x.grounded,
        "memory_BHKU": x.memory,
    }
    with pytest.raises(InputError, match=message):
        grounded_loop(**{**arguments, **BAD_ARGUMENTS[message]})
