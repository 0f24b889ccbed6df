"""Looking at a window of the grounded loop after its forward.

The window form keeps the columns of every first product for its backward; most of what one wants
to see is one elementwise function of them, and the rest is one product over all positions. Each
method gives a tensor that shares no memory with the window, batch first, in the state's dtype. At
padding what is held is shown, and nothing else is defined.

Legend: B batch, T time, D d_state, H heads, K d_key, U d_val, n chosen steps; inside, as in the
window's buffers, time first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.grounded_loop.buffers import rms_scale
from palimpsest.ops.grounded_loop.reference import l2_normalise
from palimpsest.ops.grounded_loop.workspace import HOLD, RESET, Window
from palimpsest.ops.memory_trace import Trace, trace_memory

__all__ = ["LoopView", "Observe"]


class LoopView:
    """What happened in one window.

    Args:
        window: as the forward left it.
        grounded_TBD: s after every step; None where the unit rows give it.
        gated: for each layer (T,B,Q), the gated and normed read that its second product took.
        memory_BHKU: the memory before the first step.
        key_input_BP: the first step's key before bias and relu.
    """

    def __init__(
        self,
        window: Window,
        grounded_TBD: Tensor | None,
        gated: list[Tensor],
        memory_BHKU: Tensor,
        key_input_BP: Tensor,
    ) -> None:
        self.w = window
        self._grounded_TBD, self._gated = grounded_TBD, gated
        self._memory_BHKU, self._key_input_BP = memory_BHKU, key_input_BP
        self.wide = window.drive.dtype

    @property
    def length(self) -> int:
        """T."""
        return self.w.drive.shape[0]

    # -- the state ----------------------------------------------------------------------------

    def grounded(self) -> Tensor:
        """(B,T,D) s, the state after grounding."""
        if self._grounded_TBD is not None:
            return self._first(self._grounded_TBD)
        return self._first(self.w.unit / self.w.unit_scale[..., None])

    def ground_gate(self) -> Tensor:
        """(B,T,D) the gate on the prediction."""
        w = self.w
        before = w.predicted[:-1]
        unit = (before * rms_scale(before)).to(w.unit.dtype)
        if w.flags.any():
            unit.masked_fill_(self._rows(RESET)[..., None], 0.0)
        y = functional.linear(unit, w.folded.ground_DD.to(unit.dtype)).to(self.wide)
        return self._first(y.add_(w.folded.ground_bias_D)).sigmoid_()

    def predict_gate(self, layer: int) -> Tensor:
        """(B,T,D) a layer's gate on its input."""
        w = self.w
        y = w.y[layer][..., : w.layout.D].to(self.wide)
        return self._first((y + w.folded.layers[layer].gate_bias_D).sigmoid_())

    def residual(self, layer: int) -> Tensor:
        """(B,T,D) a layer's output; the last one's is the prediction."""
        w = self.w
        if layer == len(w.y) - 1:
            return self._first(w.predicted[1:])
        return self._first(w.mid[layer].to(self.wide) / w.mid_scale[layer][..., None])

    def ffn(self, layer: int) -> Tensor:
        """(B,T,D) what a layer's SwiGLU adds: its output less the other two terms of it.

        Under autocast, where what lies between layers is kept in its dtype, the product again.
        """
        w, lay = self.w, self.w.layout
        if w.unit.dtype == self.wide:
            below = self.residual(layer - 1) if layer else self.grounded()
            added = self.residual(layer).sub_(below.mul_(self.predict_gate(layer)))
            return added.sub_(self._reads[layer]) if lay.H else added
        a, b = w.y[layer][..., lay.D : lay.query].chunk(2, -1)
        hidden = functional.silu(a) * b
        matrix = w.folded.layers[layer].second_DZ[:, : lay.F].to(hidden.dtype)
        return self._first(functional.linear(hidden, matrix).to(self.wide))

    # -- the memory ---------------------------------------------------------------------------

    def key(self) -> Tensor:
        """(B,T,H,K) the write's key, which comes from the state one step before."""
        w, lay = self.w, self.w.layout
        inputs = torch.cat(
            [self._key_input_BP[None].to(self.wide), w.y[0][:-1, :, lay.key :].to(self.wide)]
        )
        if w.flags.any():
            inputs.masked_fill_(self._rows(RESET)[..., None], 0.0)
        return self._unit(inputs, w.folded.key_bias_P)

    def value(self) -> Tensor:
        """(B,T,H,U) the write's value."""
        return self._value

    def error(self) -> Tensor:
        """(B,T,H,U) the value less what the memory predicted for the key."""
        lay = self.w.layout
        return self._heads(self.w.y[0][..., lay.value : lay.beta].to(self.wide))

    def beta(self) -> Tensor:
        """(B,T,H) the write's strength."""
        lay = self.w.layout
        return self._first(self.w.y[0][..., lay.beta : lay.decay].to(self.wide).sigmoid())

    def log_decay(self) -> Tensor:
        """(B,T,H) the logarithm of what the memory keeps, ≤ 0."""
        w, lay = self.w, self.w.layout
        step = w.y[0][..., lay.decay : lay.key].to(self.wide) + w.folded.dt_bias_H
        return self._first(-torch.exp(w.folded.A_log_H) * functional.softplus(step))

    def query(self, layer: int) -> Tensor:
        """(B,T,H,K) a layer's query."""
        w, lay = self.w, self.w.layout
        columns = w.y[layer][..., lay.query : lay.read_gate].to(self.wide)
        return self._unit(columns, w.folded.layers[layer].query_bias_P)

    def read_gate(self, layer: int) -> Tensor:
        """(B,T,H,U) the gate on what a layer reads."""
        lay = self.w.layout
        columns = self.w.y[layer][..., lay.read_gate : lay.value]
        return self._heads(functional.silu(columns.to(self.wide)))

    def memory_read(self, layer: int) -> Tensor:
        """(B,T,H,U) Mᵀq, before norm and gate; follows the memory once more."""
        return self._traced(queries=[self.query(layer)]).reads[0]

    def read(self, layer: int) -> Tensor:
        """(B,T,D) what a layer's read adds."""
        return self._reads[layer]

    def memory_norm(self) -> Tensor:
        """(B,T,H) Frobenius norm of each head's memory after the write.

        With p = v - error, which is what the memory held for the key,
        ‖M_t‖² = exp(2g) ‖M_{t-1}‖² + 2 exp(g) p·u + ‖k‖² ‖u‖². Under autocast p would be a
        difference of rounded numbers: the memory is followed instead.
        """
        if self.w.unit.dtype != self.wide:
            return self._traced().norms
        error_BTHU, log_decay_BTH = self.error(), self.log_decay()
        beta_BTH = self.beta()
        aligned_BTH = beta_BTH * (self._value.sub(error_BTHU).mul_(error_BTHU)).sum(-1)
        update_BTH = beta_BTH.square() * error_BTHU.square().sum(-1)
        gain_BTH = self.key().square().sum(-1).mul_(update_BTH)
        gain_BTH.add_(aligned_BTH.mul_(log_decay_BTH.exp()), alpha=2.0)
        hold_BT, reset_BT = self._masks()
        square_BTH1, _ = decay_scan(
            gain_BTH[..., None],
            2.0 * log_decay_BTH,
            self._memory_BHKU.to(self.wide).square().sum((-1, -2))[..., None],
            hold=hold_BT,
            reset=reset_BT,
        )
        return square_BTH1[..., 0].clamp(min=0.0).sqrt_()

    def memory_at(self, steps: Tensor) -> Tensor:
        """(B,n,H,K,U) the memory after some steps."""
        return self._traced(steps).memories

    @cached_property
    def _value(self) -> Tensor:
        w, lay = self.w, self.w.layout
        matrix = w.folded.layers[0].first_ND[lay.value : lay.beta].to(w.unit.dtype)
        return self._heads(functional.linear(w.unit, matrix).to(self.wide))

    @cached_property
    def _reads(self) -> list[Tensor]:
        found = []
        for layer, gated_TBQ in zip(self.w.folded.layers, self._gated, strict=True):
            matrix = layer.second_DZ[:, self.w.layout.F :].to(gated_TBQ.dtype)
            found.append(self._first(functional.linear(gated_TBQ, matrix).to(self.wide)))
        return found

    def _traced(self, steps: Tensor | None = None, queries: Sequence[Tensor] = ()) -> Trace:
        hold_BT, reset_BT = self._masks()
        return trace_memory(
            self.key(),
            self.error() * self.beta()[..., None],
            self.log_decay(),
            self._memory_BHKU.to(self.wide),
            queries=queries,
            steps=steps,
            hold_BT=hold_BT,
            reset_BT=reset_BT,
        )

    def _masks(self) -> tuple[Tensor | None, Tensor | None]:
        """(B,T) hold and reset, None where nothing is flagged."""
        if not self.w.flags.any():
            return None, None
        return self._rows(HOLD).t(), self._rows(RESET).t()

    # -- shapes -------------------------------------------------------------------------------

    def _rows(self, flag: int) -> Tensor:
        """(T,B) where a flag is set."""
        return (self.w.flags & flag).bool()

    @staticmethod
    def _first(x_TBX: Tensor) -> Tensor:
        """A new (B,T,X)."""
        return x_TBX.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def _heads(self, x_TBX: Tensor) -> Tensor:
        """A new (B,T,H,…)."""
        heads: Tensor = self._first(x_TBX).unflatten(-1, (self.w.layout.H, -1))
        return heads

    def _unit(self, x_TBP: Tensor, bias_P: Tensor) -> Tensor:
        return l2_normalise(self._heads(functional.relu(x_TBP + bias_P)))


Observe = Callable[[int, LoopView], None]
"""Called with the first step of a part of the window, and the part."""
