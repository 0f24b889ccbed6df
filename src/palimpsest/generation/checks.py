"""What generation refuses before anything is read: models, prompts and lengths that do not fit.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = ["check_causal", "check_prompt", "check_room"]


def check_causal(model: LanguageModel) -> None:
    """Refuse a model that cannot write one token after another.

    Raises:
        InputError: says why.
    """
    if not model.causal:
        raise InputError(
            f"{model.registry_name} with this configuration is not causal: its logits depend on "
            "later tokens, which do not exist while generating; use a causal configuration"
        )


def check_prompt(input_ids: Tensor, vocab_size: int) -> None:
    """The prompt is split before the model sees it, so its own checks would come too late."""
    if input_ids.ndim != 2 or min(input_ids.shape) < 1:
        raise InputError(
            f"input_ids of shape {tuple(input_ids.shape)}: must be (batch, length) with both at "
            "least 1"
        )
    if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise InputError(f"input_ids of dtype {input_ids.dtype}: must be integers")
    low, high = (int(v) for v in input_ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"input_ids contains {low if low < 0 else high}: ids must be in [0, {vocab_size}), the "
            "model's vocab_size; use the tokenizer that the model was trained with"
        )


def check_room(
    model: LanguageModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    state: State | None,
    max_new_tokens: int,
) -> None:
    """Refuse a text that is longer than the model holds, before anything is read.

    Args:
        model: any language model.
        input_ids: (B,T) the prompts.
        attention_mask: (B,T), 0 at padding, which takes no position; or None.
        state: what comes before; None if nothing does.
        max_new_tokens: how many are to follow. The last one is not read.

    Raises:
        InputError: names the row, what it has read, and the bound.
    """
    if model.max_length is None:
        return
    batch, length = input_ids.shape
    room_B = model.room(model.init_state(batch) if state is None else state)
    assert room_B is not None
    prompt_B = torch.full_like(room_B, length)
    if attention_mask is not None:
        prompt_B = attention_mask.to(room_B.device).bool().sum(1)
    short_B = prompt_B + max_new_tokens - 1 - room_B
    row = int(short_B.argmax())
    if int(short_B[row]) <= 0:
        return
    prompt, before = int(prompt_B[row]), model.max_length - int(room_B[row])
    where = f"row {row}: " if batch > 1 else ""
    read = f"{before} tokens in the state, " if state is not None else ""
    raise InputError(
        f"{where}{read}{prompt} prompt tokens and max_new_tokens={max_new_tokens}: "
        f"{model.describe_bound()}; shorten one of them"
    )
