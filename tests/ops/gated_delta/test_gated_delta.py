from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from palimpsest.ops import BackendUnavailableError, backend_calls
from palimpsest.ops.dispatch import dispatchers
from palimpsest.ops.gated_delta import chunked, gated_delta
from tests.comparison import assert_close
from tests.ops.decay_scan.cases import GATES, LENGTHS, compare, leaf, masks, values_and_gradients

B, H, K, V = 3, 2, 5, 7
FAST = [name for name in dispatchers()["gated_delta"].available() if name != "reference"]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(
    length: int,
    dtype: torch.dtype = torch.float64,
    sizes: tuple[int, ...] = (B, H, K, V),
    decay: float = 2.0,
) -> Inputs:
    """Queries, unit keys, values, log decays in [-decay, 0], β in (0, 1), an initial memory."""
    batch, heads, keys, values = sizes
    return (
        leaf(batch, length, heads, keys, dtype=dtype),
        F.normalize(torch.randn(batch, length, heads, keys, dtype=dtype), dim=-1).requires_grad_(),
        leaf(batch, length, heads, values, dtype=dtype),
        (-decay * torch.rand(batch, length, heads, dtype=dtype)).requires_grad_(),
        torch.rand(batch, length, heads, dtype=dtype).requires_grad_(),
        leaf(batch, heads, keys, values, dtype=dtype),
    )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(length: int, gates: str, backend: str) -> None:
    compare(gated_delta, "gated_delta", backend, inputs(length), **masks(gates, B, length))


def test_one_step_by_hand() -> None:
    q, k, v, g, beta, memory = inputs(1)
    out, final = gated_delta(q, k, v, g, beta, memory, scale=0.5)
    kept = g.exp()[:, 0, :, None, None] * memory
    error = v[:, 0] - torch.einsum("bhkv,bhk->bhv", kept, k[:, 0])
    want = kept + torch.einsum("bhk,bhv,bh->bhkv", k[:, 0], error, beta[:, 0])
    torch.testing.assert_close(final, want)
    torch.testing.assert_close(out[:, 0], 0.5 * torch.einsum("bhkv,bhk->bhv", want, q[:, 0]))


def test_beta_of_one_recalls_the_value() -> None:
    _, k, v, g, beta, memory = inputs(70)
    out, _ = gated_delta(k, k, v, g, torch.ones_like(beta), memory, scale=1.0, backend="chunked")
    torch.testing.assert_close(out, v)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("only", [0, 1])
def test_gradient_of_each_output_alone(only: int, backend: str) -> None:
    compare(gated_delta, "gated_delta", backend, inputs(65), only=only)


@pytest.mark.parametrize("backend", ("reference", *FAST))
def test_gradcheck(backend: str) -> None:
    for options in ({}, masks("both", B, 3)):
        assert torch.autograd.gradcheck(
            lambda *x, o=options: gated_delta(*x, backend=backend, scale=0.7, **o),
            inputs(3),
            fast_mode=True,
        )


@pytest.mark.parametrize("backend", FAST)
def test_splitting_is_invisible(backend: str) -> None:
    *sequences, memory = inputs(67)
    whole, final = gated_delta(*sequences, memory, backend=backend)
    for at in (1, 2, 31, 32, 33, 64, 66):
        first, middle = gated_delta(*(x[:, :at] for x in sequences), memory, backend=backend)
        second, last = gated_delta(*(x[:, at:] for x in sequences), middle, backend=backend)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-12)


def test_padding_is_as_if_it_were_not_there() -> None:
    *sequences, memory = inputs(9)
    hold = torch.tensor([[True, False, False, True, True, False, False, False, True]]).expand(B, 9)
    kept = ~hold[0]
    for backend in ("reference", *FAST):
        out, final = gated_delta(*sequences, memory, hold=hold, backend=backend)
        want, want_final = gated_delta(*(x[:, kept] for x in sequences), memory, backend=backend)
        torch.testing.assert_close(out[:, kept], want)
        torch.testing.assert_close(final, want_final)


@pytest.mark.parametrize("longest", [1, 2, 7, 32, 64, 128])
def test_every_chunk_length(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "LONGEST", longest)
    compare(gated_delta, "gated_delta", "chunked", inputs(67), **masks("both", B, 67))


def test_many_rows_take_shorter_chunks() -> None:
    compare(gated_delta, "gated_delta", "chunked", inputs(67, sizes=(5, 2, K, V)))


@pytest.mark.parametrize(("rows", "lengths"), [(7, [1, 63, 64, 33, 64]), (8, [1, 32, 32, 22, 32])])
def test_chunks_are_of_even_length(rows: int, lengths: list[int]) -> None:
    cpu = torch.device("cpu")
    assert [chunked.chunk_length(n, rows, cpu) for n in (1, 63, 64, 65, 4096)] == lengths


def test_without_gradient_one_memory_is_kept() -> None:
    """What the chunks find is the largest part of what a backward pass needs."""
    wide = inputs(640)
    want, want_final = gated_delta(*wide, backend="reference")
    with torch.no_grad():
        got, final = gated_delta(*(x.detach() for x in wide), backend="chunked")
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(final, want_final)


@pytest.mark.parametrize("decay", [0.0, -60.0, -109.0, -1e4, float("-inf")])
def test_extreme_decays(decay: float) -> None:
    q, k, v, g, beta, memory = inputs(70)
    same = torch.full_like(g, decay).requires_grad_()
    compare(gated_delta, "gated_delta", "chunked", (q, k, v, same, beta, memory))
    mixed = g.detach().clone()
    mixed[:, ::7, :1] = decay  # one head only
    mixed.requires_grad_()
    compare(gated_delta, "gated_delta", "chunked", (q, k, v, mixed, beta, memory))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_beta_at_its_ends(value: float) -> None:
    q, k, v, g, beta, memory = inputs(70)
    end = torch.full_like(beta, value).requires_grad_()
    compare(gated_delta, "gated_delta", "chunked", (q, k, v, g, end, memory))


def test_the_same_key_again_and_again() -> None:
    """Errors feed on one another through the whole chunk, with nothing forgotten."""
    q, k, v, g, beta, memory = inputs(70)
    one = k.detach()[:, :1].expand_as(k).clone().requires_grad_()
    still = torch.zeros_like(g).requires_grad_()
    compare(gated_delta, "gated_delta", "chunked", (q, one, v, still, beta, memory))


def test_causal() -> None:
    q, k, v, g, beta, memory = (x.detach() for x in inputs(70))
    out, _ = gated_delta(q, k, v, g, beta, memory)
    for x in (q, k, v, g, beta):
        x[:, 40:] = -x[:, 40:].abs() / 2
    changed, _ = gated_delta(q, k, v, g, beta, memory)
    assert torch.equal(changed[:, :35], out[:, :35])  # the chunk of 40 starts at 35
    torch.testing.assert_close(changed[:, 35:40], out[:, 35:40], rtol=0, atol=1e-12)
    assert not torch.allclose(changed[:, 40:], out[:, 40:])


@pytest.mark.parametrize("gates", GATES)
def test_float32(gates: str) -> None:
    wide = inputs(200, sizes=(2, 2, 16, 24), decay=0.2)
    narrow = [x.detach().float().requires_grad_() for x in wide]
    options = {name: None if m is None else m[:2] for name, m in masks(gates, 3, 200).items()}

    def run(backend: str) -> Any:
        return lambda *x: gated_delta(*x, backend=backend, **options)

    want = values_and_gradients(run("reference"), wide)
    got = values_and_gradients(run("chunked"), narrow)
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, 2e-5, floor=1e-3)


def test_float32_with_many_documents_is_as_exact_as_without() -> None:
    """A reset is a cut, not a number as low as -inf in a running sum."""
    wide = inputs(256, sizes=(1, 2, 16, 24), decay=0.01)
    reset = torch.zeros(1, 256, dtype=torch.bool)
    reset[:, ::3] = True
    narrow = [x.detach().float() for x in wide]
    want, _ = gated_delta(*wide, reset=reset, backend="reference")
    got, _ = gated_delta(*narrow, reset=reset, backend="chunked")
    assert_close(got, want, 1e-6)


def test_a_long_sequence_stays_finite() -> None:
    sizes = (1, 2, 16, 24)
    narrow = inputs(4096, torch.float32, sizes, decay=0.02)
    out, final = gated_delta(*narrow)
    (out.square().mean() + final.sum()).backward()
    assert all(torch.isfinite(t).all() for t in (out, final, *(x.grad for x in narrow)))
    want, _ = gated_delta(*(x.detach().double() for x in narrow))
    assert_close(out, want, 1e-5)


def test_strided_views_and_no_gradient() -> None:
    block = torch.randn(B, 12, 2, H, K, dtype=torch.float64)
    q, k = block[:, :, 0], F.normalize(block, dim=-1)[:, :, 1]
    v = torch.randn(B, H, 12, V, dtype=torch.float64).transpose(1, 2)
    g, beta = -torch.rand(2, B, 12, H, dtype=torch.float64)
    arguments = [x.clone() for x in (q, k, v, g, beta)]
    want = gated_delta(q, k, v, g, beta.abs(), backend="reference")
    for length in (12, 1):
        initial = torch.zeros(B, H, K, V, dtype=torch.float64)
        cut = (x[:, :length] for x in (q, k, v, g, beta.abs()))
        got, final = gated_delta(*cut, initial, backend="chunked")
        torch.testing.assert_close(got, want[0][:, :length], rtol=0, atol=1e-12)
        assert not initial.any(), "the initial memory was changed in place"
        assert final.untyped_storage().nbytes() == final.numel() * 8
    for before, after in zip(arguments, (q, k, v, g, beta), strict=True):
        assert torch.equal(before, after), "an argument was changed in place"


def test_contiguous_rows_are_not_changed() -> None:
    """One head and one chunk: the layout inside is that of the arguments."""
    narrow = [x.detach() for x in inputs(8, sizes=(1, 1, K, V))]
    before = [x.clone() for x in narrow]
    gated_delta(*narrow, backend="chunked")
    assert all(torch.equal(a, b) for a, b in zip(before, narrow, strict=True))


def test_bfloat16_values_come_back_as_such() -> None:
    *narrow, memory = (x.detach().bfloat16() for x in inputs(8))
    out, final = gated_delta(*narrow, memory.float())
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    want, _ = gated_delta(*(x.float() for x in narrow), memory.float())
    assert torch.equal(out, want.bfloat16())


def test_autocast_does_not_touch_the_products() -> None:
    narrow = [x.detach().float().requires_grad_() for x in inputs(20)]
    want = values_and_gradients(gated_delta, narrow)
    with torch.autocast("cpu", torch.bfloat16):
        got = values_and_gradients(gated_delta, narrow)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_is_not_the_rule_of_the_grounded_networks() -> None:
    """There the prediction is read before the decay."""
    q, k, v, g, beta, memory = (x.detach() for x in inputs(1))
    _, final = gated_delta(q, k, v, g, beta, memory)
    early = v[:, 0] - torch.einsum("bhkv,bhk->bhv", memory, k[:, 0])
    other = g.exp()[:, 0, :, None, None] * memory
    other = other + torch.einsum("bhk,bhv,bh->bhkv", k[:, 0], early, beta[:, 0])
    assert not torch.allclose(final, other)


def test_automatic_choice() -> None:
    for length, backend in ((1, "reference"), (2, "chunked")):
        before = backend_calls()
        gated_delta(*inputs(length))
        assert backend_calls() - before == {("gated_delta", backend): 1}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_fla_says_in_one_sentence_why_not() -> None:
    with pytest.raises(BackendUnavailableError, match="needs a CUDA device; use backend='chunked'"):
        gated_delta(*inputs(2), backend="fla")


@pytest.mark.gpu
@pytest.mark.parametrize("gates", GATES)
def test_fla_equals_chunked(gates: str) -> None:
    pytest.importorskip("fla", reason="fla-core is not installed")
    device = "cuda"
    wide = [x.detach().to(device) for x in inputs(130, torch.float32, (3, 4, 64, 128), 0.1)]
    options = {n: None if m is None else m.to(device) for n, m in masks(gates, 3, 130).items()}
    narrow = [x.bfloat16() for x in wide[:3]] + wide[3:]

    def run(backend: str) -> Any:
        return lambda *x: [t.cpu() for t in gated_delta(*x, backend=backend, **options)]

    leaves = [[x.clone().requires_grad_() for x in narrow] for _ in range(2)]
    got = values_and_gradients(run("fla"), leaves[0])
    want = values_and_gradients(run("chunked"), leaves[1])
    for g, w in zip(got, want, strict=True):
        error = float((g.double() - w.double()).norm()) / float(w.double().norm())
        assert error < 0.02  # bf16 products


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys_BTHK": torch.zeros(B, 4, H, K + 1)}, "queries_BTHK has shape"),
        ({"keys_BTHK": torch.zeros(B, 4, H + 1, K)}, "keys_BTHK has shape"),
        ({"keys_BTHK": torch.zeros(())}, "keys_BTHK has shape"),
        ({"beta_BTH": torch.zeros(B, 4, H, 1)}, "beta_BTH has shape"),
        ({"log_decay_BTH": torch.zeros(B, 4, 2 * H)}, "log_decay_BTH has shape"),
        ({"initial_BHKV": torch.zeros(B, H, V, K)}, r"K=5, V=7"),
        ({"values_BTHV": torch.zeros(B, 0, H, V)}, "at least one position"),
        ({"reset": torch.zeros(B, 5, dtype=torch.bool)}, "reset has shape"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "queries_BTHK": torch.zeros(B, 4, H, K),
        "keys_BTHK": torch.zeros(B, 4, H, K),
        "values_BTHV": torch.zeros(B, 4, H, V),
        "log_decay_BTH": torch.zeros(B, 4, H),
        "beta_BTH": torch.zeros(B, 4, H),
    }
    with pytest.raises(ValueError, match=message):
        gated_delta(**{**good, **change})
    with pytest.raises(TypeError, match="hold has dtype"):
        gated_delta(**good, hold=torch.zeros(B, 4))
