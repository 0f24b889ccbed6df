"""The gated delta layer of transformers' Qwen3-Next, in and out.

There the rows of queries, keys, values and gate lie head by head in one matrix, and so do those of
β and the decay; the convolution, the norms and the output are laid out as here.

Legend: D d_model, H heads, K width of a key, V width of a value, C channels of the convolution,
W width of its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.layers.gated_delta import GatedDelta

__all__ = ["load_gated_delta", "to_qwen3_next"]

_SAME = {
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "norm.weight": "norm.weight",
    "out.weight": "out_proj.weight",
}


def load_gated_delta(layer: GatedDelta, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copy the parameters of a ``Qwen3NextGatedDeltaNet`` into a layer of the same sizes.

    Args:
        layer: with as many heads of keys as of values, which is what it always has.
        tensors: a state dict, such as that of the whole model.
        prefix: what the layer's names start with, such as ``model.layers.0.linear_attn.``.

    Raises:
        InputError: a tensor is missing, or has another shape; a model in which several heads of
            values share a head of keys (linear_num_value_heads > linear_num_key_heads) is one.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in to_qwen3_next(layer).items()}
    found: dict[str, Tensor] = {}
    for name, shape in wanted.items():
        if prefix + name not in tensors:
            raise InputError(
                f"tensors has no {prefix + name!r}: prefix={prefix!r} must be what the names of a "
                "gated delta layer of Qwen3-Next start with"
            )
        found[name] = tensors[prefix + name]
        if tuple(found[name].shape) != shape:
            raise InputError(
                f"{prefix + name} has shape {tuple(found[name].shape)}, the layer needs {shape}: "
                "build it with the other model's sizes; as many heads of values as of keys"
            )
    heads, keys, values = layer.n_heads, layer.key_width, layer.value_width
    by_head = found["in_proj_qkvz.weight"].unflatten(0, (heads, -1))
    q, k, v, gate = (x.flatten(0, 1) for x in by_head.split([keys, keys, values, values], dim=1))
    beta, decay = found["in_proj_ba.weight"].unflatten(0, (heads, 2)).unbind(1)
    with torch.no_grad():
        layer.mix.weight.copy_(torch.cat([q, k, v]))
        layer.gate.weight.copy_(gate)
        layer.rates.weight.copy_(torch.cat([beta, decay]))
        if layer.conv is not None:
            layer.conv.copy_(found["conv1d.weight"][:, 0])
        own = dict(layer.named_parameters())
        for ours, theirs in _SAME.items():
            own[ours].copy_(found[theirs])


def to_qwen3_next(layer: GatedDelta) -> dict[str, Tensor]:
    """A layer's parameters under the names and in the layout of ``Qwen3NextGatedDeltaNet``.

    Returns:
        in_proj_qkvz.weight (H·(2K+2V), D), in_proj_ba.weight (2H, D), conv1d.weight (C, 1, W),
        A_log (H,), dt_bias (H,), norm.weight (V,), out_proj.weight (D, H·V); copies.

    Raises:
        InputError: a layer without a convolution, which Qwen3-Next does not have.
    """
    if layer.conv is None:
        raise InputError("conv_size=0: a gated delta layer of Qwen3-Next has a convolution")
    heads, keys = layer.n_heads, layer.n_heads * layer.key_width
    mixed = layer.mix.weight.detach()
    parts = (mixed[:keys], mixed[keys : 2 * keys], mixed[2 * keys :], layer.gate.weight.detach())
    by_head = torch.cat([x.unflatten(0, (heads, -1)) for x in parts], dim=1)
    rates = torch.stack(layer.rates.weight.detach().chunk(2), dim=1)
    own = dict(layer.named_parameters())
    return {
        "in_proj_qkvz.weight": by_head.flatten(0, 1),
        "in_proj_ba.weight": rates.flatten(0, 1),
        "conv1d.weight": layer.conv.detach().unsqueeze(1).clone(),
        **{theirs: own[ours].detach().clone() for ours, theirs in _SAME.items()},
    }
