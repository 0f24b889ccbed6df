"""From logits to a token, as pure functions.

The order is fixed:

1. ids that are forbidden get a logit of −∞
2. repetition penalty, on the logits of ids seen before (prompt and continuation)
3. temperature 0: the largest logit, and nothing below applies
4. division by the temperature
5. top-k, 6. top-p, 7. min-p, each on the distribution that the one before has left
8. one uniform number per row picks from the distribution (inverse cumulative probability, ids in
   ascending order)

**Seeds.** Row i of a batch draws from a generator of its own, seeded with ``seed + i``; one number
per token. So a row does not depend on the rows beside it: row i with seed s is the row alone with
seed s + i. Numbers are drawn on the CPU, so they are the same for every device.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.errors import InputError

__all__ = [
    "GREEDY",
    "SamplingConfig",
    "draw_uniforms",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalise_repetition",
    "row_generators",
    "sample",
]

# torch's CPU generator uses the low 32 bits of a seed only, so larger ones would not be distinct.
SEED_LIMIT = 1 << 32


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a token is chosen (in the order at the head of this file).

    Attributes:
        temperature: divides the logits; 0 takes the largest logit.
        top_k: keep the k most probable ids (and those equal to the k-th); None keeps all.
        top_p: keep the smallest set of most probable ids whose probability reaches this; 1 keeps
            all.
        min_p: keep ids at least this fraction as probable as the most probable one; 0 keeps all.
        repetition_penalty: positive logits of seen ids are divided by it, negative ones
            multiplied; 1 changes nothing.

    Raises:
        InputError: a value that makes no sense, named.

    Source: top-p, Holtzman et al. 2020 (arXiv 1904.09751); min-p, Nguyen et al. 2024 (arXiv
    2407.01082); repetition penalty, Keskar et al. 2019 (arXiv 1909.05858).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, math.inf),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not low <= value <= high:
                allowed = "at least 0" if high == math.inf else "from 0 to 1"
                raise InputError(f"{name}={value!r}: must be a finite number {allowed}")
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise InputError(f"{name}=0: must be above 0")
        if self.top_k is not None and (
            not isinstance(self.top_k, int) or isinstance(self.top_k, bool) or self.top_k < 1
        ):
            raise InputError(
                f"top_k={self.top_k!r}: must be a whole number of at least 1, or None for no limit"
            )


GREEDY = SamplingConfig(temperature=0.0)


def row_generators(seed: int, rows: int) -> list[torch.Generator]:
    """One CPU generator per row, seeded with ``seed + i``.

    Raises:
        InputError: a seed outside 0 … 2^32 - rows.
    """
    if not 0 <= seed <= SEED_LIMIT - rows:
        raise InputError(f"seed={seed}: must be from 0 to {SEED_LIMIT - rows}, for {rows} rows")
    return [torch.Generator().manual_seed(seed + i) for i in range(rows)]


def draw_uniforms(
    generators: Sequence[torch.Generator], running_B: Sequence[bool] | None = None
) -> Tensor:
    """(B,) float64 numbers in [0, 1), one from each row's generator.

    Args:
        generators: one per row.
        running_B: rows that have stopped draw nothing (and get 0).
    """
    uniforms_B = torch.zeros(len(generators), dtype=torch.float64, device="cpu")
    for i, generator in enumerate(generators):
        if running_B is None or running_B[i]:
            uniforms_B[i] = torch.rand((), dtype=torch.float64, generator=generator, device="cpu")
    return uniforms_B


def penalise_repetition(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Make ids seen before less likely: l / penalty where l > 0, else l · penalty."""
    penalised_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, penalised_BV, logits_BV)


def keep_top_k(logits_BV: Tensor, k: int) -> Tensor:
    """−∞ for all but the k largest logits of each row; those equal to the k-th stay.

    Raises:
        InputError: k above the size of the vocabulary.
    """
    if k > logits_BV.shape[-1]:
        raise InputError(f"top_k={k}: the model has {logits_BV.shape[-1]} ids; use None for all")
    kth_B1 = logits_BV.topk(k, dim=-1).values[..., -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)


def keep_top_p(logits_BV: Tensor, p: float) -> Tensor:
    """−∞ for all but the smallest set of most probable ids whose probability reaches p.

    The most probable id always stays; among equal ones the smaller id comes first.
    """
    sorted_BV, ids_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probability_BV = sorted_BV.softmax(-1)
    before_BV = probability_BV.cumsum(-1) - probability_BV
    drop_BV = before_BV >= p
    drop_BV[..., 0] = False
    return logits_BV.masked_fill(drop_BV.scatter(-1, ids_BV, drop_BV), -torch.inf)


def keep_min_p(logits_BV: Tensor, p: float) -> Tensor:
    """−∞ for ids less than p times as probable as the row's most probable one."""
    if p == 0:
        return logits_BV
    floor_B1 = logits_BV.amax(-1, keepdim=True) + math.log(p)
    return logits_BV.masked_fill(logits_BV < floor_B1, -torch.inf)


def sample(
    logits_BV: Tensor,
    config: SamplingConfig,
    uniforms_B: Tensor | None = None,
    *,
    seen_BV: Tensor | None = None,
    forbidden_V: Tensor | None = None,
) -> Tensor:
    """Choose one id per row.

    Args:
        logits_BV: (B,V) unnormalised log-probabilities, in any floating-point dtype; the choice
            is made in float64 (float32 on a device without it).
        config: how.
        uniforms_B: (B,) numbers in [0, 1), see :func:`draw_uniforms`; not needed at temperature 0.
        seen_BV: (B,V) bool, ids seen before; needed for a repetition penalty other than 1.
        forbidden_V: (V,) bool, ids that are never chosen.

    Returns:
        (B,) int64 ids, on the device of the logits.

    Raises:
        InputError: NaN among the logits, everything forbidden, or an argument that is missing.
    """
    wide = torch.float32 if logits_BV.device.type == "mps" else torch.float64
    logits_BV = logits_BV.to(wide)
    if bool(logits_BV.isnan().any()):
        raise InputError("the logits hold NaN: the model's parameters are broken or have diverged")
    if forbidden_V is not None:
        if bool(forbidden_V.all()):
            raise InputError(f"all {len(forbidden_V)} ids are forbidden; nothing can be chosen")
        logits_BV = logits_BV.masked_fill(forbidden_V, -torch.inf)
    if config.repetition_penalty != 1:
        if seen_BV is None:
            raise InputError(
                f"repetition_penalty={config.repetition_penalty} needs seen_BV, the ids seen before"
            )
        logits_BV = penalise_repetition(logits_BV, seen_BV, config.repetition_penalty)
    if config.temperature == 0:
        return logits_BV.argmax(-1)
    if uniforms_B is None:
        raise InputError(f"temperature={config.temperature} needs uniforms_B, one number per row")
    # shifting first keeps a tiny temperature from overflowing to ∞ − ∞
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / config.temperature
    if config.top_k is not None:
        logits_BV = keep_top_k(logits_BV, config.top_k)
    if config.top_p < 1:
        logits_BV = keep_top_p(logits_BV, config.top_p)
    logits_BV = keep_min_p(logits_BV, config.min_p)
    return _pick(logits_BV.softmax(-1), uniforms_B.to(logits_BV.device, wide))


def _pick(probability_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The first id whose cumulative probability exceeds the row's number."""
    cumulative_BV = probability_BV.cumsum(-1)
    goal_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
    picked_B = torch.searchsorted(cumulative_BV, goal_B1, right=True).squeeze(-1)
    # rounding can put the goal at the very end, past the last id that is possible at all
    ids_V = torch.arange(probability_BV.shape[-1], device=probability_BV.device)
    last_B = torch.where(probability_BV > 0, ids_V, -1).amax(-1)
    return torch.minimum(picked_B, last_B)
