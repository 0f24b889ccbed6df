"""Looking at a window of the grounded loop after its forward.

The window form keeps the columns of every first product for its backward; most of what one wants
to see is one elementwise function of them, or of rows that are kept besides while somebody looks
on. Each method gives a tensor that shares no memory with the window, batch first, in the state's
dtype. At padding what is held is shown, and nothing else is defined.

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
from palimpsest.ops.grounded_loop.reference import L2_EPS
from palimpsest.ops.grounded_loop.workspace import HOLD, RESET, Window
from palimpsest.ops.memory_trace import Trace, trace_memory

__all__ = ["LoopView", "Observe", "StepRows"]


class StepRows:
    """Rows of each step that the backward does without, kept while somebody looks on.

    Attributes:
        ground: T × (B,D), the ground products.
        value: T × (B,Q), values before they become errors.
        gated: for each layer T × (B,Q), the normed and gated reads.
        added: for each layer T × (B,D), the second products: SwiGLU and read together.
        grounded: T × (B,D) s, where the unit rows have lost digits of it.
    """

    def __init__(self, window: Window) -> None:
        lay, layers = window.layout, range(len(window.y))
        self._grounded = window.grounded
        self._values_TBQ = window.y[0][..., lay.value : lay.beta]
        self._gated_BQ = window.z[:, lay.F :]
        self.ground: list[Tensor] = []
        self.value: list[Tensor] = []
        self.gated: list[list[Tensor]] = [[] for _ in layers]
        self.added: list[list[Tensor]] = [[] for _ in layers]
        self.grounded: list[Tensor] = []
        self._rounded = window.unit.dtype != window.drive.dtype
        self._memory = lay.H > 0

    def after_ground(self, y_BD: Tensor) -> None:
        self.ground.append(y_BD)
        if self._rounded:
            self.grounded.append(self._grounded.clone())

    def before_write(self, t: int) -> None:
        if self._memory:
            self.value.append(self._values_TBQ[t].clone())

    def after_layer(self, layer: int, added_BD: Tensor) -> None:
        self.added[layer].append(added_BD)
        if self._memory:
            self.gated[layer].append(self._gated_BQ.clone())


class LoopView:
    """What happened in one window.

    Args:
        window: as the forward left it.
        kept: what was kept of each step besides.
        memory_BHKU: the memory before the first step.
        key_input_BP: the first step's key before bias and relu.
    """

    def __init__(
        self, window: Window, kept: StepRows, memory_BHKU: Tensor, key_input_BP: Tensor
    ) -> None:
        self.w, self._kept = window, kept
        self._memory_BHKU, self._key_input_BP = memory_BHKU, key_input_BP
        self.wide = window.drive.dtype

    @property
    def length(self) -> int:
        """T."""
        return self.w.drive.shape[0]

    # -- the state ----------------------------------------------------------------------------

    def grounded(self) -> Tensor:
        """(B,T,D) s, the state after grounding."""
        return self._grounded

    def ground_gate(self) -> Tensor:
        """(B,T,D) the gate on the prediction."""
        y_BTD = self._stack(self._kept.ground)
        if self.w.flags.any():
            y_BTD.masked_fill_(self._rows(RESET).t()[..., None], 0.0)
        return y_BTD.add_(self.w.folded.ground_bias_D).sigmoid_()

    def predict_gate(self, layer: int) -> Tensor:
        """(B,T,D) a layer's gate on its input."""
        columns = self.w.y[layer][..., : self.w.layout.D]
        return self._plus(columns, self.w.folded.layers[layer].gate_bias_D).sigmoid_()

    def residual(self, layer: int) -> Tensor:
        """(B,T,D) a layer's output; the last one's is the prediction."""
        w = self.w
        if layer == len(w.y) - 1:
            return self._first(w.predicted[1:])
        return self._first(w.mid[layer]).div_(w.mid_scale[layer].t()[..., None])

    def ffn(self, layer: int) -> Tensor:
        """(B,T,D) what a layer's SwiGLU adds: the second product less the read."""
        added = self._stack(self._kept.added[layer])
        return added.sub_(self._reads[layer]) if self.w.layout.H else added

    # -- the memory ---------------------------------------------------------------------------

    def key(self) -> Tensor:
        """(B,T,H,K) the write's key, which comes from the state one step before."""
        return self._key

    def value(self) -> Tensor:
        """(B,T,H,U) the write's value."""
        return self._value

    def error(self) -> Tensor:
        """(B,T,H,U) the value less what the memory predicted for the key."""
        return self._error

    def beta(self) -> Tensor:
        """(B,T,H) the write's strength."""
        lay = self.w.layout
        return self._first(self.w.y[0][..., lay.beta : lay.decay]).sigmoid_()

    def log_decay(self) -> Tensor:
        """(B,T,H) the logarithm of what the memory keeps, ≤ 0."""
        w, lay = self.w, self.w.layout
        step = self._plus(w.y[0][..., lay.decay : lay.key], w.folded.dt_bias_H)
        return functional.softplus(step).mul_(-torch.exp(w.folded.A_log_H))

    def query(self, layer: int) -> Tensor:
        """(B,T,H,K) a layer's query."""
        w, lay = self.w, self.w.layout
        columns = w.y[layer][..., lay.query : lay.read_gate]
        return self._unit(self._plus(columns, w.folded.layers[layer].query_bias_P))

    def read_gate(self, layer: int) -> Tensor:
        """(B,T,H,U) the gate on what a layer reads."""
        lay = self.w.layout
        columns = self.w.y[layer][..., lay.read_gate : lay.value]
        return functional.silu(self._heads(self._first(columns)), inplace=True)

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
        error_BTHU, log_decay_BTH, beta_BTH = self._error, self.log_decay(), self.beta()
        length_BTH = torch.linalg.vecdot(error_BTHU, error_BTHU)
        aligned_BTH = torch.linalg.vecdot(self._value, error_BTHU).sub_(length_BTH)
        aligned_BTH.mul_(beta_BTH).mul_(log_decay_BTH.exp())
        gain_BTH = torch.linalg.vecdot(self._key, self._key).mul_(length_BTH)
        gain_BTH.mul_(beta_BTH.square_()).add_(aligned_BTH, alpha=2.0)
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

    # what several taps need; handed out as it is, so nothing here may change it afterwards

    @cached_property
    def _grounded(self) -> Tensor:
        if self._kept.grounded:
            return self._stack(self._kept.grounded)
        return self._first(self.w.unit).div_(self.w.unit_scale.t()[..., None])

    @cached_property
    def _key(self) -> Tensor:
        w, lay = self.w, self.w.layout
        inputs_BTP = self._new(lay.P)
        inputs_BTP[:, 0] = self._key_input_BP
        inputs_BTP[:, 1:] = w.y[0][:-1, :, lay.key :].transpose(0, 1)
        if w.flags.any():
            inputs_BTP.masked_fill_(self._rows(RESET).t()[..., None], 0.0)
        return self._unit(inputs_BTP.add_(w.folded.key_bias_P))

    @cached_property
    def _value(self) -> Tensor:
        return self._heads(self._stack(self._kept.value))

    @cached_property
    def _error(self) -> Tensor:
        lay = self.w.layout
        return self._heads(self._first(self.w.y[0][..., lay.value : lay.beta]))

    @cached_property
    def _reads(self) -> list[Tensor]:
        found = []
        for layer, gated in zip(self.w.folded.layers, self._kept.gated, strict=True):
            rows = torch.stack(gated, 1)
            matrix = layer.second_DZ[:, self.w.layout.F :].to(rows.dtype)
            found.append(functional.linear(rows, matrix).to(self.wide))
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

    def _new(self, width: int) -> Tensor:
        """An empty (B,T,width) in the state's dtype."""
        steps, batch, _ = self.w.drive.shape
        return self.w.drive.new_empty(batch, steps, width)

    def _stack(self, rows: list[Tensor]) -> Tensor:
        """T × (B,X) → a new (B,T,X) in the state's dtype."""
        return torch.stack(rows, 1).to(self.wide)

    def _first(self, x_TBX: Tensor) -> Tensor:
        """A new (B,T,X) in the state's dtype."""
        return self._new(x_TBX.shape[-1]).copy_(x_TBX.transpose(0, 1))

    def _plus(self, x_TBX: Tensor, bias_X: Tensor) -> Tensor:
        """The same with a bias added."""
        return torch.add(x_TBX.transpose(0, 1), bias_X, out=self._new(x_TBX.shape[-1]))

    def _heads(self, x_BTX: Tensor) -> Tensor:
        """(B,T,H,…)."""
        heads: Tensor = x_BTX.unflatten(-1, (self.w.layout.H, -1))
        return heads

    def _unit(self, x_BTP: Tensor) -> Tensor:
        """l2(relu(x)) of each head, in place."""
        heads_BTHK = self._heads(x_BTP.relu_())
        square_BTH = torch.linalg.vecdot(heads_BTHK, heads_BTHK)
        return heads_BTHK.mul_(square_BTH.add_(L2_EPS).rsqrt_()[..., None])


Observe = Callable[[int, LoopView], None]
"""Called with the first step of a part of the window, and the part."""
