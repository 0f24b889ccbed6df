"""How far back a state reaches: the cosine of states by lag, and what memories keep by lag.

State horizon: E_t cos(s_t, s_{t+k}), raw and with each window's own mean removed. A window of T
states whose mean is removed has cosines of -1/(T - 1) on average, not 0.

Memory horizon: for each head R(k) = E_t Π_{1≤τ≤k} decay_{t+τ}, over all starts t of all windows,
so R(0) = 1. The half-life k_{1/e} is the lag at which R falls to 1/e, with log R straight between
lags, which is exact for a constant decay λ: -1/ln λ.

Source: arXiv 2605.10643, for the memory of GPN+M. Here it is for every head with a scalar decay:
the memories of GPN+M, Gated DeltaNet and Mamba-2, and λ and γ of the Triple-Latent family.

Legend: W windows, T tokens of a window, B windows of one forward, D width of a vector, H heads,
K lags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.analysis.catalogue import check_model, resolve, taps
from palimpsest.analysis.passes import Measured, check_windows, read_windows, state_tap
from palimpsest.errors import InputError
from palimpsest.evaluation.statistics import Estimate, column_means
from palimpsest.models.language_model import LanguageModel

__all__ = [
    "HeadRetention",
    "Retention",
    "StateCosines",
    "decay_taps",
    "half_life",
    "lag_grid",
    "measure_retention",
    "measure_state_cosines",
    "retention_curves",
    "state_cosines",
]

DENSE = 32  # every lag up to here, further ones about 5 % apart
TINY = 1e-300  # what underflows is as good as gone


# -- states ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StateCosines(Measured):
    """Cosine of states by lag, with standard errors over the windows.

    Attributes:
        tap: whose vectors these are; "" where they were given.
        windows: W.
        length: T.
        lags: (K) in tokens.
        raw: (K) E_t cos(s_t, s_{t+k}).
        centred: (K) the same with each window's mean removed.
    """

    tap: str
    windows: int
    length: int
    lags: tuple[int, ...]
    raw: tuple[Estimate, ...]
    centred: tuple[Estimate, ...]


def lag_grid(longest: int, *, dense: int = DENSE, ratio: float = 1.05) -> list[int]:
    """Lags 1, 2, …, ``dense``, then growing by ``ratio``, up to ``longest``, which is the last."""
    found, at = list(range(1, min(dense, longest) + 1)), float(dense)
    while found and found[-1] < longest:
        at = max(at * ratio, found[-1] + 1)
        found.append(min(round(at), longest))
    return found


def _check_lags(lags: Sequence[int], longest: int) -> list[int]:
    """Ascending lags of at least 1.

    Raises:
        InputError: none, one below 1, or one beyond what the text has.
    """
    found = sorted(set(lags))
    if not found or found[0] < 1:
        raise InputError(f"lags={list(lags)}: must be at least one, and each at least 1")
    if found[-1] > longest:
        raise InputError(
            f"lags up to {found[-1]}: windows of this length have lags up to {longest}; use longer "
            "windows or shorter lags"
        )
    return found


def _cosines(states_BTD: Tensor, lags: Sequence[int]) -> Tensor:
    """(B,K) mean over t of cos(s_t, s_{t+k})."""
    unit_BTD = functional.normalize(states_BTD, dim=-1)
    return torch.stack(
        [(unit_BTD[:, :-k] * unit_BTD[:, k:]).sum(-1).mean(1, dtype=torch.float64) for k in lags],
        dim=1,
    )


def _both(states_BTD: Tensor, lags: Sequence[int]) -> tuple[Tensor, Tensor]:
    states_BTD = states_BTD.to(torch.promote_types(states_BTD.dtype, torch.float32))
    centred_BTD = states_BTD - states_BTD.mean(1, keepdim=True)
    return _cosines(states_BTD, lags).cpu(), _cosines(centred_BTD, lags).cpu()


def state_cosines(states_WTD: Tensor, lags: Sequence[int] | None = None) -> StateCosines:
    """Cosine by lag of states that are at hand.

    Args:
        states_WTD: such as ``tape["state.predicted"]``.
        lags: None takes powers of two up to half of T, and that.

    Raises:
        InputError: not (W,T,D), or lags that are not in [1, T - 1].
    """
    if states_WTD.ndim != 3 or states_WTD.shape[1] < 2:
        raise InputError(
            f"states of shape {tuple(states_WTD.shape)}: must be (windows, ≥ 2, width)"
        )
    windows, length = states_WTD.shape[:2]
    chosen = _check_lags(_powers(length // 2) if lags is None else lags, length - 1)
    raw_WK, centred_WK = _both(states_WTD, chosen)
    return StateCosines(
        tap="",
        windows=windows,
        length=length,
        lags=tuple(chosen),
        raw=column_means(raw_WK),
        centred=column_means(centred_WK),
    )


def measure_state_cosines(
    model: LanguageModel,
    ids_WT: Tensor,
    lags: Sequence[int] | None = None,
    *,
    tap: str | None = None,
    batch_size: int = 8,
) -> StateCosines:
    """Read windows of a text and measure the cosine of their states by lag.

    Args:
        model: any model; it comes back in the mode it was in.
        ids_WT: windows, each read from an empty state (``cut_windows``).
        lags: None takes powers of two up to half of T, and that.
        tap: one vector at each position; None for the one that the head reads.
        batch_size: windows of a forward.

    Raises:
        InputError: an unknown tap, windows that do not fit the model, or are shorter than a lag.
    """
    check_windows(model, ids_WT, batch_size, least=2)
    length = ids_WT.shape[1]
    chosen = _check_lags(_powers(length // 2) if lags is None else lags, length - 1)
    name = state_tap(model, tap)
    found = [_both(tape[name], chosen) for tape in read_windows(model, ids_WT, [name], batch_size)]
    return StateCosines(
        tap=name,
        windows=len(ids_WT),
        length=length,
        lags=tuple(chosen),
        raw=column_means(torch.cat([raw for raw, _ in found])),
        centred=column_means(torch.cat([centred for _, centred in found])),
    )


def _powers(longest: int) -> list[int]:
    return [*(1 << i for i in range(longest.bit_length()) if 1 << i < longest), longest]


# -- memories -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HeadRetention(Measured):
    """What one head keeps.

    Attributes:
        tap: the tap of its decay.
        head: its number there.
        half_life: k_{1/e} in tokens; None where the curve stays above 1/e up to the longest lag.
        curve: R at ``Retention.lags``.
    """

    tap: str
    head: int
    half_life: float | None
    curve: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Retention(Measured):
    """What the heads of a model keep by lag.

    Attributes:
        windows: W.
        length: T.
        lags: (K) from 0.
        heads: all heads of the chosen taps.
    """

    windows: int
    length: int
    lags: tuple[int, ...]
    heads: tuple[HeadRetention, ...]

    @property
    def longest(self) -> int:
        """The longest lag."""
        return self.lags[-1]

    def of(self, tap: str, head: int) -> HeadRetention:
        """One head.

        Raises:
            InputError: a tap that was not measured, or a head that it does not have.
        """
        own = [h for h in self.heads if h.tap == tap]
        if not own:
            measured = dict.fromkeys(h.tap for h in self.heads)
            raise InputError(f"tap={tap!r}: not measured; there is {', '.join(measured)}")
        if not 0 <= head < len(own):
            raise InputError(
                f"head={head}: {tap!r} has {len(own)} heads, numbered 0 to {len(own) - 1}"
            )
        return own[head]

    def half_lives(self) -> list[float | None]:
        """Of all heads, in order."""
        return [h.half_life for h in self.heads]


def decay_taps(model: LanguageModel) -> list[str]:
    """Taps with a decay for each head: those that end in "log_decay", and "decay.…"."""
    return [
        name
        for name, tap in taps(check_model(model)).items()
        if tap.shape == "(B,T,H)" and (_is_log(name) or "decay" in name.split("."))
    ]


def _is_log(name: str) -> bool:
    return name.endswith("log_decay")


def retention_curves(log_decay_WTH: Tensor, lags: Sequence[int]) -> Tensor:
    """R(k) of each head.

    Args:
        log_decay_WTH: logarithms of decays, at most 0.
        lags: each in [0, T].

    Returns:
        (H,K) in fp64.
    """
    sums_WSH = functional.pad(log_decay_WTH.double().cumsum(1), (0, 0, 1, 0))  # S = T + 1
    rows = [
        (sums_WSH[:, k:] - sums_WSH[:, : sums_WSH.shape[1] - k]).exp().mean((0, 1)) for k in lags
    ]
    return torch.stack(rows, dim=-1)


def half_life(lags: Sequence[int], curve: Sequence[float]) -> float | None:
    """The first lag at which a curve that starts at 1 falls to 1/e, log-linear between lags.

    Args:
        lags: ascending, the first one 0.
        curve: the values there.

    Returns:
        A lag, or None where the curve stays above 1/e.
    """
    logs = [math.log(max(value, TINY)) for value in curve]
    for i in range(1, len(logs)):
        if logs[i] <= -1.0:
            share = (logs[i - 1] + 1.0) / (logs[i - 1] - logs[i])
            return lags[i - 1] + share * (lags[i] - lags[i - 1])
    return None


def measure_retention(
    model: LanguageModel,
    ids_WT: Tensor,
    *,
    names: Sequence[str] | None = None,
    longest: int | None = None,
    batch_size: int = 8,
) -> Retention:
    """Read windows of a text and measure what each head keeps by lag.

    Args:
        model: any model with decays; it comes back in the mode it was in.
        ids_WT: windows, each read from an empty state (``cut_windows``).
        names: taps or patterns of :func:`decay_taps`; None for all of them.
        longest: the longest lag; None takes half of T, so that each lag has that many starts.
        batch_size: windows of a forward.

    Raises:
        InputError: a model without decays, other taps, windows that do not fit the model or are
            shorter than ``longest``.
    """
    check_windows(model, ids_WT, batch_size, least=2)
    able = decay_taps(model)
    if not able:
        raise InputError(f"{model.registry_name}: has no heads with a decay, so nothing to follow")
    chosen = able if names is None else resolve(model, names)
    wrong = [name for name in chosen if name not in able]
    if wrong:
        raise InputError(f"tap={wrong[0]!r}: is no decay of heads; there is {', '.join(able)}")
    length = ids_WT.shape[1]
    grid = lag_grid(length // 2 if longest is None else longest)
    lags = [0, *_check_lags(grid or [longest or 0], length)]
    sums: dict[str, Tensor] = {}
    for tape in read_windows(model, ids_WT, chosen, batch_size):
        for name in chosen:
            values_BTH = tape[name].double().cpu()
            logs_BTH = values_BTH if _is_log(name) else values_BTH.clamp(min=TINY).log()
            part_HK = len(values_BTH) * retention_curves(logs_BTH, lags)
            sums[name] = sums[name] + part_HK if name in sums else part_HK
    heads = []
    for name in chosen:
        for head, curve_K in enumerate((sums[name] / len(ids_WT)).tolist()):
            heads.append(
                HeadRetention(
                    tap=name, head=head, half_life=half_life(lags, curve_K), curve=tuple(curve_K)
                )
            )
    return Retention(windows=len(ids_WT), length=length, lags=tuple(lags), heads=tuple(heads))
