"""What a call cannot take is refused by name, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import InputError, StateError
from palimpsest.state import State
from tests.contract.configs import CONFIGS
from tests.contract.harness import Setting, models_only, random_ids

Call = Callable[[palimpsest.LanguageModel, Tensor], Any]

BAD_CALLS: dict[str, tuple[Call, str]] = {
    "id beyond the vocabulary": (
        lambda m, x: m(x + m.config.vocab_size),
        r"input_ids .*vocab_size",
    ),
    "negative id": (lambda m, x: m(x - m.config.vocab_size), r"input_ids contains -"),
    "-100 among the ids": (lambda m, x: m(torch.full_like(x, -100)), r"input_ids contains -100"),
    "float ids": (lambda m, x: m(x.float()), r"input_ids of dtype torch.float32"),
    "bool ids": (lambda m, x: m(x.bool()), r"input_ids of dtype torch.bool"),
    "no positions": (lambda m, x: m(x[:, :0]), r"input_ids of shape \(2, 0\)"),
    "no rows": (lambda m, x: m(x[:0]), r"input_ids of shape \(0, 5\)"),
    "one dimension": (lambda m, x: m(x[0]), r"input_ids of shape \(5,\)"),
    "attention mask of another length": (
        lambda m, x: m(x, attention_mask=torch.ones(2, 4)),
        r"attention_mask of shape \(2, 4\)",
    ),
    "attention mask without rows": (
        lambda m, x: m(x, attention_mask=torch.ones(5)),
        r"attention_mask of shape \(5,\)",
    ),
    "reset mask of another length": (
        lambda m, x: m(x, reset_mask=torch.zeros(2, 6)),
        r"reset_mask of shape \(2, 6\)",
    ),
    "targets of another length": (
        lambda m, x: m(x, targets=x[:, 1:]),
        r"targets of shape \(2, 4\).*aligned",
    ),
    "target beyond the vocabulary": (
        lambda m, x: m(x, targets=x + m.config.vocab_size),
        r"targets contains",
    ),
    "target that is neither an id nor -100": (
        lambda m, x: m(x, targets=torch.full_like(x, -1)),
        r"targets contains -1",
    ),
    "float targets": (lambda m, x: m(x, targets=x.float()), r"targets of dtype torch.float32"),
    "unknown reading": (lambda m, x: m(x, predict="previous"), r"predict='previous'"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
@models_only()
def test_bad_call(setting: Setting, what: str) -> None:
    call, message = BAD_CALLS[what]
    model = setting.build()
    with pytest.raises(InputError, match=message):
        call(model, random_ids(model, 2, 5))


@models_only()
def test_other_integer_types_are_taken(setting: Setting) -> None:
    """Also unsigned ones, in which -100 does not exist."""
    model = setting.build()
    ids = random_ids(model, 2, 5)
    attention = torch.ones_like(ids)
    attention[0, 3:] = 0
    want = model(ids, targets=ids, attention_mask=attention)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        x = ids.to(dtype)
        got = model(x, targets=x, attention_mask=attention)
        assert torch.equal(got.loss, want.loss)
        assert got.n_targets == want.n_targets


@models_only()
def test_state_of_another_batch(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, 5)
    with pytest.raises(StateError, match=r"3 rows with input_ids of 2 rows"):
        model(ids, model.init_state(3))


@models_only()
def test_state_on_another_device(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, 5)
    with pytest.raises(StateError, match=r"is on meta and the model on cpu: use state\.to\('cpu'"):
        model(ids, model(ids).state.to("meta"))


@models_only()
def test_state_of_another_model(setting: Setting) -> None:
    """Every other tiny configuration, of the same architecture or of another."""
    model = setting.build()
    ids = random_ids(model, 2, 5)
    own = {n: t.shape for n, t in model(ids).state.named_tensors()}
    for other, table in CONFIGS.items():
        for label, fields in table.items():
            if (other, label) == (setting.model, setting.label):
                continue
            foreign = palimpsest.build(other, **fields)
            state = foreign(random_ids(foreign, 2, 5)).state
            if (
                type(state) is model.state_class
                and {n: t.shape for n, t in state.named_tensors()} == own
            ):
                continue  # nothing in a state tells these two apart
            with pytest.raises(StateError, match=setting.model):
                model(ids, state)


@models_only()
def test_what_is_not_a_state(setting: Setting) -> None:
    model = setting.build()
    ids = random_ids(model, 2, 5)
    for wrong in (State(), ids, (1, 2), {"memory": ids}):
        with pytest.raises(StateError, match="state of kind"):
            model(ids, wrong)


@models_only()
def test_unknown_field(setting: Setting) -> None:
    fields = CONFIGS[setting.model][setting.label]
    with pytest.raises(palimpsest.ConfigError, match=r"vocab_sice=3.*did you mean 'vocab_size'"):
        palimpsest.build(setting.model, **fields, vocab_sice=3)
    with pytest.raises(palimpsest.ConfigError, match=r"vocab_size=0: must be a whole number"):
        palimpsest.build(setting.model, **{**fields, "vocab_size": 0})
    required = {name: value for name, value in fields.items() if name != "vocab_size"}
    with pytest.raises(palimpsest.ConfigError, match="needs vocab_size"):
        palimpsest.build(setting.model, **required)
