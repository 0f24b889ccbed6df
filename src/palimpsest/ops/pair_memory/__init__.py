"""Decayed memory of pairs: linear attention with one scalar decay per head.

B batch, T positions, H value heads, K key heads, M = max(H, K) memories, S width of keys and
queries, R width of values.
"""

from __future__ import annotations

from torch import Tensor

from palimpsest.ops.decay_scan.arguments import arithmetic_dtype, require_shape
from palimpsest.ops.dispatch import Dispatcher
from palimpsest.ops.pair_memory.chunked import pair_memory_chunked
from palimpsest.ops.pair_memory.compiled import pair_memory_numba
from palimpsest.ops.pair_memory.reference import pair_memory_reference
from palimpsest.ops.threads import numba_missing

__all__ = ["pair_memory"]

# Entries of one head's memory up to which the compiled loop beats matrix products on a CPU.
LOOP_ENTRIES = 1024

_dispatcher = Dispatcher("pair_memory")
_dispatcher.register("reference", pair_memory_reference)
_dispatcher.register("chunked", pair_memory_chunked)
_dispatcher.register("numba", pair_memory_numba, missing=numba_missing)


def pair_memory(
    keys_BTKS: Tensor,
    values_BTHR: Tensor,
    queries_BTKS: Tensor,
    log_decay_BTH: Tensor,
    initial_BMSR: Tensor | None = None,
    *,
    hold: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """P_t = exp(log_decay_t) P_{t-1} + k_t v_tᵀ per head, read after the write: P_tᵀ q_t.

    The dense pair memory of the triple-latent layer is keys s_{t-1}, values (1 - γ) b, queries qˡ
    and log decay log γ. Its slots are values (1 - γ) w (R slots wide), with keys s_{t-1} and
    queries qˡ for the left scores, keys b and queries qʳ for the right ones: one call with both
    key sets side by side, as K = 2·H key heads. Mamba-2's SSD is keys B, queries C, values Δ·x and
    log decay Δ·A, with K groups of heads that share B and C: ``chunked`` then forms the scores
    once per group and never repeats keys or queries.

    Backend chosen where none is named: ``numba`` for tensors on a CPU, where numba is installed
    and S·R ≤ 1,024; otherwise ``chunked``. Arithmetic is in the widest dtype of the arguments, at
    least float32.

    Args:
        keys_BTKS: what each position writes at. Either K is a multiple G·H of the value heads:
            key head g·H + h uses the values and the decay of value head h. Or K divides H: the
            H / K value heads from h = k·H/K on share key head k.
        values_BTHR: what each position writes.
        queries_BTKS: what each position reads with.
        log_decay_BTH: log of what each position keeps of the memory, ≤ 0; -inf forgets all of it.
        initial_BMSR: the memory before position 0; zeros where it is None.
        hold: (B, T) bool, True at padding: nothing is written and nothing decays there.
        reset: (B, T) bool, True at the first position of a document: the memory is cleared
            before it.
        backend: ``reference``, ``chunked`` or ``numba``.

    Returns:
        read_BTMR in the dtype of ``values_BTHR``, and final_BMSR, the memory after the last
        position, in the dtype of the arithmetic. Both carry gradients.

    Raises:
        ValueError: shapes that do not fit one another, no position at all, or an unknown backend.
        TypeError: values that are not floating point, or masks that are not boolean.
        BackendUnavailableError: the named backend cannot run here.

    Source:
        arXiv 2606.05175, the compressed pair memory and the slots; shared keys are those of
        Mamba-2, arXiv 2405.21060. The chunkwise form is the standard one of linear attention
        with decay.
    """
    if values_BTHR.dim() != 4 or values_BTHR.shape[1] == 0:
        raise ValueError(
            f"values_BTHR has shape {tuple(values_BTHR.shape)}; "
            "it must be (B, T, H, R) with at least one position"
        )
    batch, length, heads, width = values_BTHR.shape
    key_heads = keys_BTKS.shape[2] if keys_BTKS.dim() == 4 else 0
    if key_heads == 0 or (key_heads % heads and heads % key_heads):
        raise ValueError(
            f"keys_BTKS has shape {tuple(keys_BTKS.shape)}; it must be (B, T, K, S) with K a "
            f"multiple of the H={heads} heads of values_BTHR, or a divisor of them"
        )
    key_width = keys_BTKS.shape[3]
    memories = max(heads, key_heads)
    sizes = (batch, length, key_heads, key_width)
    require_shape("keys_BTKS", keys_BTKS, "BTKS", sizes)
    require_shape("queries_BTKS", queries_BTKS, "BTKS", sizes)
    require_shape("log_decay_BTH", log_decay_BTH, "BTH", (batch, length, heads))
    named = {
        "values_BTHR": values_BTHR,
        "keys_BTKS": keys_BTKS,
        "queries_BTKS": queries_BTKS,
        "log_decay_BTH": log_decay_BTH,
    }
    if initial_BMSR is not None:
        require_shape("initial_BMSR", initial_BMSR, "BMSR", (batch, memories, key_width, width))
        named["initial_BMSR"] = initial_BMSR
    dtype = arithmetic_dtype(named, hold, reset)
    if initial_BMSR is None:
        initial_BMSR = values_BTHR.new_zeros(batch, memories, key_width, width, dtype=dtype)
    small = key_width * width <= LOOP_ENTRIES and values_BTHR.device.type == "cpu"
    run = _dispatcher.pick(
        backend, lambda: "numba" if small and numba_missing() is None else "chunked"
    )
    read_BTMR, final_BMSR = run(
        keys_BTKS.to(dtype),
        values_BTHR.to(dtype),
        queries_BTKS.to(dtype),
        log_decay_BTH.to(dtype),
        initial_BMSR.to(dtype),
        hold,
        reset,
    )
    return read_BTMR.to(values_BTHR.dtype), final_BMSR
