"""Checks of the types of public arguments: one line that names the argument, its value, the remedy.

Values are tested by what they can do where subclasses and wrappers are usual (a compiled model is
still a model).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from palimpsest.errors import InputError, PalimpsestError
from palimpsest.streams import require_unicode

__all__ = [
    "require_model",
    "require_path",
    "require_tensor",
    "require_tokenizer",
    "require_type",
    "require_whole",
    "shown",
]

LONGEST_SHOWN = 40


def shown(value: object) -> str:
    """A value in a message: its repr, shortened to one line."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def require_type(
    value: object,
    name: str,
    kinds: type | tuple[type, ...],
    remedy: str,
    error: type[PalimpsestError] = InputError,
) -> None:
    """Require an instance of some types.

    Args:
        value: the argument.
        name: what the caller calls it.
        kinds: the types that are accepted.
        remedy: what to pass instead, the end of the message.
        error: the class of the error.

    Raises:
        PalimpsestError: another type; of class ``error``.
    """
    if not isinstance(value, kinds):
        raise error(f"{name}={shown(value)} is of type {type(value).__name__}: {remedy}")


def require_model(value: Any) -> None:
    """Require a model, which has ``init_state`` and a ``config``.

    Raises:
        InputError: a name, a path, a result of training or anything else.
    """
    if hasattr(value, "init_state") and hasattr(value, "config"):
        return
    if isinstance(value, str | os.PathLike):
        remedy = (
            "pass the model itself: palimpsest.load(FOLDER) for a saved one, "
            "palimpsest.build(NAME) for a new one"
        )
    elif hasattr(value, "model"):
        remedy = "pass its model, the attribute .model"
    else:
        remedy = "pass a model, from palimpsest.load(FOLDER) or palimpsest.build(NAME)"
    raise InputError(f"model={shown(value)} is of type {type(value).__name__}: {remedy}")


def require_tokenizer(value: Any) -> None:
    """Require a tokenizer, which has ``encode`` and a ``vocab_size``.

    Raises:
        InputError: a name, a path or anything else.
    """
    if hasattr(value, "encode") and hasattr(value, "vocab_size"):
        return
    what = repr(str(value)) if isinstance(value, str | os.PathLike) else "FILE"
    raise InputError(
        f"tokenizer={shown(value)} is of type {type(value).__name__}: pass the tokenizer itself, "
        f"palimpsest.text.load_tokenizer({what})"
    )


def require_tensor(value: object, name: str) -> None:
    """Require a tensor.

    Raises:
        InputError: text, a list, an array or anything else, each with its own remedy.
    """
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, str):
        remedy = (
            "encode the text, torch.tensor([tokenizer.encode(text)]), or feed it to a "
            "palimpsest.Session(model, tokenizer)"
        )
    elif type(value).__module__ == "numpy":
        remedy = f"pass a tensor, torch.from_numpy({name})"
    elif isinstance(value, list | tuple):
        remedy = f"pass a tensor of shape (batch, length), torch.tensor({name})"
    else:
        remedy = "pass a tensor of shape (batch, length)"
    raise InputError(f"{name}={shown(value)} is of type {type(value).__name__}: {remedy}")


def require_path(value: object, name: str, error: type[PalimpsestError] = InputError) -> None:
    """Require a path.

    Raises:
        PalimpsestError: neither text nor a ``Path``, or a name that is not UTF-8; of class
            ``error``.
    """
    require_type(value, name, (str, os.PathLike), "pass a path as text or pathlib.Path", error)
    require_unicode(str(value), name, error)


def require_whole(value: object, name: str) -> None:
    """Require a whole number; its range is the caller's to check.

    Raises:
        InputError: a float, a bool, text or anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name}={shown(value)}: must be a whole number")
