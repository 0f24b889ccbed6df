"""What the contract tests share: settings to run under, models, and runs in pieces.

A *setting* is one architecture's configuration × one backend × one precision. Backends are found,
not listed: each architecture runs once, and every available backend of every op that it used
becomes a setting, beside "automatic", the ops' own choice.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.ops.dispatch import dispatchers
from palimpsest.state import State
from tests.comparison import assert_all_close
from tests.contract.configs import CONFIGS, WINDOWS

AUTOMATIC = "automatic"
HEAD_OP = "cross_entropy"  # serves every model; its own tests compare its backends
BATCH, LENGTH = 4, 9  # 9: past the lengths at which ops change their automatic backend

Grads = dict[str, Tensor]


@dataclass(frozen=True)
class Precision:
    """A precision and what it owes.

    Attributes:
        values: largest difference of logits and states, relative to the largest entry.
        gradients: the same for each parameter's gradient.
        autocast: products in bf16. Differences are then measured by norms, gradients as one
            vector: rounding moves single entries at random, and a key of five numbers behind a
            relu can jump. This precision is here for wrong dtypes and wrong paths; how exact
            bf16 is, the ops' own tests say.
    """

    dtype: torch.dtype
    values: float
    gradients: float
    autocast: bool = False


PRECISIONS = {
    "fp64": Precision(torch.float64, 1e-11, 1e-9),
    "fp32": Precision(torch.float32, 2e-5, 2e-4),
    "bf16": Precision(torch.float32, 0.2, 0.4, autocast=True),
}


@dataclass(frozen=True)
class Setting:
    """One configuration under one backend and precision."""

    model: str
    label: str
    backend: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model}-{self.label}-{self.backend}-{self.precision}"

    def assert_close(self, got: Tensor, want: Tensor, what: str = "logits") -> None:
        self.assert_all_close({what: got}, {what: want})

    def assert_all_close(
        self, got: dict[str, Tensor], want: dict[str, Tensor], what: str = "", slack: float = 1.0
    ) -> None:
        precision = PRECISIONS[self.precision]
        if precision.autocast:
            for name in want:
                _assert_norms_close({"": got[name]}, {"": want[name]}, precision.values * slack)
        else:
            assert_all_close(got, want, precision.values * slack, what)

    def assert_same_gradients(self, got: Grads, want: Grads, what: str = "") -> None:
        precision = PRECISIONS[self.precision]
        if precision.autocast:
            _assert_norms_close(got, want, precision.gradients)
        else:
            assert_all_close(got, want, precision.gradients, what + "gradient of ")

    def build(self) -> palimpsest.LanguageModel:
        """The model with every parameter random, so that no zero start hides a mistake."""
        torch.manual_seed(1)
        model = palimpsest.build(self.model, **CONFIGS[self.model][self.label])
        randomise(model)
        model.trained_length = WINDOWS.get((self.model, self.label))
        return model.to(PRECISIONS[self.precision].dtype).eval()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside: the backend is forced and the precision set. Afterwards: it did run."""
        forced = (
            {} if self.backend == AUTOMATIC else backends_of(self.model, self.label)[self.backend]
        )
        before = palimpsest.backend_calls()
        with (
            palimpsest.force_backend(**forced),
            torch.autocast("cpu", torch.bfloat16, enabled=PRECISIONS[self.precision].autocast),
        ):
            yield
        ran = palimpsest.backend_calls() - before
        for op, backend in forced.items():
            used = {name for o, name in ran if o == op}
            assert used <= {backend}, f"{op}: {used} ran, {backend!r} was forced"
        assert not forced or any((op, name) in ran for op, name in forced.items())


def _assert_norms_close(got: Grads, want: Grads, tolerance: float) -> None:
    assert got.keys() == want.keys()
    together, wanted = (
        torch.cat([t[n].detach().double().flatten() for n in want]) for t in (got, want)
    )
    error, scale = float((together - wanted).norm()), float(wanted.norm())
    assert error <= tolerance * scale, f"differs by {error:.1e}, with a norm of {scale:.1e}"


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Matrices of variance 0.5/fan_in; vectors moved from where they start."""
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, dtype=torch.float64).to(parameter)
        if parameter.ndim >= 2:
            parameter.copy_(noise * (0.5 / parameter[0].numel()) ** 0.5)
        else:
            parameter.add_(0.3 * noise)


@functools.cache
def backends_of(model: str, label: str) -> dict[str, dict[str, str]]:
    """Backend name → the ops to force it for, over all ops that a run of the model uses."""
    before = palimpsest.backend_calls()
    palimpsest.build(model, **CONFIGS[model][label])(torch.arange(LENGTH)[None])
    used = {op for op, _ in palimpsest.backend_calls() - before} - {HEAD_OP}
    found: dict[str, dict[str, str]] = {}
    for op in sorted(used):
        for name in dispatchers()[op].available():
            found.setdefault(name, {})[op] = name
    return found


def settings(
    *precisions: str, backends: Sequence[str] | None = None, skip: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Parametrise a test over every architecture × backend × the precisions given.

    An architecture's further configurations run in fp64 only. Every setting is in
    ``make test-all``; ``make test`` takes each backend of the first configuration in fp64, and of
    the rest what users run, the automatic backend.
    """

    def mark(index: int, setting: Setting) -> Any:
        often = setting.backend == AUTOMATIC or (index == 0 and setting.precision == "fp64")
        return pytest.param(setting, marks=() if often else pytest.mark.slow)

    chosen = [
        mark(i, Setting(model, label, backend, precision))
        for model in palimpsest.list_models()
        for i, label in enumerate(CONFIGS.get(model, {}))
        for backend in (AUTOMATIC, *backends_of(model, label))
        for precision in precisions
        if (i == 0 or precision == "fp64")
        and (backends is None or backend in backends)
        and backend not in skip
    ]
    return pytest.mark.parametrize("setting", chosen, ids=str)


def models_only() -> pytest.MarkDecorator:
    """Parametrise a test over every configuration, where backend and precision cannot matter."""
    return settings("fp64", backends=[AUTOMATIC])


def random_ids(model: palimpsest.LanguageModel, batch: int, length: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)


def used_state(model: palimpsest.LanguageModel, batch: int, *, leaf: bool = False) -> State:
    """A state in the middle of a text; with ``leaf``, one that gradients can be asked for."""
    with torch.no_grad():
        state = model(random_ids(model, batch, 4, seed=3)).state.clone()
    if leaf:
        state = state.map(lambda t: t.requires_grad_() if t.is_floating_point() else t)
    return state


def fixed_weights(shape: torch.Size, seed: int) -> Tensor:
    """Coefficients that turn a tensor into a loss which depends on every entry of it."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(logits: Tensor | None, state: State | None) -> Tensor:
    """A loss over all logits and over every tensor of a state."""
    total = torch.zeros((), dtype=torch.float64)
    if logits is not None:
        total = total + (logits.double() * fixed_weights(logits.shape, 5)).sum()
    if state is not None:
        for i, (_, tensor) in enumerate(state.named_tensors()):
            if tensor.is_floating_point() and tensor.numel():
                total = total + (tensor.double() * fixed_weights(tensor.shape, 6 + i)).sum()
    return total


def run_pieces(
    model: palimpsest.LanguageModel,
    ids: Tensor,
    lengths: Sequence[int],
    state: State | None = None,
    **masks: Tensor | None,
) -> tuple[Tensor, State]:
    """Feed a text in pieces, passing the state on: all logits, and the last state."""
    logits, start = [], 0
    for length in lengths:
        piece = slice(start, start + length)
        cut = {name: None if m is None else m[:, piece] for name, m in masks.items()}
        out = model(ids[:, piece], state, **cut)
        logits.append(out.logits)
        state, start = out.state, start + length
    assert start == ids.shape[1]
    assert state is not None
    return torch.cat(logits, 1), state


def gradients(model: palimpsest.LanguageModel, loss: Tensor, state: State | None = None) -> Grads:
    """Gradients of the parameters, and of the leaves of a state; zeros where there are none."""
    leaves = dict(model.named_parameters())
    if state is not None:
        leaves |= {f"state.{n}": t for n, t in state.named_tensors() if t.requires_grad}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def tensors(state: State) -> dict[str, Tensor]:
    return dict(state.named_tensors())


@functools.cache
def grows(model: str, label: str) -> bool:
    """Whether the state of an architecture gets longer with the text."""
    built = palimpsest.build(model, **CONFIGS[model][label])
    ids = random_ids(built, 1, 2)
    one, two = tensors(built(ids[:, :1]).state), tensors(built(ids).state)
    return any(one[name].shape != two[name].shape for name in one)


def assert_same_state(
    setting: Setting, model: palimpsest.LanguageModel, got: State, want: State, what: str = ""
) -> None:
    """The two states continue alike, and hold the same tensors unless they grow with the text.

    (A growing state may keep padding, marked as such, so that its tensors may differ.)
    """
    if not grows(setting.model, setting.label):
        setting.assert_all_close(tensors(got), tensors(want), f"{what} state.")
    probe = random_ids(model, want.batch_size, 3, seed=11)
    with torch.no_grad():
        setting.assert_all_close(
            {"logits": model(probe, got).logits},
            {"logits": model(probe, want).logits},
            f"{what} continued ",
            slack=4,
        )


def snapshot(*values: Any) -> list[bytes]:
    """The bytes of tensors and states."""
    found: list[bytes] = []
    for value in values:
        for tensor in tensors(value).values() if isinstance(value, State) else [value]:
            found.append(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found
