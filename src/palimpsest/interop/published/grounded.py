"""The published Grounded Prediction Networks: their names beside ours.

Matrices are published as (in, out). GPN+M prefixes the arrays of layer i with ``Li_``; GPN without
memory was published with one layer and no prefix. (A memoryless network of several layers, which
was not published, takes the prefixes of GPN+M.)

Source: the published code of arXiv 2605.10643.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.interop.published.family import AS_IS, TRANSPOSED, Family, Layout, Row
from palimpsest.models import LanguageModel, build
from palimpsest.models.gpn import GroundedModel

__all__ = ["GROUNDED"]

OUTER: tuple[tuple[str, str, Layout], ...] = (
    ("embedding", "embedding.weight", AS_IS),
    ("decode_norm_w", "decode_norm.weight", AS_IS),
    ("decode_proj_k", "decode.weight", TRANSPOSED),
    ("fuse_norm_w", "fuse_norm.weight", AS_IS),
    ("fuse_proj_k", "fuse.weight", TRANSPOSED),
    ("fg_norm_w", "cell.ground_gate.norm.weight", AS_IS),
    ("fg_gate_k", "cell.ground_gate.proj.weight", TRANSPOSED),
    ("fg_gate_b", "cell.ground_gate.proj.bias", AS_IS),
)
DECODE_BIAS = ("decode_bias", "decode.bias", AS_IS)
WRITE: tuple[tuple[str, str, Layout], ...] = (
    ("write_norm_w", "cell.write.norm.weight", AS_IS),
    ("write_W_k_k", "cell.write.key.weight", TRANSPOSED),
    ("write_W_k_b", "cell.write.key.bias", AS_IS),
    ("write_W_v_k", "cell.write.value.weight", TRANSPOSED),
    ("write_W_beta_k", "cell.write.beta.weight", TRANSPOSED),
    ("write_W_a_k", "cell.write.decay.weight", TRANSPOSED),
    ("write_A_log", "cell.write.A_log", AS_IS),
    ("write_dt_bias", "cell.write.dt_bias", AS_IS),
)
LAYER: tuple[tuple[str, str, Layout], ...] = (
    ("ffn_norm_w", "ffn_norm.weight", AS_IS),
    ("ffn_w1_k", "ffn_in.weight", TRANSPOSED),
    ("ffn_w2_k", "ffn_out.weight", TRANSPOSED),
    ("pg_norm_w", "gate.norm.weight", AS_IS),
    ("pg_gate_k", "gate.proj.weight", TRANSPOSED),
    ("pg_gate_b", "gate.proj.bias", AS_IS),
)
READ: tuple[tuple[str, str, Layout], ...] = (
    ("read_norm_w", "read.norm.weight", AS_IS),
    ("read_W_q_k", "read.query.weight", TRANSPOSED),
    ("read_W_q_b", "read.query.bias", AS_IS),
    ("read_W_gate_k", "read.gate.weight", TRANSPOSED),
    ("read_out_norm_w", "read.out_norm.weight", AS_IS),
    ("read_W_o_k", "read.out.weight", TRANSPOSED),
)
MEMORY_FIELDS = ("n_heads", "d_key", "d_val")
BIAS_FIELDS = ("use_decoder_bias", "decoder_bias", "decode_bias")  # the first is the published


def _reads(config: Mapping[str, Any]) -> bool:
    return "d_state" in config and "variant" not in config


def _build(config: Mapping[str, Any], names: frozenset[str]) -> LanguageModel:
    fields = dict(config)
    has_bias = DECODE_BIAS[0] in names
    for key in BIAS_FIELDS:
        wanted = fields.pop(key, has_bias)
        if wanted not in (True, False):
            raise ConfigError(f"{key}={wanted!r}: must be true or false")
        if bool(wanted) != has_bias:
            raise ConfigError(
                f"{key}={wanted!r}: contradicts params, which "
                f"{'have' if has_bias else 'lack'} {DECODE_BIAS[0]}"
            )
    with_memory = any(fields.get(key) for key in MEMORY_FIELDS)
    if not with_memory:  # None or 0 heads also say "no memory"
        fields = {key: value for key, value in fields.items() if key not in MEMORY_FIELDS}
    return build("gpnm" if with_memory else "gpn", **fields, decoder_bias=has_bias)


def _owns(model: LanguageModel) -> bool:
    return isinstance(model, GroundedModel)


def _rows(model: LanguageModel) -> list[Row]:
    assert isinstance(model, GroundedModel)
    config = model.config
    with_memory = config.memory is not None
    rows = [Row(*row) for row in OUTER]
    if config.decoder_bias:
        rows.append(Row(*DECODE_BIAS))
    if with_memory:
        rows += [Row(*row) for row in WRITE]
    for i in range(config.n_layers):
        prefix = f"L{i}_" if with_memory or config.n_layers > 1 else ""
        rows += [
            Row(prefix + published, f"cell.layers.{i}.{ours}", layout)
            for published, ours, layout in (*LAYER, *(READ if with_memory else ()))
        ]
    return rows


GROUNDED = Family(
    name="Grounded Prediction Networks",
    recognised_by="the key d_state",
    reads=_reads,
    build=_build,
    owns=_owns,
    rows=_rows,
)
