from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.ops import BackendUnavailableError, backend_calls, force_backend, threads
from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.decay_scan.chunked import scan_rows
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks

B, H, S = 3, 2, 5
FAST = ("chunked", "numba")


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    log_decay = (-2 * torch.rand(B, length, H, dtype=dtype)).requires_grad_()
    return leaf(B, length, H, S, dtype=dtype), log_decay, leaf(B, H, S, dtype=dtype)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    for exclusive in (False, True):
        compare(
            decay_scan,
            "decay_scan",
            backend,
            inputs(length),
            exclusive=exclusive,
            **masks(gates, B, length),
        )


def test_the_recurrence_by_hand() -> None:
    values = torch.tensor([1.0, 10.0, 100.0]).view(1, 3, 1, 1)
    log_decay = torch.full((1, 3, 1), 0.5).log()
    initial = torch.full((1, 1, 1), 8.0)
    for backend in ("reference", *FAST):
        states, final = decay_scan(values, log_decay, initial, backend=backend)
        found, _ = decay_scan(values, log_decay, initial, exclusive=True, backend=backend)
        assert states.flatten().tolist() == pytest.approx([5.0, 12.5, 106.25])
        assert found.flatten().tolist() == pytest.approx([8.0, 5.0, 12.5])
        assert final.item() == pytest.approx(106.25)


@pytest.mark.parametrize("backend", FAST)
def test_gradient_of_the_final_state_alone(backend: str) -> None:
    compare(decay_scan, "decay_scan", backend, inputs(65), only=1)


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    assert torch.autograd.gradcheck(
        lambda x, g, s: decay_scan(x, g, s, backend=backend), inputs(4), fast_mode=True
    )


@pytest.mark.parametrize("backend", FAST)
def test_splitting_is_invisible(backend: str) -> None:
    x, g, s = inputs(67)
    gates = masks("both", B, 67)
    whole, final = decay_scan(x, g, s, backend=backend, **gates)
    for at in (1, 2, 3, 63, 64, 65):
        first, middle = decay_scan(
            x[:, :at],
            g[:, :at],
            s,
            backend=backend,
            **{k: None if m is None else m[:, :at] for k, m in gates.items()},
        )
        second, last = decay_scan(
            x[:, at:],
            g[:, at:],
            middle,
            backend=backend,
            **{k: None if m is None else m[:, at:] for k, m in gates.items()},
        )
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-10)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2, 16, 64])
def test_every_chunk_size(chunk: int) -> None:
    x, g, s = (t.detach() for t in inputs(100))
    want, _ = decay_scan(x, g, s, backend="reference")
    got = scan_rows(x[:, :, 0], g[:, :, 0], s[:, 0], chunk)
    torch.testing.assert_close(got, want[:, :, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("decay", [0.0, -1e4, float("-inf"), -60.0])
def test_extreme_decays(decay: float, backend: str) -> None:
    x, g, s = inputs(70)
    compare(decay_scan, "decay_scan", backend, (x, torch.full_like(g, decay).requires_grad_(), s))
    mixed = g.detach().clone()
    mixed[:, ::7] = decay
    compare(decay_scan, "decay_scan", backend, (x, mixed.requires_grad_(), s))


@pytest.mark.parametrize("backend", FAST)
def test_float32_and_a_long_sequence(backend: str) -> None:
    length = 8192
    x = torch.randn(1, length, H, S, requires_grad=True)
    g = (-torch.rand(1, length, H) * 0.1).requires_grad_()
    states, final = decay_scan(x, g, backend=backend)
    (states.square().mean() + final.sum()).backward()
    assert all(torch.isfinite(t).all() for t in (states, final, x.grad, g.grad))
    with torch.no_grad():
        want, _ = decay_scan(x.double(), g.double(), backend="chunked")
    torch.testing.assert_close(states.double(), want, rtol=1e-5, atol=1e-5)


def test_half_precision_computes_in_float32() -> None:
    x, g, s = inputs(20)
    states, final = decay_scan(x.bfloat16(), g.bfloat16(), backend="chunked")
    want, _ = decay_scan(x.bfloat16().float(), g.bfloat16().float(), backend="reference")
    assert states.dtype == torch.bfloat16 and final.dtype == torch.float32
    torch.testing.assert_close(states, want.bfloat16(), rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under, _ = decay_scan(x.float(), g.float(), s.float(), backend="chunked")
    exact, _ = decay_scan(x, g, s, backend="reference")
    torch.testing.assert_close(under.double(), exact, rtol=1e-5, atol=1e-5)


def test_rows_split_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compare(decay_scan, "decay_scan", "numba", inputs(9))


def test_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    x, g, _ = inputs(3)
    before = backend_calls()
    decay_scan(x, g)
    assert backend_calls() - before == {("decay_scan", "numba"): 1}
    before = backend_calls()
    with force_backend("reference"):
        decay_scan(x, g)
    assert backend_calls() - before == {("decay_scan", "reference"): 1}
    monkeypatch.setattr("palimpsest.ops.decay_scan.numba_missing", lambda: "not here")
    before = backend_calls()
    decay_scan(x, g)
    assert backend_calls() - before == {("decay_scan", "chunked"): 1}


def test_numba_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.importlib.util, "find_spec", lambda name: None)
    sentence = threads.numba_missing.__wrapped__()
    assert "pip install numba" in sentence
    meta = torch.zeros(1, 1, 1, 1, device="meta")
    with pytest.raises(BackendUnavailableError, match="chunked"):
        decay_scan(meta, meta[..., 0], backend="numba")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"values_BTHS": torch.zeros(B, 4, H)}, ValueError, "values_BTHS has shape"),
        ({"values_BTHS": torch.zeros(B, 0, H, S)}, ValueError, "at least one position"),
        ({"log_decay_BTH": torch.zeros(B, 5, H)}, ValueError, "T=4"),
        ({"initial_BHS": torch.zeros(B, H, 1)}, ValueError, "S=5"),
        ({"hold": torch.zeros(B, 4)}, TypeError, "hold.bool"),
        ({"reset": torch.zeros(B, 3, dtype=torch.bool)}, ValueError, "reset has shape"),
        ({"values_BTHS": torch.zeros(B, 4, H, S, dtype=torch.int64)}, TypeError, "floating"),
        ({"backend": "fused"}, ValueError, "reference, chunked, numba"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {
        "values_BTHS": torch.zeros(B, 4, H, S),
        "log_decay_BTH": torch.zeros(B, 4, H),
    }
    with pytest.raises(error, match=message):
        decay_scan(**{**good, **change})
