"""Our Mamba-2 and transformers' ``Mamba2ForCausalLM``, which are one architecture, in and out.

The matrices are laid out alike; only names differ, and the convolution's kernel has an axis more
there.

Legend: C channels of the convolution, W width of its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.models import build
from palimpsest.models.mamba2 import Mamba2

if TYPE_CHECKING:
    from transformers import Mamba2ForCausalLM  # type: ignore[import-not-found, unused-ignore]

__all__ = ["from_mamba2", "to_mamba2"]

_OUTER = {
    "embedding.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}
_LAYER = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.in_proj.weight",
    "mixer.conv_weight": "mixer.conv1d.weight",
    "mixer.conv_bias": "mixer.conv1d.bias",
    "mixer.dt_bias": "mixer.dt_bias",
    "mixer.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
    "mixer.norm.weight": "mixer.norm.weight",
    "mixer.out_proj.weight": "mixer.out_proj.weight",
}


def from_mamba2(model: Mamba2ForCausalLM) -> Mamba2:
    """The same language model as a :class:`Mamba2`.

    Args:
        model: a ``Mamba2ForCausalLM`` of transformers, in any floating-point dtype.

    Returns:
        A model with copies of its parameters, in their dtype, in evaluation mode.

    Raises:
        InputError: another architecture, or a configuration with what ours has not: biases of the
            projections, a convolution without one, an activation other than silu, bounds on the
            steps.
    """
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "mamba2":
        raise InputError(
            f"model of type {type(model).__name__}: must be a Mamba2ForCausalLM of transformers"
        )
    theirs: dict[str, Tensor] = model.state_dict()
    if any(name not in theirs for name in _OUTER.values()):
        raise InputError(
            f"model of type {type(model).__name__}: has no head of its own; must be a "
            "Mamba2ForCausalLM"
        )
    fields = _fields(config)
    like = theirs["backbone.embeddings.weight"]
    with torch.device("meta"):
        made = build("mamba2", **fields)
    made = made.to(like.dtype).to_empty(device=like.device).eval()
    assert isinstance(made, Mamba2)
    ours = dict(made.named_parameters())
    with torch.no_grad():
        for name, other in _names(made):
            ours[name].copy_(theirs[other].view_as(ours[name]))
    return made


def to_mamba2(model: Mamba2) -> Mamba2ForCausalLM:
    """The same language model as transformers' ``Mamba2ForCausalLM``.

    Args:
        model: any Mamba-2.

    Returns:
        A model with copies of the parameters, in their dtype, in evaluation mode.

    Raises:
        InputError: transformers is not installed, or the model is no Mamba-2.
    """
    if not isinstance(model, Mamba2):
        raise InputError(f"model {model.registry_name!r}: must be a mamba2")
    try:
        from transformers import Mamba2Config, Mamba2ForCausalLM
    except ImportError as failure:
        raise InputError(
            "to_mamba2 needs the package transformers, which is not installed: "
            "pip install 'transformers>=5.0'"
        ) from failure
    c = model.config
    config = Mamba2Config(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        num_hidden_layers=c.n_layers,
        expand=c.expand,
        num_heads=c.n_heads,
        head_dim=c.head_dim,
        state_size=c.state_dim,
        n_groups=c.n_groups,
        conv_kernel=c.conv_size,
        layer_norm_epsilon=c.norm_eps,
        tie_word_embeddings=c.tie_embeddings,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    made: Any = Mamba2ForCausalLM(config)  # its decorated methods have no types
    made = made.to(dtype=model.dtype, device=model.device).eval()
    theirs = made.state_dict()
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, other in _names(model):
            theirs[other].copy_(ours[name].view_as(theirs[other]))
    converted: Mamba2ForCausalLM = made
    return converted


def _fields(config: Any) -> dict[str, Any]:
    """The fields of a Mamba-2's configuration, once it has nothing that we have not."""
    allowed = {
        "use_bias": (config.use_bias, False),
        "use_conv_bias": (config.use_conv_bias, True),
        "hidden_act": (config.hidden_act, "silu"),
        "time_step_limit": (tuple(config.time_step_limit), (0.0, math.inf)),
    }
    for name, (value, wanted) in allowed.items():
        if value != wanted:
            raise InputError(
                f"model with {name}={value!r}: mamba2 has {name}={wanted!r} only; "
                "such a model cannot be converted"
            )
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "expand": config.expand,
        "head_dim": config.head_dim,
        "state_dim": config.state_size,
        "n_groups": config.n_groups,
        "conv_size": config.conv_kernel,
        "norm_eps": config.layer_norm_epsilon,
        "tie_embeddings": config.tie_word_embeddings,
    }


def _names(model: Mamba2) -> Iterator[tuple[str, str]]:
    """Our names of all parameters, beside theirs."""
    for name, _ in model.named_parameters():
        if name in _OUTER:
            yield name, _OUTER[name]
        else:
            _, index, rest = name.split(".", 2)
            yield name, f"backbone.layers.{index}.{_LAYER[rest]}"
