"""The gated delta rule by the kernels of ``fla-core``, on CUDA.

B batch, T positions, H heads, K width of keys, V width of values.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

from palimpsest.ops.dispatch import BackendUnavailableError
from palimpsest.ops.first_order import guard_outputs

__all__ = ["WIDEST", "fla_missing", "gated_delta_fla"]

WIDEST = 256  # keys that the kernels take


@functools.cache
def fla_missing() -> str | None:
    """None where the kernels can be imported and there is a device, otherwise one sentence."""
    if not torch.cuda.is_available():
        return "it needs a CUDA device; use backend='chunked' here"
    if importlib.util.find_spec("fla") is None:
        return "fla-core is not installed; pip install 'palimpsest-lm[fla]'"
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # noqa: F401
    except Exception as failure:  # whatever Triton or the driver has to say
        return f"fla-core is installed but does not load ({failure}); use backend='chunked'"
    return None


def gated_delta_fla(
    queries_BTHK: Tensor,
    keys_BTHK: Tensor,
    values_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    initial_BHKV: Tensor,
    hold_BT: Tensor | None,
    reset_BT: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The library's chunkwise kernels; see :func:`palimpsest.ops.gated_delta.gated_delta`."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    if not values_BTHV.is_cuda:
        raise BackendUnavailableError(
            f"backend='fla' of op 'gated_delta' runs on CUDA, the tensors are on "
            f"{values_BTHV.device}; use backend='chunked' there"
        )
    if values_BTHV.dtype == torch.float64:
        raise BackendUnavailableError(
            "backend='fla' of op 'gated_delta' has no float64; use backend='chunked'"
        )
    if hold_BT is not None:
        beta_BTH = beta_BTH.masked_fill(hold_BT.unsqueeze(-1), 0.0)
        log_decay_BTH = log_decay_BTH.masked_fill(hold_BT.unsqueeze(-1), 0.0)
    if reset_BT is not None:
        log_decay_BTH = log_decay_BTH.masked_fill(reset_BT.unsqueeze(-1), float("-inf"))
    # its sums of logs must stay finite; exp(-110) is 0 in float32
    log_decay_BTH = log_decay_BTH.clamp(min=-110.0)
    out_BTHV, final_BHKV = chunk_gated_delta_rule(
        queries_BTHK,
        keys_BTHK,
        values_BTHV,
        log_decay_BTH,
        beta_BTH,
        scale=scale,
        initial_state=initial_BHKV,
        output_final_state=True,
    )
    guard_outputs("gated_delta", out_BTHV, final_BHKV)
    return out_BTHV, final_BHKV
