"""Logits are computed when first read, and belong to the call that made them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import InputError
from tests.contract.harness import LENGTH, Setting, models_only, random_ids, settings


def model_and_ids() -> tuple[palimpsest.LanguageModel, Tensor]:
    model = palimpsest.build("gpn", vocab_size=37, d_state=13, d_emb=6, d_ffn=17)
    return model, random_ids(model, 2, LENGTH)


@pytest.mark.parametrize("reading", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("with_targets", [False, True])
@models_only()
def test_read_without_grad_first(
    setting: Setting, with_targets: bool, reading: Callable[[], torch.no_grad]
) -> None:
    model = setting.build()
    ids = random_ids(model, 2, LENGTH)
    wanted = model(ids).logits
    want = torch.autograd.grad(wanted.sum(), model.head_weight())[0]
    output = model(ids, targets=ids if with_targets else None)
    with reading():
        assert output.logits.argmax(-1).shape == ids.shape
    assert torch.equal(output.logits, wanted)
    (got,) = torch.autograd.grad(output.logits.sum(), model.head_weight())
    assert torch.equal(got, want)


@pytest.mark.parametrize("calling", [torch.no_grad, torch.inference_mode])
def test_a_call_without_grad_gives_logits_without(calling: Callable[[], torch.no_grad]) -> None:
    model, ids = model_and_ids()
    with calling():
        output = model(ids, targets=ids)
    assert not output.logits.requires_grad
    assert torch.equal(output.logits, model(ids).logits)


def optimizer_step(model: palimpsest.LanguageModel) -> None:
    torch.optim.SGD(model.parameters(), 0.5).step()


def load_others(model: palimpsest.LanguageModel) -> None:
    model.load_state_dict({n: p + 1 for n, p in model.state_dict().items()})


def change_dtype(model: palimpsest.LanguageModel) -> None:
    model.double()


@pytest.mark.parametrize("change", [optimizer_step, load_others, change_dtype])
def test_read_after_the_head_has_changed(
    change: Callable[[palimpsest.LanguageModel], None],
) -> None:
    model, ids = model_and_ids()
    early, late = model(ids, targets=ids), model(ids, targets=ids)
    before = early.logits.detach().clone()
    early.loss.backward()
    change(model)
    assert torch.equal(early.logits, before), "what was read stays"
    with pytest.raises(InputError, match=r"output\.logits.* before optimizer\.step\(\)"):
        _ = late.logits


def test_other_weights_may_change() -> None:
    model, ids = model_and_ids()
    output = model(ids)
    want = model(ids).logits
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter is not model.head_weight():
                parameter += 1
    assert torch.equal(output.logits, want)


@settings("fp32", "bf16", backends=["automatic"])
def test_autocast_is_that_of_the_call(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, LENGTH)
    with setting.active():
        want = model(ids).logits
        output = model(ids)
    other = setting.precision != "bf16"
    with torch.autocast("cpu", torch.bfloat16, enabled=other):
        got = output.logits
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_a_loss_alone_makes_no_logits() -> None:
    model, ids = model_and_ids()
    output = model(ids, targets=ids)
    output.loss.backward()
    assert "logits" not in vars(output)
