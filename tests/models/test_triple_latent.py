"""The Triple-Latent family beyond the contract: sizes, starts, leaks, bounds and bad input."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError, InputError
from palimpsest.generation import generate
from tests.comparison import assert_close

PAPER: dict[str, Any] = {"vocab_size": 259, "n_layers": 3, "n_heads": 4, "max_seq_len": 128}
TINY: dict[str, Any] = {"vocab_size": 37, "d_model": 14, "n_layers": 2, "n_heads": 2}
TRIPLE: dict[str, Any] = {**TINY, "state_dim": 5}
RECURRENT = ("triple-latent", "triple-slot", "triple-hybrid", "triple-slot-hybrid", "gated-hybrid")
HYBRIDS = RECURRENT[2:]


@pytest.mark.parametrize(
    ("name", "fields", "count"),
    [
        ("transformer", {"d_model": 64}, 174_848),
        ("triple-latent", {"d_model": 64, "state_dim": 16}, 187_928),
        ("triple-slot", {"d_model": 64, "state_dim": 16}, 188_024),
        ("triple-hybrid", {"d_model": 64, "state_dim": 16}, 208_472),
        ("triple-hybrid", {"d_model": 64, "state_dim": 8}, 177_752),
        ("triple-latent", {"d_model": 60, "state_dim": 16}, 170_424),
        ("triple-slot", {"d_model": 60, "state_dim": 16}, 170_520),
        ("triple-hybrid", {"d_model": 56, "state_dim": 16}, 169_424),
        ("gated-hybrid", {"d_model": 64, "state_dim": 8, "init": "published"}, 214_939),
        # stable recall adds one temperature
        ("gated-hybrid", {"d_model": 64, "state_dim": 8}, 214_940),
    ],
)
def test_parameter_counts_of_the_paper(name: str, fields: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        assert palimpsest.build(name, **PAPER, **fields).num_parameters() == count


@pytest.mark.parametrize("name", ["transformer", "transformer-triple", *RECURRENT])
def test_published_start(name: str) -> None:
    """Matrices normal of std 0.02, biases zero, norms one; attention's joint matrix Xavier."""
    fields = {**PAPER, "d_model": 64, "dropout": 0.0}
    if name != "transformer":
        fields["state_dim"] = 8
    if name == "gated-hybrid":
        fields["init"] = "published"
    for part, parameter in palimpsest.build(name, **fields).named_parameters():
        values = parameter.detach()
        if part.endswith("attention.weight"):
            bound = (6 / (64 + 3 * 64)) ** 0.5
            assert 0.99 * bound < values.abs().max() <= bound
        elif parameter.ndim >= 2:
            assert abs(float(values.std()) / 0.02 - 1) < 0.3, part
            assert abs(float(values.mean())) < 4 * 0.02 / values.numel() ** 0.5, part
        elif "norm" in part and part.endswith("weight"):
            assert (values == 1).all(), part
        else:
            assert not values.any(), part


def test_stable_start() -> None:
    model = palimpsest.build("gated-hybrid", **TRIPLE, assoc_dim=14)
    retrieval = model.layers[-1].retrieval
    query = retrieval.query.weight
    assert torch.equal(query, retrieval.key.weight)
    assert query is not retrieval.key.weight
    assert_close(query @ query.T, torch.eye(14), 1e-5)
    assert torch.equal(retrieval.value.weight, torch.eye(14))
    assert float(retrieval.log_temperature.detach().exp()) == pytest.approx(8)
    assert model.layers[0].retrieval.log_temperature is None  # it does not read
    fixed = palimpsest.build("gated-hybrid", **TRIPLE, learned_temperature=False)
    assert (
        fixed.num_parameters()
        == palimpsest.build("gated-hybrid", **TRIPLE, init="published").num_parameters()
    )


def test_temperature_learns_at_its_own_rate() -> None:
    model = palimpsest.build("gated-hybrid", **TRIPLE, layers="all")
    rates = {
        id(p): g["lr"] for g in model.param_groups(lr=1e-3, weight_decay=0.1) for p in g["params"]
    }
    for name, parameter in model.named_parameters():
        wanted = 1e-2 if name.endswith("log_temperature") else 1e-3
        assert rates[id(parameter)] == pytest.approx(wanted), name


def test_states_of_the_recurrent_models_do_not_grow() -> None:
    for name in RECURRENT:
        model = palimpsest.build(name, **TRIPLE)
        grown = model.state_bytes(3, 1000) - model.state_bytes(3, 0)
        assert grown == (3 * 1000 * 16 if name == "gated-hybrid" else 0)
    capped = palimpsest.build("gated-hybrid", **TRIPLE, memory_cap=20)
    assert capped.state_bytes(1, 10_000) == capped.state_bytes(1, 20)


def test_cap_on_the_retrieval_memory() -> None:
    """Nothing older is read, in one pass and token by token, and the state stays small."""
    torch.manual_seed(0)
    model = palimpsest.build("gated-hybrid", **TRIPLE, positions="none", memory_cap=9, top_k=3)
    model.eval().double()
    ids = torch.randint(0, 37, (2, 60))
    with torch.no_grad():
        whole = model(ids)
        state, logits = None, []
        for t in range(60):
            out = model(ids[:, t : t + 1], state)
            state, logits = out.state, [*logits, out.logits]
        assert state.nbytes == model.state_bytes(2, 9)
        assert_close(torch.cat(logits, 1), whole.logits, 1e-11)
        # a token that only the retrieval could still see: ten pairs back
        free = palimpsest.build("gated-hybrid", **TRIPLE, positions="none", top_k=3).double()
        free.load_state_dict(model.state_dict())
        assert not torch.equal(free.eval()(ids).logits[:, 20:], whole.logits[:, 20:])


@pytest.mark.parametrize("name", ["transformer", *RECURRENT])
def test_learned_positions_end(name: str) -> None:
    fields = {**(TINY if name == "transformer" else TRIPLE), "max_seq_len": 12}
    model = palimpsest.build(name, **fields).eval()
    assert model.max_length == 12
    ids = torch.randint(0, 37, (2, 13))
    full = model(ids[:, :12]).state
    message = r"13 positions.*max_seq_len=12.*positions='none'"
    for call in (
        lambda: model(ids),
        lambda: model(ids[:, 12:], full),
        lambda: model(ids[:, 12:], full, attention_mask=torch.tensor([[1], [0]])),
    ):
        with pytest.raises(InputError, match=message):
            call()
    # padding takes no position, and a new document starts at the first one
    held = model(ids[:, 12:], full, attention_mask=torch.zeros(2, 1)).state
    assert held.position.tolist() == [12, 12]
    fresh = model(ids[:, 12:], full, reset_mask=torch.ones(2, 1)).state
    assert fresh.position.tolist() == [1, 1]
    unbounded = palimpsest.build(name, **{**fields, "positions": "none"})
    assert unbounded.max_length is None
    assert unbounded(ids).logits.shape == (2, 13, 37)


@pytest.mark.parametrize("name", HYBRIDS)
def test_two_sided_convolution_is_named_and_refused(name: str) -> None:
    with pytest.warns(UserWarning, match="not causal"):
        model = palimpsest.build(name, **TRIPLE, conv_padding="same", dropout=0.0)
    assert not model.causal
    ids = torch.randint(0, 37, (2, 9))
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 37
    logits, moved = model(ids).logits, model(changed).logits
    assert torch.equal(logits[:, :4], moved[:, :4])
    assert not torch.equal(logits[:, 4], moved[:, 4])  # two tokens ahead
    with pytest.raises(InputError, match="not causal"):
        generate(model, ids, max_new_tokens=1)
    with pytest.raises(InputError, match="conv_padding='same' needs the whole text"):
        model(ids[:, 4:], model(ids[:, :4]).state)
    with pytest.raises(InputError, match="reset_mask with conv_padding='same'"):
        model(ids, reset_mask=torch.eye(2, 9))


def test_two_sided_convolution_skips_padding() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = palimpsest.build("triple-hybrid", **TRIPLE, conv_padding="same").eval().double()
    ids, mask = torch.randint(0, 37, (2, 9)), torch.ones(2, 9)
    mask[0, 5:] = mask[1, :3] = 0
    logits = model(ids, attention_mask=mask).logits
    assert_close(logits[:1, :5], model(ids[:1, :5]).logits, 1e-11)
    assert_close(logits[1:, 3:], model(ids[1:, 3:]).logits, 1e-11)


@pytest.mark.parametrize("name", ["transformer", "transformer-triple", *RECURRENT])
def test_generation_continues_what_one_pass_predicts(name: str) -> None:
    """Greedy, in inference mode, with left padding: buffers are used, and rows stay apart."""
    torch.manual_seed(3)
    fields = TINY if name == "transformer" else TRIPLE
    model = palimpsest.build(name, **fields).double()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    prompts = torch.randint(0, 37, (2, 6))
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[0, :4] = 0
    greedy = palimpsest.SamplingConfig(temperature=0.0)
    made = generate(model, prompts, attention_mask=mask, max_new_tokens=30, sampling=greedy)
    model.eval()
    for row, start in ((0, 4), (1, 0)):
        text = torch.cat([prompts[row, start:], made.tokens[row]])[None]
        with torch.no_grad():
            best = model(text[:, :-1]).logits.argmax(-1)
        assert torch.equal(best[0, 5 - start :], made.tokens[row])


BAD_FIELDS = {
    "n_heads=3: must divide d_model=14": ("transformer", {"n_heads": 3}),
    "n_heads=4: must divide d_model=14": ("transformer-triple", {"n_heads": 4, "state_dim": 5}),
    "top_k=0: must be a whole number": ("gated-hybrid", {"top_k": 0, "state_dim": 5}),
    "assoc_dim=0": ("gated-hybrid", {"assoc_dim": 0, "state_dim": 5}),
    "memory_cap=7: must be at least top_k=8": (
        "gated-hybrid",
        {"memory_cap": 7, "state_dim": 5},
    ),
    "query='next': must be 'previous' or 'parallel'": (
        "gated-hybrid",
        {"query": "next", "state_dim": 5},
    ),
    "fusion='mean': must be 'logits'": ("gated-hybrid", {"fusion": "mean", "state_dim": 5}),
    "init='random': must be 'stable'": ("gated-hybrid", {"init": "random", "state_dim": 5}),
    "layers='first'": ("gated-hybrid", {"layers": "first", "state_dim": 5}),
    "n_slots=0": ("triple-slot", {"n_slots": 0, "state_dim": 5}),
    "conv_padding='left': must be 'causal' or 'same'": (
        "triple-hybrid",
        {"conv_padding": "left", "state_dim": 5},
    ),
    "conv_padding='causal'.*no such field": (
        "triple-latent",
        {"conv_padding": "causal", "state_dim": 5},
    ),
    "positions='rotary': must be 'learned' or 'none'": ("transformer", {"positions": "rotary"}),
    "dropout=1.0: must be a number of at least 0 and below 1": ("transformer", {"dropout": 1.0}),
    "max_seq_len=0": ("transformer", {"max_seq_len": 0}),
    "needs state_dim": ("triple-latent", {}),
}


@pytest.mark.parametrize("message", BAD_FIELDS)
def test_bad_configuration(message: str) -> None:
    name, fields = BAD_FIELDS[message]
    with pytest.raises(ConfigError, match=message):
        palimpsest.build(name, **{**TINY, **fields})
