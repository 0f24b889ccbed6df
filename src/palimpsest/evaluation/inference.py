"""Running a model without training it: no gradient, no dropout, a stated precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel

__all__ = ["Precision", "check_precision", "dtype_label", "inference"]

Precision = Literal["fp32", "bf16"]


def check_precision(precision: str) -> None:
    """Refuse an unknown precision.

    Raises:
        InputError: names the known ones.
    """
    if precision not in get_args(Precision):
        raise InputError(f"precision={precision!r}: choose one of {', '.join(get_args(Precision))}")


@contextmanager
def inference(model: LanguageModel, precision: Precision = "fp32") -> Iterator[None]:
    """A block in which the model is in evaluation mode, without gradients.

    The model's own mode comes back at the end. Enter it around each forward, not around a
    ``yield``: the gradient mode belongs to the thread, so it would leak to the caller.

    Args:
        model: the model about to be called.
        precision: "fp32": the parameters' own dtype; "bf16": matrix products in bfloat16 under
            autocast, parameters and state as they are.
    """
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with (
            torch.no_grad(),
            torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16"),
        ):
            yield
    finally:
        if was_training:
            model.train()


def dtype_label(model: LanguageModel, precision: Precision) -> str:
    """What a result says about its numbers, such as "float32" or "bfloat16 over float32"."""
    own = str(model.dtype).removeprefix("torch.")
    return f"bfloat16 over {own}" if precision == "bf16" else own
