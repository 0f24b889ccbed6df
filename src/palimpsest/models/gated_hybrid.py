"""The gated hybrid: a triple-hybrid that also retrieves tokens exactly.

The compressed path is never touched by the retrieval, which joins it before the head: the head is
linear and has no bias, so one product with the vocabulary serves both.

Source: arXiv 2606.05175. What is ours: ties go to the most recent pair; the convolution is causal;
and recall is stable, because queries and keys start as one matrix with a learned temperature.

Legend: B batch, T time, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palimpsest.layers.retrieval import Retrieval, RetrievalMemory
from palimpsest.layers.triple_layer import RetrievingLayer, TripleLayer
from palimpsest.models import flops
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.registry import preset, register
from palimpsest.models.triple_config import GatedHybridConfig
from palimpsest.models.triple_latent import BYTES, TripleModel, TripleState
from palimpsest.state import State
from palimpsest.taps import Tap

__all__ = ["GatedHybrid", "GatedHybridState"]

PAIR_BYTES = 16  # two ids
# The logarithm of the temperature moves by about the learning rate a step, and has to move by about
# one in a few hundred steps; the matrices' rate is too low for that.
TEMPERATURE_LR = 10.0


@dataclass(frozen=True)
class GatedHybridState(TripleState):
    """The constant state of a triple-hybrid, and apart from it the pairs to retrieve from.

    Attributes:
        retrieval: 16 bytes a token, up to ``memory_cap`` pairs where there is a cap.
    """

    kind: ClassVar[str] = "gated-hybrid"

    retrieval: RetrievalMemory


@register("gated-hybrid", GatedHybridConfig)
class GatedHybrid(TripleModel):
    """Local convolution, pair memory, and exact retrieval."""

    state_class = GatedHybridState
    config: GatedHybridConfig

    def __init__(self, config: GatedHybridConfig) -> None:
        super().__init__(config)
        self.assoc_norm = nn.LayerNorm(config.d_model) if config.fusion == "logits" else None

    def retrieves(self, index: int) -> bool:
        """Whether a layer reads its retrieval."""
        return self.config.layers == "all" or index == self.config.n_layers - 1

    def make_layer(self, index: int) -> TripleLayer:
        c = self.config
        retrieval = Retrieval(
            c.d_model,
            c.assoc_dim,
            c.top_k,
            c.query,
            read_gate=c.read_gate,
            write_gate=c.write_gate,
            start=c.init,
            learned_temperature=bool(c.learned_temperature) and self.retrieves(index),
        )
        return RetrievingLayer(
            c.d_model, c.n_heads, c.state_dim, c.n_slots, c.dropout, retrieval, c.fusion
        )

    def describe_taps(self) -> dict[str, Tap]:
        found = super().describe_taps()
        for i, layer in enumerate(self.layers):
            if self.retrieves(i):
                assert isinstance(layer, RetrievingLayer)
                taps = layer.retrieval.reading_taps()
                found |= {f"layers.{i}.{name}": tap for name, tap in taps.items()}
        return found

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, GatedHybridState)
        embedding_VD = self.embedding.token.weight
        x_BTD, window, position_B = self.bottom(input_ids, state, hold_BT, reset_BT)
        retrieval, view = state.retrieval.extend(
            input_ids, hold_BT, reset_BT, self.config.memory_cap
        )
        running, memory, reads = [], [], []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, RetrievingLayer)
            given = (x_BTD, state.running[i], state.memory[i], hold_BT, reset_BT)
            if self.retrieves(i):
                x_BTD, run, mem, read_BTD = layer.retrieve(*given, embedding_VD, view)
                reads.append(read_BTD)
            else:
                x_BTD, run, mem = layer(*given)
            running.append(run)
            memory.append(mem)
        features_BTD = self.final_norm(x_BTD)
        if self.assoc_norm is not None:
            mean_BTD = reads[0] if len(reads) == 1 else torch.stack(reads).mean(0)
            features_BTD = features_BTD + self.assoc_norm(mean_BTD)
        return features_BTD, GatedHybridState(
            tuple(running), tuple(memory), window, position_B, retrieval
        )

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GatedHybridState:
        s = super().init_state(batch, device=device, dtype=dtype)
        empty = RetrievalMemory.empty(batch, s.position.device)
        return GatedHybridState(s.running, s.memory, s.window, s.position, empty)

    def body_flops(self, length: int) -> dict[str, int]:
        c, counts = self.config, super().body_flops(length)
        distinct = min(length, c.vocab_size)  # keys and write gates, at most, as rows of a table
        total = 0
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, RetrievingLayer)
            if not self.retrieves(i):
                continue
            found = layer.retrieval
            asked: list[nn.Module] = [found.query, found.value]
            asked += [m for m in (found.read_gate, layer.fuse) if m is not None]
            kept: list[nn.Module] = [found.key]
            kept += [m for m in (found.write_gate,) if m is not None]
            total += flops.products(length, *asked) + flops.products(distinct, *kept)
            # scores of all pairs, the later ones included; then a mixture of the best
            total += 2 * length * length * c.assoc_dim
            total += 2 * length * min(c.top_k, length) * c.d_model
        return {**counts, "retrieval": total}

    def published_flops(self, length: int) -> dict[str, int]:
        """As for the triple-hybrid; scores of earlier pairs only, and a second head's product."""
        c = self.config
        if c.layers == "all" or c.fusion != "logits":
            return LanguageModel.published_flops(self, length)
        counts = super().published_flops(length)
        vectors = 2 * (2 * c.assoc_dim + c.d_model) * c.d_model + 2 * c.top_k * c.d_model
        retrieval = length * (vectors + length * c.assoc_dim)
        return {**counts, "retrieval": retrieval, "head": 2 * counts["head"]}

    def state_bytes(self, batch: int = 1, length: int = 0) -> int:
        pairs = min(length, self.config.memory_cap or length)
        return super().state_bytes(batch) + batch * pairs * PAIR_BYTES

    def param_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """The temperature has a learning rate of its own."""
        own = {id(p) for n, p in self.named_parameters() if n.endswith("log_temperature")}
        groups = super().param_groups(lr, weight_decay)
        if not own:
            return groups
        temperatures = [p for g in groups for p in g["params"] if id(p) in own]
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in own]
        groups.append({"params": temperatures, "lr": TEMPERATURE_LR * lr, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]


preset(
    "gated-hybrid-215k",
    "gated-hybrid",
    "the paper's Gated Hybrid on bytes, here causal and with stable recall",
    **BYTES,
    state_dim=8,
)
