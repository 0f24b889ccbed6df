"""What is gathered against what the model itself says.

Legend: T positions, V vocabulary, N tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.analysis import record, taps
from palimpsest.analysis.horizons import measure_retention
from palimpsest.errors import InputError
from palimpsest.inspect import collect
from palimpsest.inspect.memory import choose_positions, shrink
from palimpsest.inspect.reading import cut_feed
from palimpsest.inspect.views import layer_of
from palimpsest.models import LanguageModel
from tests.contract.configs import CONFIGS
from tests.inspect.letters import Letters

FIRST = {name: next(iter(configs.values())) for name, configs in CONFIGS.items()}
TEXT = 'the state is rewritten at every token,\nnothing <else> is "kept" & nothing is lost. ' * 2
TEXT = TEXT.replace(">", "")


def build(name: str, **changes: Any) -> LanguageModel:
    torch.manual_seed(1)
    model = palimpsest.build(name, **{**FIRST[name], **changes}).double().eval()
    for parameter in model.parameters():  # a fresh model predicts nearly nothing
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def log_probabilities(model: LanguageModel, ids: list[int]) -> Tensor:
    """(T,V) of the token after each."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1)


def check_predictions(found: Any, log_NV: Tensor, ids: list[int]) -> None:
    """Against the logarithms of what was predicted at the place of each token."""
    own_N = log_NV[torch.arange(len(ids)), torch.tensor(ids)]
    np.testing.assert_allclose(found.surprise_N, -own_N / math.log(2), rtol=1e-6, atol=1e-6)
    best = log_NV.exp().topk(5, -1)
    np.testing.assert_array_equal(found.top_ids_NP, best.indices)
    np.testing.assert_allclose(found.top_probabilities_NP, best.values, rtol=1e-6)
    np.testing.assert_array_equal(found.rank_N, (log_NV > own_N[:, None]).sum(-1) + 1)
    entropy_N = -(log_NV.exp() * log_NV).sum(-1) / math.log(2)
    np.testing.assert_allclose(found.entropy_N, entropy_N, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(FIRST))
def test_predictions_and_views_of_every_model(name: str) -> None:
    model, tokenizer = build(name), Letters()
    ids = tokenizer.encode(TEXT)[:60]
    found = collect(model, tokenizer, [ids], label="a")
    check_predictions(found, log_probabilities(model, [tokenizer.bos_id or 0, *ids])[:-1], ids)
    assert found.points_N2.shape == (60, 2) and np.isfinite(found.points_N2).all()
    assert found.cells.text == TEXT[:60].replace("\n", "↵\n")
    for gate in found.gates:
        assert gate.values_N.shape == (60,) and np.isfinite(gate.values_N).all()
    for heads in found.heads:
        assert heads.values_NH.shape[0] == 60
        assert len(heads.half_lives) == (heads.values_NH.shape[1] if heads.longest_lag else 0)
    assert set(np.unique(found.top_ids_NP)) <= set(found.labels)
    panels = (
        found.gates,
        [h for h in found.heads if h.kind == "write"],
        found.retrieved,
        found.memories,
    )
    words = ("gates", "write strength", "retrieves", "memory matrix")
    for there, word in zip(panels, words, strict=True):
        assert bool(there) != any(word in line for line in found.missing)


def test_what_the_taps_say_reaches_the_token_that_was_read() -> None:
    model, tokenizer = build("gpnm"), Letters()
    ids = tokenizer.encode(TEXT)
    with torch.no_grad(), record(model, ["memory.*", "gate.*"]) as tape:
        model(torch.tensor([[tokenizer.bos_id, *ids]]))
    found = collect(model, tokenizer, [ids])
    heads = {part.title: part for part in found.heads}
    np.testing.assert_allclose(
        heads["write β"].values_NH, tape["memory.beta"][0, 1:], atol=1e-3, rtol=1e-3
    )
    np.testing.assert_allclose(
        heads["retention"].values_NH, tape["memory.log_decay"][0, 1:], atol=1e-3, rtol=1e-3
    )
    gates = {part.name: part for part in found.gates}
    expected = tape["gate.ground"][0, 1:].mean(-1)
    np.testing.assert_allclose(gates["gate.ground"].values_N, expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["gpnm", "triple-slot", "mamba2"])
def test_pictures_of_the_memory_show_the_matrices_of_the_taps(name: str) -> None:
    model, tokenizer = build(name), Letters()
    documents = [tokenizer.encode(TEXT), tokenizer.encode(TEXT)[:30]]
    found = collect(model, tokenizer, documents, window=20)
    assert found.memories
    for part in found.memories:
        at_M = part.positions_M
        assert 50 < len(at_M) <= 64 and at_M[-1] == found.tokens - 1
        tap = next(
            n for n in taps(model) if n.endswith("memory.matrix") and layer_of(n) == part.layer
        )
        # the window of the first tokens, from an empty state
        with torch.no_grad(), record(model, [tap]) as tape:
            model(torch.tensor([[tokenizer.bos_id, *documents[0]][:20]]))
        early_M = at_M[at_M < 19]
        assert len(early_M) > 3
        whole = tape[tap][0, 1:].flatten(1, -3)[early_M.tolist()]
        shown = part.values_MHRC[: len(early_M)] * (part.scale_H / 127)[:, None, None]
        error = np.abs(shown - shrink(whole.float()).numpy())
        assert (error <= part.scale_H[:, None, None] / 127).all()
        assert np.abs(part.values_MHRC).max() == 127


def test_pictures_of_the_memory_have_a_bounded_size() -> None:
    for matrices in (1, 8, 72, 5000):
        count = len(choose_positions(20_000, matrices))
        assert 1 <= count <= 64 and count * min(matrices, 128) * 24 * 24 <= 400_000
    assert choose_positions(3, 8).tolist() == [0, 1, 2]
    matrix = torch.zeros(2, 50, 70)
    matrix[0, 49, 69], matrix[1, 0, 0] = -3.0, 2.0
    small = shrink(matrix)
    assert small.shape == (2, 24, 24)
    assert small[0, -1, -1] == -3 and small[1, 0, 0] == 2 and small.abs().sum() == 5


def test_half_lives_are_those_of_the_analysis() -> None:
    model, tokenizer = build("gpnm"), Letters(begin=False)
    ids = tokenizer.encode(TEXT)
    found = collect(model, tokenizer, [ids])
    expected = measure_retention(model, torch.tensor([ids]))
    (part,) = [part for part in found.heads if part.kind == "retention"]
    for mine, theirs in zip(part.half_lives, expected.heads, strict=True):
        assert mine == pytest.approx(theirs.half_life, rel=1e-5)


def test_a_text_longer_than_one_call_and_two_documents() -> None:
    model, tokenizer = build("gpnm"), Letters()
    first = tokenizer.encode(TEXT * 8)  # beyond one piece
    second = tokenizer.encode("a second one, from an empty state.")
    found = collect(model, tokenizer, [first, [], second])
    assert len(first) > 1024 and found.document_starts == (0, len(first))
    logs = [log_probabilities(model, [tokenizer.bos_id or 0, *x])[:-1] for x in (first, second)]
    check_predictions(found, torch.cat(logs), [*first, *second])


def test_windows_count_where_there_is_most_context() -> None:
    model, tokenizer = build("gpn"), Letters(begin=False)
    ids = tokenizer.encode(TEXT)[:45]
    found = collect(model, tokenizer, [ids], window=10)
    assert math.isnan(found.surprise_N[0]) and found.rank_N[0] == 0
    for at in range(1, 45):
        # windows start at 0, 5, 10, …; the last one where it just ends with the text
        start = 0 if at <= 10 else ((at - 1) // 5 - 1) * 5
        log_V = log_probabilities(model, ids[start:at])[-1]
        assert found.surprise_N[at] == pytest.approx(float(-log_V[ids[at]] / math.log(2)), rel=1e-5)


@pytest.mark.parametrize("window", [None, 2, 3, 7, 10, 64])
@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 33, 600])
def test_every_position_is_kept_once(length: int, window: int | None) -> None:
    kept: list[int] = []
    predicted: list[int] = []
    for part in cut_feed(length, window, 100):
        kept += range(part.keep, part.stop)
        predicted += range(part.predict, part.until)
        assert part.start <= min(part.keep, part.predict)
        assert part.stop - part.start <= (window or 512)
    assert kept == list(range(length))
    assert predicted == list(range(length - 1))


def test_a_run_that_predicts_its_first_token_from_the_empty_state() -> None:
    model, tokenizer = build("gpn"), Letters(begin=False)
    ids = tokenizer.encode("first")
    found = collect(model, tokenizer, [ids], predict="current")
    with torch.no_grad():
        log_NV = model(torch.tensor([ids]), predict="current").logits[0].log_softmax(-1)
    check_predictions(found, log_NV, ids)


def test_retrieved_positions_point_into_the_text() -> None:
    model, tokenizer = build("gated-hybrid"), Letters()
    ids = tokenizer.encode(TEXT)[:50]
    found = collect(model, tokenizer, [ids, ids])
    assert found.retrieved
    for part in found.retrieved:
        positions, weights = part.positions_NK, part.weights_NK
        assert (positions < np.arange(100)[:, None]).all()
        second = positions[50:]
        assert ((second == -1) | (second >= 50)).all()  # nothing of the other document
        np.testing.assert_array_equal(second[second >= 0], positions[:50][second >= 0] + 50)
        assert (weights[positions >= 0] > 0).any() and (weights >= 0).all()


def test_what_cannot_be_inspected() -> None:
    model, tokenizer = build("gpn"), Letters()
    with pytest.raises(InputError, match="no tokens"):
        collect(model, tokenizer, [[], []])
    with pytest.raises(InputError, match="window=1: must be at least 2"):
        collect(model, tokenizer, [[1, 2]], window=1)
    bounded = build("transformer", max_seq_len=16)
    with pytest.raises(InputError, match=r"window=17: must be at least 2; .* at most 16"):
        collect(bounded, tokenizer, [[1, 2]], window=17)
    next(iter(model.parameters())).data.fill_(math.nan)
    with pytest.raises(InputError, match="not finite"):
        collect(model, tokenizer, [[1, 2]])
