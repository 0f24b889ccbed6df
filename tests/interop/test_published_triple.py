"""Published names of the Triple-Latent family: every variant there and back, and mistakes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.errors import CheckpointError, ConfigError, InputError
from palimpsest.interop.published import export_published, load_published

TINY: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 14,
    "n_layers": 2,
    "n_heads": 2,
    "max_seq_len": 11,
    "dropout": 0.0,
}
TRIPLE = {**TINY, "state_dim": 5}
# as the published configuration has them, whatever the variant uses
CONFIG = {**TINY, "state_dim": 5, "num_slots": 3, "assoc_dim": 6, "zeroed_future_taps": False}
PUBLISHED: dict[str, Any] = {
    "init": "published",
    "conv_padding": "same",
    "assoc_dim": 6,
    **TRIPLE,
}
UNGATED = {**PUBLISHED, "top_k": 4, "read_gate": False, "query": "parallel", "layers": "all"}
SUM = {**UNGATED, "fusion": "sum"}
WRITEGATED = {**PUBLISHED, "write_gate": True}
# the table of the twelve published retrieval variants: what follows "triple-hybrid-assoc-"
RETRIEVAL: dict[str, dict[str, Any]] = {
    "sum": SUM,
    "concat": {**UNGATED, "fusion": "concat"},
    "logits": UNGATED,
    "serial-sum": {**SUM, "query": "serial"},
    "last-sum": {**SUM, "layers": "last"},
    "last-logits": {**UNGATED, "layers": "last"},
    "prev-sum": {**SUM, "query": "previous"},
    "prev-logits": {**UNGATED, "query": "previous"},
    "gated-last-logits": PUBLISHED,
    "writegated-last-logits": WRITEGATED,
    "writegated-last-sum": {**WRITEGATED, "fusion": "sum"},
    "writegated-all-logits": {**WRITEGATED, "layers": "all"},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer_gelu": ("transformer", TINY),
    "triple-latent": ("triple-latent", TRIPLE),
    "triple-slot": ("triple-slot", {**TRIPLE, "n_slots": 3}),
    "triple-hybrid": ("triple-hybrid", {**TRIPLE, "conv_padding": "same"}),
    "triple-slot-hybrid": ("triple-slot-hybrid", {**TRIPLE, "n_slots": 3, "conv_padding": "same"}),
    **{f"triple-hybrid-assoc-{name}": ("gated-hybrid", f) for name, f in RETRIEVAL.items()},
    # not published, of the same words
    "triple-hybrid-assoc-serial-last-concat": (
        "gated-hybrid",
        {**UNGATED, "query": "serial", "layers": "last", "fusion": "concat"},
    ),
    "triple-slot-hybrid-assoc-writegated-all-logits": (
        "gated-hybrid",
        {**WRITEGATED, "n_slots": 3, "layers": "all"},
    ),
}


@pytest.fixture(autouse=True)
def leak_is_known() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")
        yield


@pytest.mark.parametrize("variant", CASES)
def test_round_trip(variant: str) -> None:
    name, fields = CASES[variant]
    model = palimpsest.build(name, **fields).double()
    for parameter in model.parameters():
        parameter.data.normal_()
    exported = export_published(model)
    assert sum(a.size for a in exported.values()) == model.num_parameters()
    loaded = load_published(exported, {"variant": variant, **CONFIG})
    assert loaded.registry_name == name
    assert loaded.config == model.config
    for part, parameter in model.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[part], parameter), part
    ids = torch.randint(0, 37, (2, 9))
    model.eval()(ids, targets=ids).loss.backward()
    gradients = export_published(model, gradients=True)
    assert {n: a.shape for n, a in gradients.items()} == {n: a.shape for n, a in exported.items()}


def test_rows_of_the_joint_projection() -> None:
    model = palimpsest.build("triple-slot", **TRIPLE, n_slots=3)
    exported = export_published(model)
    names = ("a", "b", "q_left", "q_right", "state_decay", "pair_decay", "slot_gate")
    rows = [exported[f"layers.1.{name}_proj.weight"] for name in names]
    assert [len(r) for r in rows] == [10, 10, 10, 10, 2, 2, 6]
    assert np.array_equal(np.concatenate(rows), model.layers[1].mixer.weight.detach().numpy())


def test_taps_of_the_causal_convolution() -> None:
    """Published taps 0 … 2 are ours 2 … 4; a model that looks further back has no such form."""
    config = {"variant": "triple-hybrid", **CONFIG, "zeroed_future_taps": True}
    model = palimpsest.build("triple-hybrid", **TRIPLE)
    with pytest.raises(InputError, match="three and four tokens back"):
        export_published(model)
    model.local_conv.weight.data[..., :2] = 0
    exported = export_published(model)
    published, ours = exported["local_conv.weight"], model.local_conv.weight.detach().numpy()
    assert np.array_equal(published[..., :3], ours[..., 2:])
    assert not published[..., 3:].any()
    loaded = load_published(exported, config)
    assert loaded.causal
    assert torch.equal(loaded.local_conv.weight, model.local_conv.weight)
    exported["local_conv.weight"][0, 0, 3] = 1e-9
    with pytest.raises(CheckpointError, match="sees two tokens ahead"):
        load_published(exported, config)
    assert not load_published(exported, {**config, "zeroed_future_taps": False}).causal


def test_learned_temperature_has_no_published_form() -> None:
    with pytest.raises(InputError, match="learned_temperature=True"):
        export_published(palimpsest.build("gated-hybrid", **TRIPLE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "triple"}, "variant='triple': is not one of transformer"),
        ({"variant": "triple-latent-assoc-last-logits"}, "variant='triple-latent-assoc"),
        ({"variant": "triple-hybrid-assoc-first-logits"}, "'first' is not an option"),
        ({"variant": "triple-hybrid-assoc-last-all-sum"}, "'last' contradicts 'all'"),
        ({"variant": "triple-hybrid-assoc-gated-last"}, "lacks sum, concat or logits"),
        ({"variant": "triple-hybrid-assoc"}, "variant='triple-hybrid-assoc': is not one of"),
        ({"variant": "triple-hybrid", "kernel": 7}, "kernel=7: is not a key of the published"),
        ({"variant": "triple-latent", "num_slots": -1}, "num_slots=-1: must be a whole number"),
        ({"variant": "triple-latent", "assoc_dim": "six"}, "assoc_dim='six': must be a whole"),
        ({"variant": "transformer_gelu", "state_dim": 2.5}, "state_dim=2.5: must be a whole"),
        ({"variant": "triple-slot", "use_slots": False}, "use_slots=False: contradicts variant"),
        ({"variant": "triple-latent", "tie_embeddings": False}, "tie_embeddings=False: must be"),
        ({"variant": "triple-latent", "mlp_ratio": 2.0}, "mlp_ratio=2.0: must be 4.0"),
        ({"variant": "triple-hybrid", "assoc_query_mode": "prev"}, "assoc_query_mode='prev': must"),
        ({"variant": "triple-hybrid", "assoc_topk": 4, "top_k": 8}, "assoc_topk=4: contradicts"),
        ({"variant": "triple-latent", "variant_name": "triple-slot"}, "variant_name='triple-slot'"),
        ({"variant": "triple-hybrid", "zeroed_future_taps": "yes"}, "zeroed_future_taps='yes'"),
        ({"variant": "triple-latent", "n_heads": 0}, "n_heads=0"),
    ],
)
def test_configurations_of_no_published_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_published({}, {**CONFIG, **changes})


def test_every_key_that_the_published_program_writes() -> None:
    """Its whole configuration, values null or as numpy and JSON have them; keys replace words."""
    written = {
        **CONFIG,
        "d_model": 14.0,
        "n_layers": np.int64(2),
        "dropout": 0,
        "mlp_ratio": 4.0,
        "tie_embeddings": True,
        "use_slots": False,
        "use_local_conv": True,
        "use_assoc_memory": True,
        "assoc_topk": 3,
        "assoc_fusion": "logits",
        "assoc_query_mode": "serial",
        "assoc_layer_mode": "last",
        "use_assoc_read_gate": True,
        "use_assoc_write_gate": False,
        "variant_name": "triple-hybrid-assoc-writegated-all-logits",
        "conv_padding": None,
    }
    fields = {**PUBLISHED, "top_k": 3, "query": "serial"}
    model = palimpsest.build("gated-hybrid", **fields)
    exported = export_published(model)
    exported["lm_head.weight"] = exported["token_embed.weight"].copy()  # of a state_dict
    loaded = load_published(exported, written)
    assert loaded.config == model.config
    exported["lm_head.weight"][0, 0] += 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from token_embed\.weight"):
        load_published(exported, written)


def test_arrays_that_do_not_fit() -> None:
    exported = export_published(palimpsest.build("triple-latent", **TRIPLE))
    exported["layers.0.a_proj.weight"] = exported["layers.0.a_proj.weight"][:-1]
    del exported["layers.1.pair_decay_proj.bias"]
    with pytest.raises(
        CheckpointError,
        match=r"missing: layers.1.pair_decay_proj.bias; mis-shaped: layers.0.a_proj.weight "
        r"\(9, 14\), must be \(10, 14\)",
    ):
        load_published(exported, {"variant": "triple-latent", **CONFIG})
