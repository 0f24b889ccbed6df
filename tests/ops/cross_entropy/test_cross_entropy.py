"""The chunked cross-entropy against full logits: values, gradients, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from palimpsest.errors import GradientError
from palimpsest.ops import backend_calls
from palimpsest.ops.cross_entropy import chunked, cross_entropy
from tests.comparison import assert_close

B, T, E, V = 3, 41, 7, 53  # 123 rows: not a multiple of any block
BLOCKS = {"one block": 1 << 21, "blocks of 24 rows": 24 * V, "blocks of 16, the fewest": 1}


def make(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(B, T, E, generator=rng, dtype=torch.float64) * scale
    head = torch.randn(V, E, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, V, (B, T), generator=rng)
    targets[0, :5] = -100
    targets[2, ::3] = -100
    return features.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), targets


def run(
    backend: str, features: Tensor, head: Tensor, targets: Tensor, weight: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total, losses = cross_entropy(features, head, targets, backend=backend)
    d_features, d_head = torch.autograd.grad(total * weight, [features, head])
    return total.detach(), losses, d_features, d_head


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "LOGITS_PER_BLOCK", BLOCKS[request.param])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)], ids=["fp64", "fp32"]
)
def test_equals_full_logits(dtype: torch.dtype, tolerance: float, block: None) -> None:
    inputs = make(dtype)
    before = backend_calls()
    got = run("chunked", *inputs, weight=0.37)
    assert backend_calls() - before == {("cross_entropy", "chunked"): 1}
    for one, two in zip(got, run("reference", *inputs, weight=0.37), strict=True):
        assert one.dtype == two.dtype == dtype
        assert_close(one, two, tolerance)


def test_losses_per_position(block: None) -> None:
    features, head, targets = make()
    total, losses = cross_entropy(features, head, targets)
    assert losses.shape == (B, T)
    assert not losses.requires_grad
    assert not losses[targets == -100].any()
    assert (losses[targets != -100] > 0).all()
    assert_close(losses.sum(), total, 1e-13)


def test_all_ignored(block: None) -> None:
    features, head, targets = make()
    for tensor in run("chunked", features, head, torch.full_like(targets, -100)):
        assert not tensor.any()


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_huge_logits(backend: str, block: None) -> None:
    """Logits of some 1e5 in fp32: no overflow, and the right token costs nothing."""
    features, head, targets = make(torch.float32, scale=1e4)
    for tensor in run(backend, features, head, targets):
        assert torch.isfinite(tensor).all()
    best = (features @ head.T).argmax(-1)
    total, _ = cross_entropy(features, head, best, backend=backend)
    assert float(total.detach()) < 1e-2 * B * T


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_autocast(backend: str, block: None) -> None:
    """Products in bf16, softmax and sums in fp32, gradients in the parameters' dtype."""
    features, head, targets = make(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(backend, features, head, targets)
    assert all(t.dtype == torch.float32 for t in got)
    want = run("reference", *make(torch.float64))
    for one, two, tolerance in zip(got, want, (5e-3, 2e-2, 3e-2, 3e-2), strict=True):
        assert_close(one, two, tolerance)


def test_bf16_features_with_fp32_head() -> None:
    """What a model under autocast hands over."""
    features, head, targets = make(torch.float32)
    narrow = features.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        total, losses, d_features, d_head = run("chunked", narrow, head, targets)
    assert total.dtype == losses.dtype == torch.float32
    assert d_features.dtype == torch.bfloat16
    assert d_head.dtype == torch.float32


@pytest.mark.parametrize("wanted", ["features", "head", "nothing"])
def test_gradients_of_some_inputs_only(wanted: str, block: None) -> None:
    features, head, targets = make()
    _, _, d_features, d_head = run("reference", features, head, targets)
    features = features.detach().requires_grad_(wanted == "features")
    head = head.detach().requires_grad_(wanted == "head")
    total, _ = cross_entropy(features, head, targets)
    assert total.requires_grad == (wanted != "nothing")
    if wanted == "features":
        assert_close(torch.autograd.grad(total, features)[0], d_features, 1e-13)
    if wanted == "head":
        assert_close(torch.autograd.grad(total, head)[0], d_head, 1e-13)


def test_gradcheck() -> None:
    features, head, targets = make()
    features = features[:, :4].detach().requires_grad_()

    def total(x: Tensor, w: Tensor) -> Tensor:
        return cross_entropy(x, w, targets[:, :4], backend="chunked")[0]

    assert torch.autograd.gradcheck(total, (features, head), fast_mode=True)


def test_second_derivative_raises() -> None:
    """The gradients are formed in the forward pass, so there is nothing to differentiate."""
    features, head, targets = make()
    total, _ = cross_entropy(features, head, targets, backend="chunked")
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradientError, match="force_backend"):
        torch.autograd.grad(total * weight, features, create_graph=True)


class _LargestTensor(TorchDispatchMode):
    """Watches every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_full_logits_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "LOGITS_PER_BLOCK", 24 * V)
    features, head, targets = make()
    with _LargestTensor() as watch:
        run("chunked", features, head, targets)
    assert watch.numel <= max(24 * V, features.numel(), head.numel())
    with _LargestTensor() as watch:
        run("reference", features, head, targets)
    assert watch.numel >= B * T * V


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_no_gradient_is_formed_where_none_is_recorded() -> None:
    """Under no_grad a parameter still says that it needs its gradient."""
    features, head, targets = make()
    with torch.no_grad(), _Products() as products:
        total, _ = cross_entropy(features, head, targets, backend="chunked")
    assert products.count == 1
    assert not total.requires_grad
    with _Products() as products:
        cross_entropy(features, head, targets, backend="chunked")
    assert products.count == 3
