"""What the linear recurrences share before they run: argument checks, dtypes, padding and resets.

B batch, T positions, H heads, S width of the state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = [
    "apply_gates",
    "arithmetic_dtype",
    "compute_dtype",
    "lowest_log_decay",
    "require_float",
    "require_mask",
    "require_shape",
    "running_sums",
    "without_autocast",
]

LARGE_SUM = -32.0  # from here on differences in float32 are less exact than its products


def require_shape(name: str, tensor: Tensor, letters: str, sizes: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape.

    Args:
        name: the argument as the caller wrote it.
        tensor: the argument.
        letters: one letter per dimension, as in the argument's suffix.
        sizes: the size of each.

    Raises:
        ValueError: another number of dimensions, or other sizes.
    """
    if tuple(tensor.shape) != sizes:
        wanted = ", ".join(f"{letter}={size}" for letter, size in zip(letters, sizes, strict=True))
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be ({wanted})")


def require_float(name: str, tensor: Tensor, like: Tensor) -> None:
    """Refuse a tensor that is not floating point, or lives on another device than ``like``."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}; it must be floating point")
    if tensor.device != like.device:
        raise ValueError(
            f"{name} is on {tensor.device}, the other arguments on {like.device}; move it there"
        )


def require_mask(name: str, mask: Tensor | None, batch: int, length: int) -> None:
    """Refuse a padding or boundary mask that is not boolean of shape (B, T)."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} has dtype {mask.dtype}; it must be bool (use {name}.bool())")
    require_shape(name, mask, "BT", (batch, length))


def arithmetic_dtype(
    named: dict[str, Tensor], hold: Tensor | None, reset: Tensor | None
) -> torch.dtype:
    """Refuse what no op can compute with, and find the dtype of the arithmetic.

    Args:
        named: the op's tensors by argument; the first is (B, T, …) and says where all must live.
        hold, reset: the op's masks, (B, T).

    Raises:
        TypeError, ValueError: as :func:`require_float` and :func:`require_mask`.
    """
    like = next(iter(named.values()))
    for name, tensor in named.items():
        require_float(name, tensor, like)
    require_mask("hold", hold, *like.shape[:2])
    require_mask("reset", reset, *like.shape[:2])
    return compute_dtype(*named.values())


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of the arithmetic: the widest of the arguments, and at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def lowest_log_decay(dtype: torch.dtype) -> float:
    """A finite logarithm whose exponential is exactly 0 in ``dtype``.

    Sums of decays are taken over logarithms no lower than this one. That changes no decay and keeps
    −inf − (−inf) out.
    """
    return -760.0 if dtype == torch.float64 else -110.0


def running_sums(log_decay: Tensor, dim: int) -> Tensor:
    """Running sums of finite log decays, in a dtype that holds their differences.

    Behind a few strong decays the sums are in the hundreds, where float32 has lost the digits of
    the weak ones: then the sums are float64. (Apple's devices have none; and on a GPU a look at the
    sums would cost more than the wider arithmetic does.)
    """
    dtype = log_decay.dtype
    if log_decay.device.type == "mps" or log_decay.numel() == 0:
        return log_decay.cumsum(dim)
    sums = log_decay.cumsum(dim, dtype=torch.float64)
    small = log_decay.device.type == "cpu" and float(sums.amin()) > LARGE_SUM
    return sums.to(dtype) if small else sums


def apply_gates(
    values_BTHS: Tensor, log_decay_BTH: Tensor, hold_BT: Tensor | None, reset_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write padding and document starts into the recurrence's own inputs.

    A held position writes nothing and decays nothing; a reset is a decay of exactly 0.
    """
    if hold_BT is not None:
        values_BTHS = values_BTHS.masked_fill(hold_BT[:, :, None, None], 0.0)
        log_decay_BTH = log_decay_BTH.masked_fill(hold_BT[:, :, None], 0.0)
    if reset_BT is not None:
        log_decay_BTH = log_decay_BTH.masked_fill(reset_BT[:, :, None], float("-inf"))
    return values_BTHS, log_decay_BTH


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products keep the dtype that the op has chosen."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
