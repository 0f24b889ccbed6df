"""Transformer++ and transformers' Llama, which are one architecture, in and out.

There queries, keys and values are three matrices and so are the SwiGLU's gate and up; here the rows
of each group lie in one. Heads, rotary pairs and norms are laid out alike.

Legend: D d_model, F d_ffn, H heads, G heads of keys and values, K width of a head.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.models import build
from palimpsest.models.transformerpp import TransformerPP

__all__ = ["from_llama", "to_llama"]

_LAYER = "model.layers.{}."


def from_llama(model: Any) -> TransformerPP:
    """The same language model as a :class:`TransformerPP`.

    Args:
        model: a ``LlamaForCausalLM`` of transformers, in any floating-point dtype.

    Returns:
        A model with copies of its parameters, in their dtype, in evaluation mode.

    Raises:
        InputError: another architecture, or a configuration with what Transformer++ has not:
            biases, an activation other than silu, heads of a width of their own, scaled rotary
            positions.
    """
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "llama":
        raise InputError(
            f"model of type {type(model).__name__}: must be a LlamaForCausalLM of transformers"
        )
    tensors: dict[str, Tensor] = model.state_dict()
    if "model.embed_tokens.weight" not in tensors or "lm_head.weight" not in tensors:
        raise InputError(
            f"model of type {type(model).__name__}: has no head of its own; must be a "
            "LlamaForCausalLM"
        )
    fields = _fields(config)
    dtype = tensors["model.embed_tokens.weight"].dtype
    with torch.device("meta"):
        made = build("transformerpp", **fields)
    made = made.to(dtype).to_empty(device=tensors["model.embed_tokens.weight"].device).eval()
    assert isinstance(made, TransformerPP)
    joined = _joined(tensors, made.config.n_layers)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(joined[name])
    return made


def to_llama(model: TransformerPP, max_length: int = 2048) -> Any:
    """The same language model as transformers' ``LlamaForCausalLM``.

    Args:
        model: any Transformer++; its dropout, which Llama has not, is dropped.
        max_length: what the configuration states as the longest text; neither model has a bound.

    Returns:
        A ``LlamaForCausalLM`` with copies of the parameters, in their dtype, in evaluation mode.

    Raises:
        InputError: transformers is not installed, or the model is no Transformer++.
    """
    if not isinstance(model, TransformerPP):
        raise InputError(f"model {model.registry_name!r}: must be a transformerpp")
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as failure:
        raise InputError(
            "to_llama needs the package transformers, which is not installed: "
            "pip install 'transformers>=5.0'"
        ) from failure
    c = model.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ffn,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        max_position_embeddings=max_length,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        tie_word_embeddings=c.tie_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    made = transformers.LlamaForCausalLM(config).to(dtype=model.dtype, device=model.device).eval()
    made.load_state_dict(_split(model))
    return made


def _fields(config: Any) -> dict[str, Any]:
    """The fields of a Llama's configuration, once it has nothing that we have not."""
    heads, width = config.num_attention_heads, config.hidden_size
    # transformers 5 has one table; before, the base and the scaling stood apart
    rope = getattr(config, "rope_parameters", None) or {
        "rope_theta": getattr(config, "rope_theta", 10000.0),
        **(getattr(config, "rope_scaling", None) or {}),
    }
    allowed = {
        "attention_bias": (config.attention_bias, False),
        "mlp_bias": (getattr(config, "mlp_bias", False), False),
        "hidden_act": (config.hidden_act, "silu"),
        "head_dim": (getattr(config, "head_dim", None) or width // heads, width // heads),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for name, (value, wanted) in allowed.items():
        if value != wanted:
            raise InputError(
                f"model with {name}={value!r}: transformerpp has {name}={wanted!r} only; "
                "such a Llama cannot be converted"
            )
    return {
        "vocab_size": config.vocab_size,
        "d_model": width,
        "n_layers": config.num_hidden_layers,
        "n_heads": heads,
        "n_kv_heads": config.num_key_value_heads,
        "d_ffn": config.intermediate_size,
        "rope_base": float(rope["rope_theta"]),
        "norm_eps": config.rms_norm_eps,
        "tie_embeddings": config.tie_word_embeddings,
    }


def _joined(tensors: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    """Our names and layout from theirs."""
    ours = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "final_norm.weight": tensors["model.norm.weight"],
        "head.weight": tensors["lm_head.weight"],
    }
    for i in range(n_layers):
        theirs, own = _LAYER.format(i), f"layers.{i}."

        def rows(*names: str, at: str = theirs) -> Tensor:
            return torch.cat([tensors[f"{at}{name}_proj.weight"] for name in names])

        ours[own + "norm.weight"] = tensors[theirs + "input_layernorm.weight"]
        ours[own + "ffn_norm.weight"] = tensors[theirs + "post_attention_layernorm.weight"]
        ours[own + "attention.project.weight"] = rows("self_attn.q", "self_attn.k", "self_attn.v")
        ours[own + "attention.out.weight"] = rows("self_attn.o")
        ours[own + "ffn.rise.weight"] = rows("mlp.gate", "mlp.up")
        ours[own + "ffn.fall.weight"] = rows("mlp.down")
    return ours


def _split(model: TransformerPP) -> dict[str, Tensor]:
    """Their names and layout from ours."""
    c, own = model.config, {n: p.detach() for n, p in model.named_parameters()}
    keys = (c.n_kv_heads or c.n_heads) * c.head_width
    theirs = {
        "model.embed_tokens.weight": own["embedding.weight"],
        "model.norm.weight": own["final_norm.weight"],
        "lm_head.weight": model.head_weight().detach(),
    }
    for i in range(c.n_layers):
        to, at = _LAYER.format(i), f"layers.{i}."
        q, k, v = own[at + "attention.project.weight"].split([c.d_model, keys, keys])
        gate, up = own[at + "ffn.rise.weight"].chunk(2)
        parts = {
            "self_attn.q": q,
            "self_attn.k": k,
            "self_attn.v": v,
            "self_attn.o": own[at + "attention.out.weight"],
            "mlp.gate": gate,
            "mlp.up": up,
            "mlp.down": own[at + "ffn.fall.weight"],
        }
        theirs |= {f"{to}{name}_proj.weight": part for name, part in parts.items()}
        theirs[to + "input_layernorm.weight"] = own[at + "norm.weight"]
        theirs[to + "post_attention_layernorm.weight"] = own[at + "ffn_norm.weight"]
    return theirs
