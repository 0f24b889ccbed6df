"""Operations of a forward pass: counted from a model's sizes, and seen while it runs.

What is counted and what is left out stands in ``palimpsest.models.flops``; each architecture puts
its own count together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from palimpsest.errors import InputError
from palimpsest.models import LanguageModel
from palimpsest.ops import force_backend
from palimpsest.ops.dispatch import dispatchers

__all__ = ["FlopCount", "count_flops", "measure_flops"]


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """Operations of one forward pass over one text, logits at all positions included.

    Attributes:
        length: tokens of the text.
        parts: the full count by part, two operations a multiply-add.
        published: the same by the convention of the paper that published counts for this
            architecture, or None.
    """

    length: int
    parts: dict[str, int]
    published: dict[str, int] | None

    @property
    def total(self) -> int:
        """The full count."""
        return sum(self.parts.values())

    @property
    def per_token(self) -> float:
        """The full count over the tokens."""
        return self.total / self.length

    @property
    def published_total(self) -> int | None:
        """The published convention's count, or None."""
        return None if self.published is None else sum(self.published.values())


def count_flops(model: LanguageModel, length: int) -> FlopCount:
    """Count the operations of a forward pass from the model's sizes; nothing runs.

    Args:
        model: any architecture that counts its operations; on the meta device as well.
        length: tokens of the text.

    Raises:
        InputError: no such length, or an architecture that does not count its operations.
    """
    _check_length(model, length)
    try:
        published = model.published_flops(length)
    except InputError:
        published = None
    return FlopCount(length=length, parts=model.flops(length), published=published)


def measure_flops(model: LanguageModel, length: int, **backends: str) -> int:
    """Run a forward pass over one text under PyTorch's own counter.

    The counter sees matrix products and convolutions. It does not see what compiled kernels do,
    nor recurrences written entry by entry, as the plain loops of some ops are; and a chunked form
    does more products than the recurrence that it stands for.

    Args:
        model: any architecture; its weights do not matter, its device does.
        length: tokens of the text.
        backends: op → backend; "reference" for all ops unless told.

    Raises:
        InputError: no such length, op or backend.
    """
    _check_length(model, length)
    ids = torch.zeros(1, length, dtype=torch.long, device=model.device)
    forced = {**dict.fromkeys(dispatchers(), "reference"), **backends}
    was_training = model.training
    model.eval()
    try:
        with (
            torch.no_grad(),
            force_backend(**forced),
            sdpa_kernel(SDPBackend.MATH),  # which is made of products that the counter sees
            FlopCounterMode(display=False, custom_mapping=_in_place()) as counter,
        ):
            _ = model(ids).logits
    finally:
        model.train(was_training)
    return int(counter.get_total_flops())


def _check_length(model: LanguageModel, length: int) -> None:
    bound = model.max_length
    if length < 1 or (bound is not None and length > bound):
        most = "" if bound is None else f" and at most the model's longest text, {bound}"
        raise InputError(f"length={length}: must be at least 1{most}")


def _in_place() -> dict[Any, Any]:
    """Products that add to their output, which PyTorch's counter does not know."""

    def addmm(_: Any, a_shape: Any, b_shape: Any, **__: Any) -> int:
        return int(2 * a_shape[0] * a_shape[1] * b_shape[1])

    def baddbmm(_: Any, a_shape: Any, b_shape: Any, **__: Any) -> int:
        return int(a_shape[0]) * addmm(None, a_shape[1:], b_shape[1:])

    return {torch.ops.aten.addmm_: addmm, torch.ops.aten.baddbmm_: baddbmm}
