"""The mean state on states that are known, planted and recorded."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import palimpsest
from palimpsest import analysis
from palimpsest.analysis.default_token import bias_effect, measure_default_token
from palimpsest.analysis.passes import cut_windows, state_tap
from palimpsest.analysis.ranks import count_tokens
from palimpsest.errors import InputError
from palimpsest.text import ByteTokenizer
from tests.contract.configs import CONFIGS

TINY = CONFIGS["gpnm"]["1l"]


@pytest.mark.parametrize("name", ["gpnm", "gpn", "gdn", "transformerpp", "gated-hybrid"])
def test_against_the_recorded_states(name: str) -> None:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).double().eval()
    ids_WT = cut_windows(torch.randint(0, 37, (9 * 31,)), 31)
    found = measure_default_token(model, ids_WT, batch_size=4, groups=4, top=5)
    with torch.no_grad(), analysis.record(model, [state_tap(model)]) as tape:
        model(ids_WT)
    states = tape[state_tap(model)]
    mean = states.mean((0, 1))
    assert found.states == 9 * 31
    assert found.mean_state == pytest.approx(mean.tolist(), rel=1e-9, abs=1e-12)
    assert found.norm == pytest.approx(float(mean.norm()))
    assert found.norm_share == pytest.approx(float(mean.norm() / states.norm(dim=-1).mean()))
    groups = torch.tensor([w * 4 // 9 for w in range(9)])
    means = torch.stack([states[groups == g].sum((0, 1)) for g in range(4)])
    pairs = [float(F.cosine_similarity(means[i], means[j], 0)) for i in range(4) for j in range(i)]
    assert found.group_cosine_mean == pytest.approx(sum(pairs) / 6)
    assert found.group_cosine_std == pytest.approx(float(torch.tensor(pairs).double().std()))
    assert found.positions == (1, 3, 10, 30, 31)
    running = states[:, :10].mean(1)
    assert found.convergence[2] == pytest.approx(float(F.cosine_similarity(running, mean).mean()))
    assert found.spearman is None
    json.dumps(found.to_dict())


def test_a_planted_direction_is_found_and_decoded() -> None:
    model = palimpsest.build("transformerpp", **CONFIGS["transformerpp"]["grouped-tied"]).double()
    width = model.config.d_model
    with torch.no_grad():  # unit rows about a common direction, so that the mean row is known
        table = F.normalize(torch.randn(37, width).double(), dim=-1)
        table[:, 0] -= 3.0
        model.embedding.weight.copy_(table)
    planted = torch.zeros(width).double()
    planted[1:] = 4.0 * F.normalize(table[7, 1:], dim=0)
    aside = torch.zeros(width).double()
    aside[0] = 3.0

    def put(x: torch.Tensor) -> torch.Tensor:
        sign = 1.0 - 2.0 * (torch.arange(x.shape[1]) % 2).double()
        return planted + sign[:, None] * aside.expand_as(x)

    logits = table @ planted
    unigram = logits.argsort().argsort() + 1
    unigram[3] = 0
    with analysis.intervene(model, {"layers.0.residual": put}):
        found = measure_default_token(
            model, torch.zeros(3, 4, dtype=torch.long), unigram=unigram, top=3
        )
    assert found.mean_state == pytest.approx(planted.tolist(), abs=1e-12)
    assert found.norm == pytest.approx(4.0) and found.norm_share == pytest.approx(0.8)
    assert found.group_cosine_mean == pytest.approx(1.0)
    assert [t.id for t in found.top] == logits.topk(3).indices.tolist()
    assert found.top[0].id == 7
    assert found.spearman == pytest.approx(1.0)
    assert found.spearman_all is not None and found.spearman_all < 1.0
    assert found.positions == (1, 3, 4)
    assert found.convergence == pytest.approx([0.8, 4 / (16 + 1) ** 0.5, 1.0])
    mean_row = table.mean(0)
    assert found.embedding_cosine == pytest.approx(float(F.cosine_similarity(planted, mean_row, 0)))
    expected = set((table @ mean_row).topk(3).indices.tolist()) & {t.id for t in found.top}
    assert found.embedding_overlap == len(expected)


def test_tokens_are_written_out() -> None:
    model = palimpsest.build("gpn-1m")
    ids_WT = cut_windows(torch.tensor(list(b"What is past is prologue.")), 12)
    found = measure_default_token(model, ids_WT, tokenizer=ByteTokenizer(), top=2)
    assert all(isinstance(t.text, str) for t in found.top)
    assert found.group_cosine_std is None and found.groups == 2


def test_bias_effect() -> None:
    fields = {k: v for k, v in CONFIGS["gpnm"]["2l-bias"].items() if k != "decoder_bias"}
    without = palimpsest.build("gpnm", **fields)
    with_bias = palimpsest.build("gpnm", **fields, decoder_bias=True)
    with_bias.load_state_dict(without.state_dict(), strict=False)
    target = with_bias.head_weight()[11].detach()
    with torch.no_grad():
        with_bias.decode.bias.copy_(9.0 * target)
    ids_WT = torch.randint(0, 37, (4, 9))
    unigram = count_tokens(ids_WT, 37)
    found = bias_effect(without, with_bias, ids_WT, unigram=unigram, top=5)
    # the same cell reads the same text: the bias sits above the state
    assert found.norm_change == pytest.approx(0.0, abs=1e-6)
    assert found.share_change == pytest.approx(0.0, abs=1e-6)
    assert found.bias_norm == pytest.approx(9.0 * float(target.norm()), rel=1e-5)
    best = (with_bias.head_weight() @ target).topk(5).indices.tolist()
    assert [t.id for t in found.bias_top] == best
    assert found.bias_spearman is not None
    assert found.with_bias.embedding_cosine != found.without.embedding_cosine


def test_bad_input() -> None:
    model = palimpsest.build("gpnm", **TINY)
    ids_WT = torch.randint(0, 37, (2, 5))
    with pytest.raises(InputError, match=r"unigram of shape \(36,\): must be \(37,\)"):
        measure_default_token(model, ids_WT, unigram=torch.ones(36))
    with pytest.raises(InputError, match="top=38: must be from 1 to the vocabulary's 37"):
        measure_default_token(model, ids_WT, top=38)
    with pytest.raises(InputError, match="groups=0"):
        measure_default_token(model, ids_WT, groups=0)
    with pytest.raises(InputError, match="with_bias: gpnm has decoder_bias=False"):
        bias_effect(model, model, ids_WT)
    other = palimpsest.build("gdn", **CONFIGS["gdn"]["no-conv-tied"])
    with pytest.raises(InputError, match="without: gdn has no such option"):
        bias_effect(other, model, ids_WT)
