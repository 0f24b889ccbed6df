"""The published Triple-Latent family: its names beside ours.

Names and layouts are PyTorch's own, (out, in). The published layer projects with six matrices of
which ours are rows of one. The published convolution pads on both sides, taps p[0..4] over t-2 …
t+2. A file whose two future taps are zero (``zeroed_future_taps``) is a causal model: there ours
has the taps c[0..4] over t-4 … t, c[2..4] = p[0..2]; on export the published future taps are zero,
in gradients too (the causal model has none for them).

The embedding is the head: a checkpoint that also has ``lm_head.weight`` must have it equal.

Source: the published code of arXiv 2606.05175.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from palimpsest.errors import CheckpointError, InputError
from palimpsest.interop.published.family import AS_IS, Family, Layout, Row
from palimpsest.interop.published.variants import check_keys, read_variant
from palimpsest.layers.pair_memory import PairMemory
from palimpsest.models import LanguageModel, build
from palimpsest.models.gated_hybrid import GatedHybrid
from palimpsest.models.transformer import Transformer
from palimpsest.models.triple_latent import TripleModel

__all__ = ["TRIPLE"]

FUTURE = 2  # taps of the published convolution that look ahead
COMMON = ("vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len", "dropout")
GATE_NAMES = {"read_gate": "assoc_read_gate_proj", "write_gate": "assoc_write_gate_proj"}


def _reads(config: Mapping[str, Any]) -> bool:
    return "variant" in config or "variant_name" in config


def _build(config: Mapping[str, Any], names: frozenset[str]) -> LanguageModel:
    check_keys(config)
    variant = read_variant(str(config.get("variant", config.get("variant_name"))), config)
    fields = {key: config[key] for key in COMMON if key in config}
    fields.setdefault("dropout", 0.0)
    if variant.trunk == "transformer":
        return build("transformer", **fields)
    if "state_dim" in config:
        fields["state_dim"] = config["state_dim"]
    if variant.slots:
        fields["n_slots"] = config.get("num_slots", 8)
    if variant.hybrid:
        padding = "causal" if config.get("zeroed_future_taps") else "same"
        fields["conv_padding"] = config.get("conv_padding", padding)
    trunk = variant.trunk
    if variant.retrieval is not None:
        trunk = "gated-hybrid"
        fields |= {"init": "published", "assoc_dim": config.get("assoc_dim", 64)}
        fields |= variant.retrieval
        if "memory_cap" in config:
            fields["memory_cap"] = config["memory_cap"]
    model = build(trunk, **fields)
    assert isinstance(model, TripleModel)
    if model.local_conv is not None and model.causal:
        model.local_conv.weight.data[..., :FUTURE] = 0.0  # the published window ends here
    return model


def _owns(model: LanguageModel) -> bool:
    if isinstance(model, GatedHybrid) and model.config.learned_temperature:
        raise InputError(
            "model 'gated-hybrid' with learned_temperature=True: the published program has no "
            "such parameter; only models with a fixed temperature can be exported"
        )
    return isinstance(model, (Transformer, TripleModel))


def _future_taps_of(published: np.ndarray) -> np.ndarray:
    causal = np.zeros_like(published)
    causal[..., FUTURE:] = published[..., :-FUTURE]
    if published[..., -FUTURE:].any():
        raise CheckpointError(
            "local_conv.weight sees two tokens ahead: set zeroed_future_taps=False, or "
            "conv_padding='same'"
        )
    return causal


def _with_future_taps(causal: np.ndarray) -> np.ndarray:
    published = np.zeros_like(causal)
    published[..., :-FUTURE] = causal[..., FUTURE:]
    return published


CAUSAL_TAPS = Layout(_future_taps_of, _with_future_taps)


def _rows(model: LanguageModel) -> list[Row]:
    rows = [
        Row("token_embed.weight", "embedding.token.weight"),
        *_same("final_norm", "final_norm", "weight", "bias"),
    ]
    if model.max_length is not None:
        rows.append(Row("pos_embed.weight", "embedding.position.weight"))
    if isinstance(model, Transformer):
        for i in range(model.config.n_layers):
            rows += _transformer_layer(f"layers.{i}.")
        return rows
    assert isinstance(model, TripleModel)
    if model.local_conv is not None:
        rows += _local_conv(model)
    for i, layer in enumerate(model.layers):
        rows += _triple_layer(f"layers.{i}.", layer.mixer)  # type: ignore[arg-type]
    if isinstance(model, GatedHybrid):
        for i in range(model.config.n_layers):
            rows += _retrieval_rows(f"layers.{i}.", model)
        if model.assoc_norm is not None:
            rows += _same("assoc_norm", "assoc_norm", "weight", "bias")
    return rows


def _same(published: str, ours: str, *leaves: str) -> list[Row]:
    return [Row(f"{published}.{leaf}", f"{ours}.{leaf}") for leaf in leaves]


def _feed_forward(layer: str) -> list[Row]:
    return [
        *_same(layer + "ffn.0", layer + "ffn.rise", "weight", "bias"),
        *_same(layer + "ffn.3", layer + "ffn.fall", "weight", "bias"),
    ]


def _transformer_layer(layer: str) -> list[Row]:
    attention = layer + "attention."
    return [
        *_same(layer + "norm1", layer + "norm", "weight", "bias"),
        *_same(layer + "norm2", layer + "ffn_norm", "weight", "bias"),
        Row(layer + "attn.in_proj_weight", attention + "weight"),
        Row(layer + "attn.in_proj_bias", attention + "bias"),
        *_same(layer + "attn.out_proj", attention + "out", "weight", "bias"),
        *_feed_forward(layer),
    ]


def _triple_layer(layer: str, mixer: PairMemory) -> list[Row]:
    heads, columns = mixer.n_heads, mixer.n_heads * mixer.state_dim
    mixed = layer + "mixer."
    rows = [
        *_same(layer + "norm", layer + "norm", "weight", "bias"),
        *_same(layer + "ffn_norm", layer + "ffn_norm", "weight", "bias"),
        *_same(layer + "output_proj", mixed + "out", "weight"),
        *_feed_forward(layer),
    ]
    for i, name in enumerate(("a", "b", "q_left", "q_right")):
        part = (i * columns, (i + 1) * columns)
        rows.append(Row(f"{layer}{name}_proj.weight", mixed + "weight", AS_IS, part))
    start = 0
    gates = {"state_decay_proj": heads, "pair_decay_proj": heads}
    if mixer.n_slots:
        gates["slot_gate_proj"] = heads * mixer.n_slots
    for name, size in gates.items():
        part = (start, start + size)
        below = (4 * columns + start, 4 * columns + start + size)
        rows.append(Row(f"{layer}{name}.weight", mixed + "weight", AS_IS, below))
        rows.append(Row(f"{layer}{name}.bias", mixed + "bias", AS_IS, part))
        start += size
    return rows


def _local_conv(model: TripleModel) -> list[Row]:
    assert model.local_conv is not None
    if model.causal and bool(model.local_conv.weight[..., :FUTURE].any()):
        raise InputError(
            "conv_padding='causal': the convolution reads the inputs three and four tokens back, "
            "which the published window does not reach; this model has no published form"
        )
    taps = CAUSAL_TAPS if model.causal else AS_IS
    return [
        Row("local_conv.weight", "local_conv.weight", taps),
        *_same("local_conv", "local_conv", "bias"),
    ]


def _retrieval_rows(layer: str, model: GatedHybrid) -> list[Row]:
    ours = layer + "retrieval."
    rows = [
        *_same(layer + "assoc_query_proj", ours + "query", "weight"),
        *_same(layer + "assoc_key_proj", ours + "key", "weight"),
        *_same(layer + "assoc_val_proj", ours + "value", "weight"),
    ]
    for field, published in GATE_NAMES.items():
        if getattr(model.config, field):
            rows += _same(layer + published, ours + field, "weight", "bias")
    if model.config.fusion == "concat":
        rows += _same(layer + "concat_output_proj", layer + "fuse", "weight")
    return rows


TRIPLE = Family(
    name="Triple-Latent",
    recognised_by="the key variant",
    tied={"lm_head.weight": "token_embed.weight"},
    reads=_reads,
    build=_build,
    owns=_owns,
    rows=_rows,
)
