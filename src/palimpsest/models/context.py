"""How much of a text a model reads at once: a sliding window, a longest text, or all of it.

A model knows the length of the texts it was trained on. What attention does beyond it was never
trained, so attention reads a sliding window of that length by default, and a text with learned
positions ends there. The state of a recurrent model has no such limit.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.state import State

__all__ = ["ContextLimit", "ContextWindow"]

ContextLimit = Literal["none", "window", "positions"]


class ContextWindow:
    """The part of a language model that knows its window.

    Attributes:
        trained_length: tokens of the texts that the model was trained on; None if unknown, or if
            the state was carried from step to step. Saved with the model.
    """

    trained_length: int | None = None
    _chosen_window: int | None = None

    @property
    def context_limit(self) -> ContextLimit:
        """What bounds the context.

        "none": a state of constant size carries the whole text. "window": attention without
        learned positions can read a sliding window. "positions": learned positions end somewhere.
        """
        return "none"

    @property
    def max_length(self) -> int | None:
        """Most tokens of one text, or None if there is no bound.

        A model with a bound keeps the tokens read so far in ``state.position`` (B,), or overrides
        :meth:`room`.
        """
        return None

    @property
    def window(self) -> int:
        """Tokens of context of a prediction, 0 if there is no limit.

        By default the length that the model was trained on, or 0 if that is unknown or the model
        has no such limit. Set it to another number, or to 0 for no limit: states made afterwards
        have the new window, and existing ones keep theirs. The setting is not saved.

        Raises:
            InputError: when set to a negative number, or on a model that has no such limit.
        """
        if self.context_limit == "none":
            return 0
        return (self.trained_length or 0) if self._chosen_window is None else self._chosen_window

    @window.setter
    def window(self, tokens: int) -> None:
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise InputError(f"window={tokens!r}: must be a number of tokens, or 0 for no limit")
        name = getattr(self, "registry_name", "") or type(self).__name__
        if tokens and self.context_limit == "none":
            raise InputError(
                f"window={tokens}: {name} with this configuration has no window; its state carries "
                "the whole text"
            )
        bound = self.position_bound
        if bound is not None and tokens > bound:
            raise InputError(
                f"window={tokens}: the learned positions of {name} end at max_seq_len={bound}; "
                f"use a window of at most {bound}"
            )
        self._chosen_window = tokens

    @property
    def position_bound(self) -> int | None:
        """Rows of the learned positions, or None without learned positions."""
        return None

    def cached(self, length: int) -> int:
        """Tokens that a cache of keys and values holds after ``length`` tokens."""
        sliding = self.window if self.context_limit == "window" else 0
        return min(length, sliding - 1) if sliding else length

    def room(self, state: State) -> Tensor | None:
        """(B,) how many more tokens each row of a state can read, or None if there is no bound."""
        if self.max_length is None:
            return None
        position_B: Tensor | None = getattr(state, "position", None)
        if position_B is None:
            raise NotImplementedError(
                f"{type(self).__name__} has a max_length: keep the tokens read in state.position, "
                "or override room()"
            )
        return (self.max_length - position_B).clamp(min=0)

    def describe_reading(self, length: int) -> str:
        """How a text is read that is longer than the trained length; "" if nothing is special.

        Args:
            length: tokens of the text.
        """
        if self.context_limit != "window":
            return ""
        if self.window and length > self.window:
            why = ", the length it was trained on" if self.window == self.trained_length else ""
            return f"attention reads a sliding window of {self.window} tokens{why}"
        if self.trained_length and length > max(self.trained_length, self.window):
            return (
                f"attention reads up to {self.window or length} tokens, more than the "
                f"{self.trained_length} it was trained on"
            )
        return ""

    def describe_bound(self) -> str:
        """The longest text and its reason, for messages that refuse a longer one."""
        bound, name = self.position_bound, getattr(self, "registry_name", "the model")
        text = f"{name} holds at most {self.max_length} positions"
        if bound is None or self.max_length == bound:
            return text
        why = "the length it was trained on" if self._chosen_window is None else "its window"
        return f"{text} ({why}; a window of {bound} allows all of its learned positions)"
