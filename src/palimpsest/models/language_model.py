"""The one contract every language model keeps.

``model(input_ids, state)`` gives logits, a loss when asked, and a new state. An architecture
implements three methods, :meth:`LanguageModel.encode`, :meth:`LanguageModel.init_state` and
:meth:`LanguageModel.head_weight`; checking, the chunked loss, both readings of a position, saving
and parameter groups live here.

Legend: B batch, T time, V vocabulary, E width of the features that meet the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from palimpsest.errors import InputError, StateError
from palimpsest.models.config import ModelConfig
from palimpsest.models.context import ContextWindow
from palimpsest.models.input_checks import (
    check_ids,
    check_masks,
    check_state_tensors,
    check_targets,
)
from palimpsest.models.output import ModelOutput
from palimpsest.models.scaling import Scaling
from palimpsest.ops.cross_entropy import cross_entropy
from palimpsest.state import State

__all__ = ["LanguageModel", "ModelOutput", "Predict"]

Predict = Literal["next", "current"]


class LanguageModel(ContextWindow, nn.Module, ABC):
    """Base class of every architecture.

    Class attributes:
        registry_name: set by :func:`palimpsest.models.registry.register`.
        state_class: the :class:`~palimpsest.state.State` subclass the model carries.
        causal: False only for configurations kept to reproduce a published leak.
        own_ops: False for an architecture that uses torch's own operations only, for which the
            contract tests then expect no backends.
        scaling: how its sizes grow, for ``palimpsest.match``; None where nobody has said.
        sequential: whether all its products are computed one token after another.
    """

    registry_name: ClassVar[str] = ""
    state_class: ClassVar[type[State]] = State
    own_ops: ClassVar[bool] = True
    scaling: ClassVar[Scaling | None] = None
    sequential: ClassVar[bool] = False
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    # -- what an architecture implements --------------------------------------------------------

    @abstractmethod
    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Read tokens.

        Args:
            input_ids: (B,T), already checked.
            state: where to start; must not be changed.
            hold_BT: (B,T) bool, True where a position is padding: the state is held.
            reset_BT: (B,T) bool, True where a document starts: the state is cleared before it.

        Returns:
            (B,T,E) features such that ``features @ head_weight().T`` are the logits of the NEXT
            token at each position, and the state after the last position.
        """

    @abstractmethod
    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before any token, on the model's device and in its dtype (bf16 models: fp32).

        An axis that grows with the text has length 0 here.
        """

    @abstractmethod
    def head_weight(self) -> Tensor:
        """(V,E), the matrix that turns features into logits."""

    def state_features(self, state: State) -> Tensor:
        """(B,E) features of the prediction that a state already holds, for ``predict="current"``.

        Raises:
            InputError: an architecture whose state makes no prediction before its first token.
        """
        raise InputError(
            f"predict='current': {self.registry_name} predicts nothing before its first token; "
            "use predict='next'"
        )

    def body_flops(self, length: int) -> dict[str, int]:
        """Floating-point operations of :meth:`encode` by part, see ``palimpsest.models.flops``.

        Args:
            length: tokens of one text, read from an empty state.

        Raises:
            InputError: an architecture that does not count them.
        """
        raise InputError(
            f"{self.registry_name or type(self).__name__}: define `body_flops(length)` on its "
            "class, which counts its operations (palimpsest.models.flops)"
        )

    def published_flops(self, length: int) -> dict[str, int]:
        """The same, head included, by the convention of the paper that published counts.

        Raises:
            InputError: an architecture without published counts.
        """
        raise InputError(f"{self.registry_name}: no paper has published counts of its operations")

    # -- the contract -------------------------------------------------------------------------

    @property
    def causal(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def state_dtype(self) -> torch.dtype:
        """States are kept in at least fp32."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What matrix products give here and now: the parameters' dtype, or that of autocast."""
        kind = self.device.type
        lowered = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        lowered = lowered and self.dtype != torch.float64  # which autocast leaves alone
        return torch.get_autocast_dtype(kind) if lowered else self.dtype

    def forward(
        self,
        input_ids: Tensor,
        state: State | None = None,
        *,
        targets: Tensor | None = None,
        attention_mask: Tensor | None = None,
        reset_mask: Tensor | None = None,
        predict: Predict = "next",
    ) -> ModelOutput:
        """Read tokens, predict tokens.

        Args:
            input_ids: (B,T) integer ids in [0, vocab_size), T ≥ 1.
            state: continue from here; None starts from :meth:`init_state`. Never changed.
            targets: (B,T) ids aligned with the logits; -100 is ignored, and so is padding.
            attention_mask: (B,T), 0 or False where a position is padding on either side: the
                state is held there, with no write, no decay and no convolution shift.
            reset_mask: (B,T), 1 or True where a document starts: the state is cleared before it.
            predict: "next": position t predicts token t+1. "current": the published reading of
                Grounded Prediction Networks; position t predicts token t before it is seen, the
                first one from the state passed in (zero at the start of a text).

        Returns:
            A :class:`ModelOutput`.

        Raises:
            InputError: ids, targets or masks of a wrong shape, type or range.
            StateError: a state of another model or batch size.
        """
        if self.device.type == "meta":
            raise InputError(
                f"{self.registry_name} is on the meta device, which holds no values: it has shapes "
                "and counts, and runs once it is built or loaded on another device"
            )
        check_ids(input_ids, "input_ids", self.config.vocab_size)
        input_ids = input_ids.long()  # embeddings take no narrower type
        batch = input_ids.shape[0]
        hold_BT, reset_BT = check_masks(attention_mask, reset_mask, input_ids)
        if state is None:
            state = self.init_state(batch)
        else:
            self.check_state(state, batch)
        if predict not in ("next", "current"):
            raise InputError(f"predict={predict!r}: must be 'next' or 'current'")

        features_BTE, new_state = self.encode(input_ids, state, hold_BT, reset_BT)
        if predict == "current":
            features_BTE = self._shift_to_current(features_BTE, state, reset_BT)

        loss_sum = token_losses = n_targets = None
        if targets is not None:
            targets = check_targets(targets, input_ids, hold_BT, self.config.vocab_size)
            loss_sum, token_losses = cross_entropy(features_BTE, self.head_weight(), targets)
            n_targets = (targets != -100).sum()
        return ModelOutput(
            features_BTE, self.head_weight(), new_state, loss_sum, token_losses, n_targets
        )

    def state_bytes(self, batch: int = 1, length: int = 0) -> int:
        """Bytes of the state after ``length`` tokens, read in the dtype of here and now."""
        with torch.device("meta"):
            state = self.init_state(batch, device="meta")
        return state.nbytes

    def flops(self, length: int) -> dict[str, int]:
        """Operations of a forward pass by part, the head's logits at all positions included."""
        return {**self.body_flops(length), "head": 2 * length * self.head_weight().numel()}

    def check_state(self, state: State, batch: int) -> None:
        """Refuse a state that this model did not make.

        Raises:
            StateError: names what differs.
        """
        if type(state) is not self.state_class:
            raise StateError(
                f"state of kind {getattr(state, 'kind', type(state).__name__)!r}: "
                f"{self.registry_name} carries a state of kind {self.state_class.kind!r}"
            )
        if state.batch_size != batch:
            raise StateError(
                f"state of {state.batch_size} rows with input_ids of {batch} rows: "
                "use state.select(rows), or start with state=None"
            )
        empty = self.init_state(batch, device="meta")
        check_state_tensors(state, empty, self.device, self.registry_name)

    # -- training -----------------------------------------------------------------------------

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether weight decay applies: by default to arrays of two or more dimensions only."""
        return parameter.ndim >= 2

    def param_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, with the architecture's own decay rule."""
        named = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        decayed = [p for n, p in named if self.decays(n, p)]
        plain = [p for n, p in named if not self.decays(n, p)]
        groups = [
            {"params": decayed, "lr": lr, "weight_decay": weight_decay},
            {"params": plain, "lr": lr, "weight_decay": 0.0},
        ]
        return [g for g in groups if g["params"]]

    def num_parameters(self) -> int:
        """Parameters, tied ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors``; read them with ``palimpsest.load``."""
        from palimpsest.models.checkpoint import save_model

        return save_model(self, folder)

    # -- details -----------------------------------------------------------------------------

    def _shift_to_current(
        self, features_BTE: Tensor, state: State, reset_BT: Tensor | None
    ) -> Tensor:
        before_BE = self.state_features(state).to(features_BTE.dtype)
        shifted = torch.cat([before_BE[:, None], features_BTE[:, :-1]], dim=1)
        if reset_BT is not None:
            fresh_1E = self.state_features(self.init_state(1)).to(features_BTE.dtype)
            shifted = torch.where(reset_BT[..., None], fresh_1E[:, None], shifted)
        return shifted

    def extra_repr(self) -> str:
        return f"{self.registry_name}, {self.num_parameters():,} parameters"

    def named_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all parameters."""
        for name, parameter in self.named_parameters():
            yield name, tuple(parameter.shape)
