"""The papers' published programs: their arrays in, a model out, and back.

Each family of architectures says in one table how its published names map to ours; this module
chooses the family. A checkpoint that is a Python pickle is read with
:func:`read_published_pickle`, which admits arrays and plain containers and nothing else.

    params = read_published_pickle("checkpoint.pkl")["params"]
    model = load_published(params, {"vocab_size": 32000, "d_state": 2496, ...})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from palimpsest.errors import ConfigError, InputError
from palimpsest.interop.published.family import Family, export_arrays, load_arrays
from palimpsest.interop.published.grounded import GROUNDED
from palimpsest.interop.published.triple import TRIPLE
from palimpsest.interop.published.unpickle import read_published_pickle
from palimpsest.models import LanguageModel

__all__ = ["export_published", "load_published", "read_published_pickle"]

FRACTIONS = ("dropout", "mlp_ratio")  # keys whose values need not be whole
FAMILIES: tuple[Family, ...] = (GROUNDED, TRIPLE)


def load_published(params: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> LanguageModel:
    """Build a model from a published program's arrays.

    Args:
        params: arrays by their published names, in their published layout, such as
            ``embedding`` (V,e) or ``L0_ffn_w1_k`` (d,2f) of a Grounded Prediction Network.
        config: the published configuration. Grounded Prediction Networks: ``vocab_size``,
            ``d_state``, ``d_emb``, ``d_ffn``, and with a memory ``n_heads``, ``d_key``, ``d_val``;
            ``n_layers`` defaults to 1, ``use_decoder_bias`` to what the arrays say. Triple-Latent
            models: ``variant`` or ``variant_name`` (such as
            "triple-hybrid-assoc-gated-last-logits"), ``vocab_size``, ``d_model``, ``n_layers``,
            ``n_heads``, ``max_seq_len``, ``state_dim``, ``num_slots``, ``assoc_dim``,
            ``dropout`` (0 if absent), the options that replace what the name says
            (``assoc_topk``, ``assoc_fusion``, …), and ``zeroed_future_taps`` if the two-sided
            convolution looks back only. A key whose value is None counts as absent, and 3.0 as 3;
            every key is checked, also those that the variant does not use, and unknown keys are
            refused.

    Returns:
        The model, in the dtype of the arrays (the widest of them where they differ).

    Raises:
        CheckpointError: names that are missing, unknown, mis-shaped or not of a floating-point
            type, all in one message.
        ConfigError: a configuration of no known family, or with unknown or contradictory keys.
    """
    plain = {key: _plain(key, value) for key, value in config.items() if value is not None}
    for family in FAMILIES:
        if family.reads(plain):
            with torch.random.fork_rng(devices=[]):  # what is drawn is overwritten at once
                model = family.build(plain, frozenset(params))
            return load_arrays(model, family, params)
    known = "; ".join(f"{family.name}: {family.recognised_by}" for family in FAMILIES)
    raise ConfigError(
        f"config with the keys {', '.join(sorted(map(str, plain))) or '(none)'}: belongs to no "
        f"published family ({known})"
    )


def _plain(key: str, value: Any) -> Any:
    """A configuration's value as JSON has it, and a whole number as an int."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and key not in FRACTIONS:
        return int(value)
    return value


def export_published(model: LanguageModel, gradients: bool = False) -> dict[str, np.ndarray]:
    """A model's parameters under their published names and in their published layout.

    Args:
        model: a model of a published family.
        gradients: give the parameters' gradients instead (zeros where the loss did not depend on
            a parameter).

    Returns:
        Copies as arrays, in the parameters' dtype (bfloat16, which numpy lacks, as float32).

    Raises:
        InputError: an architecture that was not published under such names, or gradients before
            any backward pass.
    """
    for family in FAMILIES:
        if family.owns(model):
            return export_arrays(model, family, gradients)
    raise InputError(
        f"model {model.registry_name!r}: has no published names; families: "
        f"{', '.join(family.name for family in FAMILIES)}"
    )
