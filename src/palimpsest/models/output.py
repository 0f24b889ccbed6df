"""What a model returns: a state, a loss if targets were given, and logits on demand.

Legend: B batch, T time, V vocabulary, E width of the features that meet the vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from palimpsest.errors import InputError
from palimpsest.state import State

__all__ = ["ModelOutput"]


class ModelOutput:
    """What a model returns.

    Attributes:
        state: the state after the last position.
        loss: mean cross-entropy in nats over the targets that count, or None without targets.
        loss_sum: their sum, for gradient accumulation over batches of unequal size.
        n_targets: how many targets count, a 0-d integer tensor, or None without targets.
        logits: (B,T,V), computed when first read, so that a loss alone never makes them. They
            belong to the call: grad mode and autocast are those of the call, not of the reading,
            and reading them for the first time after the head's weights changed (an optimizer
            step, a loaded checkpoint) raises an InputError.
        token_losses: (B,T) cross-entropy in nats, 0 where ignored, without gradient; None without
            targets.
    """

    def __init__(
        self,
        features_BTE: Tensor,
        head_VE: Tensor,
        state: State,
        loss_sum: Tensor | None = None,
        token_losses: Tensor | None = None,
        n_targets: Tensor | None = None,
    ) -> None:
        self._features_BTE = features_BTE
        self._head_VE = head_VE
        self._head_version = _version(head_VE)
        self._head_storage = head_VE.untyped_storage()
        device = features_BTE.device.type
        self._grad = torch.is_grad_enabled()
        self._autocast: torch.dtype | None = None
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            self._autocast = torch.get_autocast_dtype(device)
        self.state = state
        self.loss_sum = loss_sum
        self.token_losses = token_losses
        self.n_targets = n_targets

    @cached_property
    def logits(self) -> Tensor:
        head_VE, device = self._head_VE, self._features_BTE.device.type
        same = head_VE.untyped_storage()._cdata == self._head_storage._cdata
        if not same or _version(head_VE) != self._head_version:
            raise InputError(
                "output.logits: the head's weights have changed since the call that made this "
                "output; read logits before the weights change (for example before "
                "optimizer.step()), or call the model again"
            )
        with (
            torch.inference_mode(self._features_BTE.is_inference()),
            torch.set_grad_enabled(self._grad),
            _autocast(device, self._autocast),
        ):
            # in the features' dtype, so that the head adds no precision of its own
            return nn.functional.linear(self._features_BTE, head_VE.to(self._features_BTE.dtype))

    @cached_property
    def loss(self) -> Tensor | None:
        if self.loss_sum is None or self.n_targets is None:
            return None
        return self.loss_sum / self.n_targets.clamp(min=1)


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was changed in place; inference tensors do not count it."""
    return None if tensor.is_inference() else tensor._version


def _autocast(device: str, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast exactly as it was."""
    if dtype is not None:
        return torch.autocast(device, dtype)
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
