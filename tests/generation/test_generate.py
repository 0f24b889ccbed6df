"""Continuing ids: against a plain loop, in batches, with pauses, in constant memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from palimpsest.errors import InputError, StateError
from palimpsest.generation import GREEDY, SamplingConfig, generate, stream
from palimpsest.generation.generate import STOPPED
from palimpsest.models import LanguageModel
from tests.generation.toy_model import ToyConfig, ToyModel

FREE = SamplingConfig(temperature=1.3, top_k=200, top_p=0.98, min_p=1e-4, repetition_penalty=1.1)


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def test_greedy_equals_full_forwards(model: LanguageModel) -> None:
    line = [3, 7, 11, 100]
    for _step in range(12):
        with torch.no_grad():
            line.append(int(model(ids(line)).logits[0, -1].argmax()))
    out = generate(model, ids(line[:4]), max_new_tokens=12, sampling=GREEDY)
    assert out.rows() == [line[4:]]
    assert out.pending.tolist() == [[line[-1]]]
    assert out.stopped == (False,)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_prompt_in_blocks_is_the_prompt_in_one(
    model: LanguageModel, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = torch.arange(length)[None]
    whole = generate(model, prompt, max_new_tokens=5, sampling=GREEDY)
    # read by name: the package's function hides the module of the same name
    import sys

    monkeypatch.setattr(sys.modules["palimpsest.generation.generate"], "PREFILL_TOKENS", 3)
    blocks = generate(model, prompt, max_new_tokens=5, sampling=GREEDY)
    assert torch.equal(whole.tokens, blocks.tokens)


@pytest.mark.parametrize("sampling", [GREEDY, FREE])
def test_padded_rows_equal_single_rows(model: LanguageModel, sampling: SamplingConfig) -> None:
    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    padded = ids(*[[0] * (5 - len(p)) + p for p in prompts])
    mask = ids(*[[0] * (5 - len(p)) + [1] * len(p) for p in prompts])
    alone = [
        generate(model, ids(p), max_new_tokens=20, sampling=sampling, seed=40 + i)
        for i, p in enumerate(prompts)
    ]
    stop = alone[0].rows()[0][6]  # the first row meets it at the latest here
    alone = [
        generate(model, ids(p), max_new_tokens=20, sampling=sampling, seed=40 + i, stop_ids=[stop])
        for i, p in enumerate(prompts)
    ]
    out = generate(
        model,
        padded,
        attention_mask=mask,
        max_new_tokens=20,
        sampling=sampling,
        seed=40,
        stop_ids=[stop],
    )
    for i, single in enumerate(alone):
        assert out.rows()[i] == single.rows()[0]
        assert out.stopped[i] == single.stopped[0]
        assert torch.equal(out.pending[i], single.pending[0])
        assert torch.equal(out.seen[i], single.seen[0])
        name, ours = next(out.state.named_tensors())
        theirs = dict(single.state.named_tensors())[name]
        assert torch.allclose(ours[i], theirs[0])
    assert out.stopped[0] and out.tokens[0, len(out.rows()[0]) :].eq(STOPPED).all()
    assert out.rows()[0][-1] == stop


@pytest.mark.parametrize("sampling", [GREEDY, FREE])
def test_a_continuation_goes_on_without_a_seam(
    model: LanguageModel, sampling: SamplingConfig
) -> None:
    prompt = ids([1, 2, 3], [4, 5, 6])
    whole = generate(model, prompt, max_new_tokens=14, sampling=sampling, seed=3)
    steps = stream(model, prompt, max_new_tokens=6, sampling=sampling, seed=3)
    first = torch.stack(list(steps), 1)
    rest = generate(
        model,
        steps.pending,
        state=steps.state,
        max_new_tokens=8,
        sampling=sampling,
        generators=steps.generators,
        seen=steps.seen,
    )
    assert torch.equal(torch.cat([first, rest.tokens], 1), whole.tokens)


def test_a_given_state_is_not_changed(model: LanguageModel) -> None:
    state = generate(model, ids([1, 2, 3]), max_new_tokens=2).state
    before = state.clone()
    generate(model, ids([4, 5]), state=state, max_new_tokens=5)
    for (_, a), (_, b) in zip(state.named_tensors(), before.named_tensors(), strict=True):
        assert torch.equal(a, b)


def test_memory_does_not_grow() -> None:
    import palimpsest

    model = palimpsest.build("gpnm-tiny")
    steps = stream(model, ids([1, 2, 3]), max_new_tokens=60)
    sizes = set()
    for _ids in steps:
        sizes.add((steps.state.nbytes, steps.seen.nbytes, steps.pending.nbytes))
        assert all(
            t.untyped_storage().nbytes() == t.numel() * t.element_size()
            for _, t in steps.state.named_tensors()
        ), "a view keeps the memory of a larger tensor"
    assert len(sizes) == 1


def test_no_gradient_and_the_mode_stays(model: LanguageModel) -> None:
    model.train()
    steps = stream(model, ids([1, 2]), max_new_tokens=2)
    next(steps)
    assert model.training and torch.is_grad_enabled()
    assert not any(t.requires_grad for _, t in steps.state.named_tensors())


def test_forbidden_ids_do_not_appear(model: LanguageModel) -> None:
    allowed = [4, 9]
    forbidden = [i for i in range(259) if i not in allowed]
    out = generate(model, ids([1]), max_new_tokens=30, forbidden_ids=forbidden)
    assert set(out.rows()[0]) <= set(allowed)


def test_the_penalty_knows_the_prompt_but_not_its_padding(model: LanguageModel) -> None:
    steps = stream(
        model, ids([0, 0, 8]), attention_mask=ids([0, 0, 1]), max_new_tokens=1, sampling=GREEDY
    )
    assert steps.seen[0].nonzero().flatten().tolist() == [8]
    new = int(next(steps)[0])
    assert sorted({8, new}) == steps.seen[0].nonzero().flatten().tolist()


def test_bf16_runs(model: LanguageModel) -> None:
    out = generate(model.float(), ids([1, 2, 3]), max_new_tokens=3, precision="bf16")
    assert out.tokens.shape == (1, 3)


def test_bounded_length_is_respected() -> None:
    model = ToyModel(ToyConfig(vocab_size=20, length=8))
    prompt = ids([1, 2, 3])
    out = generate(model, prompt, max_new_tokens=6)
    with pytest.raises(InputError, match=r"3 prompt tokens and max_new_tokens=7.*at most 8"):
        generate(model, prompt, max_new_tokens=7)
    with pytest.raises(InputError, match=r"8 tokens in the state.*at most 8"):
        generate(model, out.pending, state=out.state, max_new_tokens=2)


def test_a_model_that_is_not_causal_is_refused() -> None:
    model = ToyModel(ToyConfig(vocab_size=20, causal=False))
    with pytest.raises(InputError, match="toy with this configuration is not causal"):
        stream(model, ids([1]), max_new_tokens=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": torch.tensor([1, 2])}, "input_ids of shape"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "input_ids of shape"),
        ({"input_ids": torch.zeros(1, 2)}, "dtype torch.float32"),
        ({"input_ids": torch.tensor([[1, 259]])}, "contains 259"),
        ({"input_ids": torch.tensor([[-1, 2]])}, "contains -1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"attention_mask": torch.tensor([[1, 0]])}, "pad prompts on the left"),
        ({"attention_mask": torch.tensor([[1]])}, "attention_mask of shape"),
        ({"stop_ids": [259]}, r"stop_ids=\[259\]"),
        ({"forbidden_ids": [-1]}, r"forbidden_ids=\[-1\]"),
        ({"generators": []}, "0 generators for 1 rows"),
        ({"seed": -3}, "seed=-3"),
        ({"sampling": SamplingConfig(top_k=260)}, "top_k=260: the model has 259 ids"),
        ({"precision": "int4"}, "precision='int4'"),
    ],
)
def test_bad_arguments_are_refused_before_reading(
    model: LanguageModel, change: dict, words: str
) -> None:
    arguments = {"input_ids": ids([1, 2]), "max_new_tokens": 1, **change}
    with pytest.raises(InputError, match=words):
        stream(model, arguments.pop("input_ids"), **arguments)


def test_a_foreign_state_is_refused(model: LanguageModel) -> None:
    state = model.init_state(2)
    with pytest.raises(StateError, match="2 rows"):
        stream(model, ids([1, 2]), state=state, max_new_tokens=1)
