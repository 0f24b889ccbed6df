"""Exact causal top-k retrieval from an append-only list of key-value pairs.

B batch, T positions, N pairs (N - T of them from before position 0), A width of queries and keys,
D width of values, K pairs chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from palimpsest.ops.decay_scan.arguments import (
    compute_dtype,
    require_float,
    require_mask,
    require_shape,
)
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.threads import numba_missing
from palimpsest.ops.topk_retrieval.blockwise import topk_retrieval_blockwise
from palimpsest.ops.topk_retrieval.compiled import topk_retrieval_numba
from palimpsest.ops.topk_retrieval.reference import topk_retrieval_reference

__all__ = ["Retrieval", "topk_retrieval"]

_dispatcher = Dispatcher("topk_retrieval")
_dispatcher.register("reference", topk_retrieval_reference)
_dispatcher.register("blockwise", topk_retrieval_blockwise)
_dispatcher.register("numba", topk_retrieval_numba, missing=numba_missing)


class Retrieval(NamedTuple):
    """What every position read, and from where."""

    read_BTD: Tensor
    """Weighted sum of the chosen values; 0 where nothing may be read, of width 0 without values."""
    pairs_BTK: Tensor
    """Indices into N of the chosen pairs, best first; -1 where fewer than K may be read."""
    weights_BTK: Tensor
    """Their weights; each row sums to 1, or is 0 where nothing may be read."""


def topk_retrieval(
    queries_BTA: Tensor,
    keys: Tensor,
    values_BND: Tensor | None,
    log_strength_BN: Tensor | None = None,
    *,
    top_k: int,
    key_ids_BN: Tensor | None = None,
    scale: float | Tensor = 1.0,
    temperature: float | Tensor = 8.0,
    delay: int = 1,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    usable_BN: Tensor | None = None,
    first_BT: Tensor | None = None,
    backend: str | None = None,
) -> Retrieval:
    """The K best of the pairs written before, weighted by softmax(temperature · score).

    score = scale · cos(query, key) + log strength. One pair belongs to every position, behind
    N - T pairs from earlier calls; position t may read the pair of position t - ``delay`` and all
    before it. Form pairs before the call: the gated hybrid's pair j is (key of token j - 1, value
    of token j), its query at t comes from token t - 1, its scale is 1/√A.

    **Ties go to the most recent pair**, in every backend, dtype, block size and in decoding. Pairs
    tie where their keys (and log strengths) are bitwise equal: scores are ranked as integers, see
    :mod:`palimpsest.ops.topk_retrieval.ranking`. The last bits of a projection depend on the shape
    of the product, so keys projected for each position on its own need not be equal where tokens
    are. Where keys depend on the token alone, project the embedding table and pass it as ``keys``
    with the tokens as ``key_ids_BN``: equal ids are equal keys, and the search is much faster.

    Backend chosen where none is named: ``numba`` with ``key_ids_BN`` on a CPU where numba is
    installed, otherwise ``blockwise``. Neither forms a T×N matrix; memory is linear in T (times
    the number of distinct ids, up to 128·K of them). Arithmetic is in the widest dtype of the
    arguments, at least float32. Gradients reach the queries, and the keys, values, strengths,
    scale and temperature through the chosen pairs alone.

    Args:
        queries_BTA: what is looked for; any length, as only directions count.
        keys: (B, N, A), the keys of all pairs, oldest first; or, with ``key_ids_BN``, a table
            (V, A) of all keys there are.
        values_BND: the values of all pairs; None where the caller sums them itself, by the pairs
            and weights returned (cheaper where values are rows of a table, too).
        log_strength_BN: added to the score; finite. For ranking, values below -1,000 count as that.
        top_k: how many pairs are read at most.
        key_ids_BN: int64, the row of the table that is the key of each pair.
        scale: factor of the cosine, a number or a scalar tensor.
        temperature: factor of the score in the softmax, a number or a scalar tensor.
        delay: 0 where a position may read its own pair, 1 where only earlier ones.
        hold: (B, T) bool, True at padding: its pair is never read, and it reads 0.
        reset: (B, T) bool, True at the first position of a document: pairs before it are not read
            from there on.
        usable_BN: True where the pair may be read at all. In decoding, the caller marks here the
            pairs of earlier documents, of padding, and those without a key.
        first_BT: int64, for each position the index into N of the first pair that it may read: a
            window on the newest pairs, or where a document started that began in an earlier call.
        backend: ``reference``, ``blockwise`` or ``numba`` (which needs ``key_ids_BN``).

    Returns:
        :class:`Retrieval`; the read is in the dtype of ``values_BND`` (without values, of
        ``queries_BTA``), K = min(top_k, N).

    Raises:
        ValueError: shapes that do not fit one another, no position, more positions than pairs,
            top_k < 1, delay < 0, ids outside the table, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.

    Source:
        arXiv 2606.05175, exact associative retrieval of the gated hybrid.
    """
    if queries_BTA.dim() != 3 or queries_BTA.shape[1] == 0:
        raise ValueError(
            f"queries_BTA has shape {tuple(queries_BTA.shape)}; "
            "it must be (B, T, A) with at least one position"
        )
    batch, length, width = queries_BTA.shape
    n_pairs = _count_pairs(keys, key_ids_BN, values_BND, length)
    like = queries_BTA if values_BND is None else values_BND
    if key_ids_BN is None:
        require_shape("keys", keys, "BNA", (batch, n_pairs, width))
    else:
        _require_ids(key_ids_BN, keys, batch, n_pairs, width)
    named = {"queries_BTA": queries_BTA, "keys": keys}
    if values_BND is not None:
        require_shape("values_BND", values_BND, "BND", (batch, n_pairs, values_BND.shape[2]))
        named["values_BND"] = values_BND
    if log_strength_BN is not None:
        require_shape("log_strength_BN", log_strength_BN, "BN", (batch, n_pairs))
        named["log_strength_BN"] = log_strength_BN
    for name, factor in (("scale", scale), ("temperature", temperature)):
        if isinstance(factor, Tensor):
            require_shape(name, factor, "", ())
            named[name] = factor
    for name, tensor in named.items():
        require_float(name, tensor, like)
    if top_k < 1:
        raise ValueError(f"top_k={top_k}; at least one pair must be read")
    if delay < 0:
        raise ValueError(f"delay={delay}; a position cannot read pairs after it, use 0 or more")
    require_mask("hold", hold, batch, length)
    require_mask("reset", reset, batch, length)
    require_mask("usable_BN", usable_BN, batch, n_pairs)
    if first_BT is not None:
        require_shape("first_BT", first_BT, "BT", (batch, length))
    if reset is not None:
        first_BT = _first_readable(reset, n_pairs, first_BT)
    dtype = compute_dtype(*named.values())
    usable_BN = _usable(usable_BN, hold, n_pairs)
    run = _dispatcher.pick(
        backend, lambda: "blockwise" if key_ids_BN is None else _for_tables(keys)
    )
    read_BTD, pairs_BTK, weights_BTK = run(
        queries_BTA.to(dtype),
        keys.to(dtype),
        None if values_BND is None else values_BND.to(dtype),
        None if log_strength_BN is None else log_strength_BN.to(dtype),
        key_ids_BN,
        top_k,
        scale.to(dtype) if isinstance(scale, Tensor) else scale,
        temperature.to(dtype) if isinstance(temperature, Tensor) else temperature,
        delay,
        usable_BN,
        first_BT,
    )
    if hold is not None:
        held_BT1 = hold.unsqueeze(-1)
        read_BTD = read_BTD.masked_fill(held_BT1, 0.0)
        pairs_BTK = pairs_BTK.masked_fill(held_BT1, -1)
        weights_BTK = weights_BTK.masked_fill(held_BT1, 0.0)
    return Retrieval(read_BTD.to(like.dtype), pairs_BTK, weights_BTK)


def _count_pairs(
    keys: Tensor, key_ids_BN: Tensor | None, values_BND: Tensor | None, length: int
) -> int:
    name, given, shape = "keys", keys, "(B, N, A)"
    if values_BND is not None:
        name, given, shape = "values_BND", values_BND, "(B, N, D)"
    elif key_ids_BN is not None:
        name, given, shape = "key_ids_BN", key_ids_BN, "(B, N)"
    n_pairs = given.shape[1] if given.dim() == shape.count(",") + 1 else 0
    if n_pairs < length:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; it must be {shape} with a pair for each of "
            f"the T={length} positions, behind those of earlier calls"
        )
    return n_pairs


def _require_ids(ids_BN: Tensor, table: Tensor, batch: int, n_pairs: int, width: int) -> None:
    if table.dim() != 2:
        raise ValueError(
            f"keys has shape {tuple(table.shape)}; with key_ids_BN it must be a table "
            f"(V, A={width})"
        )
    require_shape("keys", table, "VA", (table.shape[0], width))
    require_shape("key_ids_BN", ids_BN, "BN", (batch, n_pairs))
    if ids_BN.dtype != torch.int64:
        raise TypeError(f"key_ids_BN has dtype {ids_BN.dtype}; it must be int64 (use .long())")
    if ids_BN.device.type == "cpu":  # elsewhere the look-up checks, without waiting for the device
        low, high = (int(x) for x in torch.aminmax(ids_BN))
        if low < 0 or high >= table.shape[0]:
            raise ValueError(
                f"key_ids_BN holds ids from {low} to {high}; the table has rows 0 to "
                f"{table.shape[0] - 1}"
            )


def _for_tables(keys: Tensor) -> str:
    return "numba" if keys.device.type == "cpu" and numba_missing() is None else "blockwise"


def _usable(usable_BN: Tensor | None, hold: Tensor | None, n_pairs: int) -> Tensor | None:
    if hold is None:
        return usable_BN
    past = torch.ones(hold.shape[0], n_pairs - hold.shape[1], dtype=torch.bool, device=hold.device)
    written_BN = torch.cat([past, ~hold], dim=1)
    return written_BN if usable_BN is None else usable_BN & written_BN


def _first_readable(reset: Tensor, n_pairs: int, first_BT: Tensor | None) -> Tensor:
    """For every position, the index into N of the first pair of its document (0 where unknown),
    or the limit given where that is later."""
    length = reset.shape[1]
    place_T = torch.arange(n_pairs - length, n_pairs, device=reset.device)
    start_BT = torch.where(reset, place_T, 0).cummax(1).values
    return start_BT if first_BT is None else torch.maximum(start_BT, first_BT)
