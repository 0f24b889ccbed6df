"""The names and configuration keys of the published Triple-Latent variants.

The words of a variant's name are the published program's own presets, not defaults of ours: a name
without "prev" queries in parallel, a name without "last" reads in all layers, "gated" and
"writegated" query with the previous token and read the 8 best pairs. A key of the configuration
that names an option, such as ``assoc_topk``, replaces what the name says, as it does there.

Source: the published code of arXiv 2606.05175.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import ConfigError

__all__ = ["KEYS", "TRANSFORMERS", "Variant", "check_keys", "read_variant"]

TRANSFORMERS = ("transformer", "transformer_gelu")
TRUNKS = ("triple-latent", "triple-slot", "triple-hybrid", "triple-slot-hybrid")
MLP_RATIO = 4.0

# word of a name: the fields that it sets; "gated" and "writegated" also imply what follows them
WORDS: dict[str, dict[str, Any]] = {
    "prev": {"query": "previous"},
    "previous": {"query": "previous"},
    "parallel": {"query": "parallel"},
    "serial": {"query": "serial"},
    "last": {"layers": "last"},
    "all": {"layers": "all"},
    "sum": {"fusion": "sum"},
    "concat": {"fusion": "concat"},
    "logits": {"fusion": "logits"},
    "gated": {"read_gate": True},
    "writegated": {"read_gate": True, "write_gate": True},
}
PLAIN: dict[str, Any] = {
    "query": "parallel",
    "layers": "all",
    "fusion": "sum",
    "top_k": 4,
    "read_gate": False,
    "write_gate": False,
}
GATED = {**PLAIN, "query": "previous", "top_k": 8}
# published key, and the name of the same option here, which is accepted too: the field
OPTION_KEYS = {
    "assoc_topk": "top_k",
    "assoc_query_mode": "query",
    "assoc_layer_mode": "layers",
    "assoc_fusion": "fusion",
    "use_assoc_read_gate": "read_gate",
    "use_assoc_write_gate": "write_gate",
    **{field: field for field in PLAIN},
}
CHOICES: dict[str, tuple[str, ...]] = {
    "query": ("parallel", "serial", "previous"),
    "layers": ("all", "last"),
    "fusion": ("sum", "concat", "logits"),
}


@dataclass(frozen=True)
class Variant:
    """What a variant's name says.

    Attributes:
        trunk: one of TRUNKS, or "transformer".
        slots, hybrid: whether the pair memory has slots, and whether there is a convolution.
        retrieval: fields of the retrieval; None if the variant has none.
    """

    trunk: str
    slots: bool = False
    hybrid: bool = False
    retrieval: dict[str, Any] | None = None


def read_variant(name: str, config: Mapping[str, Any]) -> Variant:
    """The variant of a name, with the options that the configuration replaces.

    Raises:
        ConfigError: a name of no published form, or a flag that contradicts it.
    """
    if name in TRANSFORMERS:
        return Variant("transformer")
    trunk, separator, options = name.partition("-assoc")
    slots, hybrid = "slot" in trunk, "hybrid" in trunk
    if trunk not in TRUNKS or (separator and not (hybrid and options.startswith("-"))):
        raise ConfigError(
            f"variant={name!r}: is not one of {', '.join((*TRANSFORMERS, *TRUNKS))}, "
            "triple-[slot-]hybrid-assoc-[gated-|writegated-|prev-|serial-][last-|all-]"
            "{sum|concat|logits}"
        )
    retrieval = None
    if separator:
        retrieval = _retrieval(name, options[1:].split("-"))
        retrieval |= {f: config[key] for key, f in OPTION_KEYS.items() if key in config}
    flags = {"use_slots": slots, "use_local_conv": hybrid, "use_assoc_memory": bool(separator)}
    for key, value in flags.items():
        if config.get(key, value) != value:
            raise ConfigError(f"{key}={config[key]!r}: contradicts variant={name!r}")
    return Variant(trunk, slots, hybrid, retrieval)


def _retrieval(name: str, words: list[str]) -> dict[str, Any]:
    said: dict[str, tuple[str, Any]] = {}
    for word in words:
        if word not in WORDS:
            raise ConfigError(
                f"variant={name!r}: {word!r} is not an option of the published retrieval "
                f"({', '.join(WORDS)})"
            )
        for field, value in WORDS[word].items():
            if field in said:
                raise ConfigError(f"variant={name!r}: {said[field][0]!r} contradicts {word!r}")
            said[field] = (word, value)
    if "fusion" not in said:
        raise ConfigError(f"variant={name!r}: lacks sum, concat or logits")
    base = GATED if "read_gate" in said else PLAIN
    return {**base, **{field: value for field, (_, value) in said.items()}}


# -- the keys ---------------------------------------------------------------------------------


def _whole(value: Any) -> str:
    fine = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return "" if fine else "must be a whole number of at least 1"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _any(value: Any) -> str:
    return ""  # the model's own configuration checks it


def _one_of(*choices: Any) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        return "" if value in choices else f"must be {' or '.join(map(repr, choices))}"

    return check


def _only(wanted: Any, why: str) -> Callable[[Any], str]:
    return lambda value: "" if value == wanted else f"must be {wanted!r}: {why}"


KEYS: dict[str, Callable[[Any], str]] = {
    "variant": _any,
    "variant_name": _any,
    **dict.fromkeys(("vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len"), _whole),
    **dict.fromkeys(("state_dim", "num_slots", "assoc_dim"), _whole),
    "dropout": _any,
    "mlp_ratio": _only(MLP_RATIO, "every published feed-forward is four times the model's width"),
    "tie_embeddings": _only(True, "the head of every published model is its embedding"),
    **dict.fromkeys(("use_slots", "use_local_conv", "use_assoc_memory"), _flag),
    **{
        key: _whole
        if field == "top_k"
        else _flag
        if field not in CHOICES
        else _one_of(*CHOICES[field])
        for key, field in OPTION_KEYS.items()
    },
    "zeroed_future_taps": _flag,
    "conv_padding": _one_of("same", "causal"),
    "memory_cap": _any,
}


def check_keys(config: Mapping[str, Any]) -> None:
    """Check every key of a configuration, also those that its variant does not use.

    Raises:
        ConfigError: an unknown key, a value that its key cannot have, or one option under two
            names with two values.
    """
    for key, value in config.items():
        if key not in KEYS:
            raise ConfigError(
                f"{key}={value!r}: is not a key of the published Triple-Latent family "
                f"(keys: {', '.join(KEYS)}); settings of the training do not belong to the model"
            )
        mistake = KEYS[key](value)
        if mistake:
            raise ConfigError(f"{key}={value!r}: {mistake}")
    pairs = [(k, f) for k, f in (*OPTION_KEYS.items(), ("variant_name", "variant")) if k != f]
    for one, two in pairs:
        if one in config and two in config and config[one] != config[two]:
            raise ConfigError(f"{one}={config[one]!r}: contradicts {two}={config[two]!r}")
