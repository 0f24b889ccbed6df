"""What the analyses share: windows of a text, the taps that they look at, results as JSON.

Legend: W windows, T tokens of a window, B windows of one forward, N vectors, D width of a vector,
E width of the features that meet the vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.analysis.catalogue import check_model, taps
from palimpsest.analysis.intervene import intervene
from palimpsest.analysis.record import record
from palimpsest.analysis.tape import Tape
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import inference
from palimpsest.models.language_model import LanguageModel

__all__ = [
    "Measured",
    "check_windows",
    "cut_windows",
    "decode_vectors",
    "decoder_tap",
    "evaluating",
    "input_tap",
    "read_windows",
    "state_tap",
    "vector_taps",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Base of the results of this package: frozen, and ``to_dict()`` is ready for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """All fields; a number that is not finite becomes None, as JSON has none."""
        found = _plain(self)
        assert isinstance(found, dict)
        return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def cut_windows(
    ids: Tensor | NDArray[Any] | Sequence[int],
    length: int,
    *,
    stride: int | None = None,
    most: int | None = None,
) -> Tensor:
    """Cut one long text into windows.

    Args:
        ids: (N) the tokens of the text.
        length: T, tokens of a window; what is left at the end is left out.
        stride: tokens from one window's start to the next; None takes ``length``.
        most: at most so many windows, spread evenly over the text.

    Returns:
        (W,T) int64.

    Raises:
        InputError: a text that fills no window, or sizes below 1.
    """
    ids_N = torch.as_tensor(np.asarray(ids)).long()
    step = length if stride is None else stride
    for name, value in (("length", length), ("stride", step), ("most", most)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    if ids_N.ndim != 1:
        raise InputError(f"ids of shape {tuple(ids_N.shape)}: must be one text, of one axis")
    if len(ids_N) < length:
        raise InputError(
            f"a text of {len(ids_N)} tokens fills no window of {length}: use a longer text or "
            "shorter windows"
        )
    found_WT = ids_N.unfold(0, length, step)
    if most is not None and len(found_WT) > most:
        index = torch.linspace(0, len(found_WT) - 1, most, dtype=torch.float64).round().long()
        found_WT = found_WT[index]
    return found_WT.contiguous()


def check_windows(model: LanguageModel, ids_WT: Tensor, batch_size: int, least: int = 1) -> None:
    """Refuse windows that an analysis cannot read.

    Raises:
        InputError: not a model, another shape, shorter than ``least``, longer than the model
            holds, a batch size below 1.
    """
    check_model(model)
    if not isinstance(ids_WT, Tensor) or ids_WT.ndim != 2 or not ids_WT.numel():
        shape = tuple(ids_WT.shape) if isinstance(ids_WT, Tensor) else type(ids_WT).__name__
        raise InputError(f"windows of shape {shape}: must be (windows, tokens); use cut_windows")
    if ids_WT.shape[1] < least:
        raise InputError(
            f"windows of {ids_WT.shape[1]} tokens: this needs at least {least}; use longer windows "
            "or ask for less"
        )
    if model.max_length is not None and ids_WT.shape[1] > model.max_length:
        raise InputError(
            f"windows of {ids_WT.shape[1]} tokens: {model.describe_bound()}; use shorter windows"
        )
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: must be at least 1")


def read_windows(
    model: LanguageModel, ids_WT: Tensor, names: Sequence[str], batch_size: int
) -> Iterator[Tape]:
    """Read windows from an empty state, and yield what was recorded of each batch of them."""
    for ids_BT in ids_WT.split(batch_size):
        with inference(model), record(model, names) as tape:
            model(ids_BT.to(model.device))
        yield tape


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """A block in evaluation mode, with gradients; the model's own mode comes back."""
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        model.train(was_training)


# -- which taps -----------------------------------------------------------------------------------


NO_STATE_TAP = (
    "has no tap of the vector that the head reads; declare `state.predicted` of shape (B,T,D), or "
    "`residual` on its layers, in describe_taps (palimpsest.taps)"
)


def vector_taps(model: LanguageModel) -> list[str]:
    """Taps with one vector at each position."""
    return [name for name, tap in taps(model).items() if tap.shape == "(B,T,D)"]


def state_tap(model: LanguageModel, name: str | None = None) -> str:
    """The tap of the vector that the head reads, before the head's own norm.

    "state.predicted" where there is one, else the residual of the last layer.

    Args:
        model: the model.
        name: another tap with one vector at each position; None for the rule above.

    Raises:
        InputError: no such tap.
    """
    able = vector_taps(check_model(model))
    if name is None:
        last = [tap for tap in able if tap.endswith("residual")]
        if "state.predicted" not in able and not last:
            raise InputError(f"{model.registry_name}: {NO_STATE_TAP}")
        name = "state.predicted" if "state.predicted" in able else last[-1]
    if name not in able:
        raise InputError(
            f"tap={name!r}: {model.registry_name} has no such tap with one vector at each "
            f"position; it has {', '.join(able)}"
        )
    return name


def decoder_tap(model: LanguageModel) -> str:
    """The tap whose replacement changes what is decoded and no state."""
    return "decoder.input" if "decoder.input" in taps(model) else state_tap(model)


def input_tap(model: LanguageModel) -> str:
    """The tap of what a token brings in: "embedding", or "drive" of a grounded state.

    Raises:
        InputError: a model without either.
    """
    known = taps(model)
    for name in ("embedding", "drive"):
        if name in known and known[name].replaceable:
            return name
    raise InputError(
        f"{model.registry_name}: has no replaceable tap 'embedding' or 'drive' to differentiate; "
        "declare one in describe_taps"
    )


def decode_vectors(model: LanguageModel, vectors_ND: Tensor) -> Tensor:
    """What the model's own head makes of some vectors.

    Each takes the place of what the head reads, at the first position of a text, so that the
    norm, the projection and the bias are the model's own.

    Args:
        model: the model.
        vectors_ND: as the tap of :func:`state_tap` gives them.

    Returns:
        (N,E) features; times ``model.head_weight().T`` they are logits.
    """
    ids_N1 = torch.zeros(len(vectors_ND), 1, dtype=torch.long, device=model.device)

    def put(x_BTD: Tensor) -> Tensor:
        return vectors_ND.to(x_BTD)[:, None]

    with inference(model), intervene(model, {decoder_tap(model): put}):
        features_NTE, _ = model.encode(ids_N1, model.init_state(len(ids_N1)), None, None)
    return features_NTE[:, 0]
