"""Exact retrieval of tokens by what came before them.

The pair (key of token j - 1, value of token j) is in memory; a position asks with a query and
reads a mixture of the best pairs' values. Keys, values and write strengths depend on token ids
alone, so the memory holds ids, 16 bytes a pair instead of 4·(A + D), and keys are rows of a
projected table. Equal tokens then have the very same key: ties, which are the rule on real text,
are exact, and go to the most recent pair. Values are mixed before their projection, which is
linear, so that none is projected for a pair that nobody reads.

Source: the gated associative retrieval of arXiv 2606.05175.

Legend: B batch, T time, N pairs with the T new ones, K pairs read, D d_model, A assoc_dim,
V vocabulary, X = A plus two columns of the write gate and A of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.layers.documents import first_readable, previous_ids
from palimpsest.layers.growing import Growing
from palimpsest.layers.init import linear, orthogonal_
from palimpsest.ops.decay_scan.arguments import without_autocast
from palimpsest.ops.library_kernels import weighted_rows
from palimpsest.ops.topk_retrieval import topk_retrieval
from palimpsest.ops.topk_retrieval.weighting import flat_pairs
from palimpsest.state import State
from palimpsest.taps import Tap, listening, offer, tap

__all__ = ["PairView", "Query", "Retrieval", "RetrievalMemory", "RetrievalStart"]

Query = Literal["previous", "parallel", "serial"]
RetrievalStart = Literal["stable", "published"]
SHARPNESS = 8.0  # of the published softmax over scores
START_TEMPERATURE = 8.0  # of the cosine, where recall is stable
LEAST_STRENGTH = 1e-4
NO_TOKEN = -1


@dataclass(frozen=True)
class RetrievalMemory(State):
    """The pairs of a text, append-only, apart from the recurrent state.

    Attributes:
        keys: (B,N) the token before, whose projection is the key; -1 at the first token of a
            document and at padding, which nobody reads.
        values: (B,N) the token itself, whose projection is the value.
        first: (B,) the first pair that the row may still read.
        last: (B,) the last token of the row's document, -1 before the first.
    """

    kind: ClassVar[str] = "retrieval-memory"

    keys: Growing
    values: Growing
    first: Tensor
    last: Tensor

    @staticmethod
    def empty(batch: int, device: torch.device | str) -> RetrievalMemory:
        """A memory without pairs."""
        none = Growing(torch.zeros(batch, 0, device=device, dtype=torch.long))
        first = torch.zeros(batch, device=device, dtype=torch.long)
        return RetrievalMemory(none, none, first, torch.full_like(first, NO_TOKEN))

    def extend(
        self, input_ids: Tensor, hold_BT: Tensor | None, reset_BT: Tensor | None, cap: int
    ) -> tuple[RetrievalMemory, PairView]:
        """Append the pairs of new tokens.

        Args:
            input_ids: (B,T).
            hold_BT: True at padding, which forms no pair.
            reset_BT: True where a document starts, which earlier pairs do not reach.
            cap: most pairs that a position reads from, its newest; 0 for all.

        Returns:
            The memory, and what this call's positions read from.
        """
        past, length = self.keys.length, input_ids.shape[1]
        previous_BT, last_B = previous_ids(input_ids, self.last, hold_BT, reset_BT)
        key_BT = previous_BT
        if hold_BT is not None:
            key_BT = key_BT.masked_fill(hold_BT, NO_TOKEN)
        keys, values = self.keys.append(key_BT), self.values.append(input_ids)
        usable_BN = keys.entries >= 0
        first_BT = first_readable(self.first, length, past, reset_BT)
        first_B = first_BT[:, -1].clone()  # a state must not keep the (B,T) alive
        all_readable = reset_BT is None and not bool(self.first.any())
        if cap and keys.length > cap:
            # the oldest of the last `cap` pairs before t, and before the position to come
            count_BN = usable_BN.cumsum(1)
            before_BT = F.pad(count_BN, (1, 0))[:, past:] - cap
            oldest_BT = torch.searchsorted(count_BN, before_BT, right=True)
            first_BT = torch.maximum(first_BT, oldest_BT[:, :-1])
            first_B, all_readable = torch.maximum(first_B, oldest_BT[:, -1]), False
        view = PairView(
            key_ids=keys.entries.clamp(min=0),
            value_ids=values.entries,
            usable=usable_BN,
            first=None if all_readable else first_BT.contiguous(),
            previous=previous_BT,
            hold=hold_BT,
        )
        memory = RetrievalMemory(keys, values, first_B, last_B)
        # only a new document or a cap can leave pairs behind that no row will read again
        return (memory if reset_BT is None and not cap else memory.forget_unreadable()), view

    def forget_unreadable(self) -> RetrievalMemory:
        """Drop the pairs at the front that no row can read any more."""
        count = min(int(self.first.min()), self.keys.length)
        if count == 0:
            return self
        return RetrievalMemory(
            self.keys.without_first(count),
            self.values.without_first(count),
            self.first - count,
            self.last,
        )


@dataclass(frozen=True)
class PairView:
    """What the positions of one call read from, the same for all layers.

    Attributes:
        key_ids, value_ids: (B,N) tokens.
        usable: (B,N) bool, whether there is a pair at all.
        first: (B,T) the first pair that each position may read; None where all may read all.
        previous: (B,T) the token before each position in its document, or -1.
        hold: (B,T) True at padding, or None.
    """

    key_ids: Tensor
    value_ids: Tensor
    usable: Tensor
    first: Tensor | None
    previous: Tensor
    hold: Tensor | None


class Retrieval(nn.Module):
    """One layer's retrieval.

    score = cos(query, key) · temperature / 8 + log strength; the weights are softmax(8 · score)
    over the best ``top_k``. The published temperature is 8 / √A.

    Args:
        d_model: D.
        assoc_dim: A.
        top_k: K.
        query: what asks, see ``GatedHybridConfig``.
        read_gate: scale what is read by σ(basis w + b).
        write_gate: scale each pair by σ([e_{j-1}; e_j] w + b).
        start: "stable" or "published" initial values.
        learned_temperature: learn the (logarithm of the) temperature.
    """

    def __init__(
        self,
        d_model: int,
        assoc_dim: int,
        top_k: int,
        query: Query,
        *,
        read_gate: bool,
        write_gate: bool,
        start: RetrievalStart,
        learned_temperature: bool,
    ) -> None:
        super().__init__()
        self.top_k, self.asks = top_k, query
        self.query = linear(d_model, assoc_dim)
        self.key = linear(d_model, assoc_dim)
        self.value = linear(d_model, d_model)
        self.read_gate = linear(d_model, 1, bias=True) if read_gate else None
        self.write_gate = linear(2 * d_model, 1, bias=True) if write_gate else None
        self.temperature: float = SHARPNESS / assoc_dim**0.5
        if start == "stable":
            self.temperature = START_TEMPERATURE
            orthogonal_(self.query.weight)
            with torch.no_grad():
                self.key.weight.copy_(self.query.weight)
                nn.init.eye_(self.value.weight)
        self.log_temperature: nn.Parameter | None = None
        if learned_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(self.temperature).log())
        self._kept = _KeptTable()

    def forward(self, embedding_VD: Tensor, stream_BTD: Tensor, view: PairView) -> Tensor:
        """(B,T,D) what each position reads; 0 where there is nothing to read.

        Args:
            embedding_VD: the raw token embeddings.
            stream_BTD: what asks, where that is not the token before.
            view: the pairs.
        """
        basis_BTD = stream_BTD
        if self.asks == "previous":  # without one there is no readable pair either
            basis_BTD = F.embedding(view.previous.clamp(min=0), embedding_VD)
        key_ids_BN, value_ids_BN = view.key_ids, view.value_ids
        if torch.is_grad_enabled() and len(embedding_VD) > 2 * key_ids_BN.numel():
            # a large vocabulary of which few tokens occur: a table of those
            used, ids = torch.stack([key_ids_BN, value_ids_BN]).unique(return_inverse=True)
            embedding_VD = F.embedding(used, embedding_VD)
            key_ids_BN, value_ids_BN = ids.unbind(0)
        table_VX = self._project(embedding_VD, stream_BTD[..., 0].numel())
        width = self.key.out_features
        keys_VA, log_strength_BN = table_VX[:, :width], None
        if self.write_gate is not None:
            sides = table_VX[:, width : width + 2]
            logits_BN = sides[:, 0][key_ids_BN] + sides[:, 1][value_ids_BN] + self.write_gate.bias
            log_strength_BN = logits_BN.sigmoid().clamp(min=LEAST_STRENGTH).log()
        if self._asks_by_table:
            queries_BTA = F.embedding(view.previous.clamp(min=0), table_VX[:, -width:])
        else:
            queries_BTA = self._query(basis_BTD)
        found = topk_retrieval(
            queries_BTA,
            keys_VA,
            None,
            log_strength_BN,
            top_k=self.top_k,
            key_ids_BN=key_ids_BN,
            scale=self._scale(),
            temperature=SHARPNESS,
            hold=view.hold,
            usable_BN=view.usable,
            first_BT=view.first,
        )
        if listening():
            self._show(found.weights_BTK.detach(), found.pairs_BTK, key_ids_BN.shape[1])
        weights_BTK, pairs_BTK = found.weights_BTK, found.pairs_BTK.clamp(min=0)
        flat_BTK = flat_pairs(pairs_BTK, key_ids_BN.shape[1])
        if log_strength_BN is not None:
            weights_BTK = weights_BTK * log_strength_BN.flatten()[flat_BTK].exp()
        mixed = weighted_rows(
            value_ids_BN.flatten()[flat_BTK].flatten(0, 1),
            embedding_VD.to(weights_BTK.dtype),
            weights_BTK.flatten(0, 1),
        )
        read_BTD: Tensor = self.value(
            mixed.to(embedding_VD.dtype).unflatten(0, pairs_BTK.shape[:2])
        )
        if self.read_gate is not None:
            gate_BT1 = tap(self, "retrieval.read_gate", self.read_gate(basis_BTD).sigmoid())
            read_BTD = read_BTD * gate_BT1
        return tap(self, "retrieval.read", read_BTD)

    def _show(self, weights_BTK: Tensor, pairs_BTK: Tensor, n_pairs: int) -> None:
        """Weights and lags, of ``top_k`` places however few pairs there are yet."""
        length, more = pairs_BTK.shape[1], (0, self.top_k - pairs_BTK.shape[2])
        own_T1 = torch.arange(n_pairs - length, n_pairs, device=pairs_BTK.device)[:, None]
        lags_BTK = (own_T1 - pairs_BTK).masked_fill(pairs_BTK < 0, 0)
        offer(self, "retrieval.weights", lambda: F.pad(weights_BTK, more).clone())
        offer(self, "retrieval.lags", lambda: F.pad(lags_BTK, more).clone())

    def reading_taps(self) -> dict[str, Tap]:
        """The taps of a layer that reads; the model says which layers do."""
        weights = "weights of the pairs read, best first, before the write gate; 0 where fewer"
        lags = "how many positions back each pair's token is; 0 where there is none"
        found = {
            "retrieval.weights": Tap("(B,T,K)", weights),
            "retrieval.lags": Tap("(B,T,K)", lags, "int64"),
            "retrieval.read": Tap("(B,T,D)", "what is read, gated", replaceable=True),
        }
        if self.read_gate is not None:
            doc = "the gate on what is read"
            found["retrieval.read_gate"] = Tap("(B,T,1)", doc, replaceable=True)
        return found

    @property
    def _asks_by_table(self) -> bool:
        """Whether queries are rows of the table, which has the same bits for one token as for many.

        A projection of the positions has not, and keys that are nearly as near as one another
        would then be read in one order at once and in another token by token. While training, when
        nothing is read token by token, the positions are projected.
        """
        return self.asks == "previous" and not torch.is_grad_enabled()

    # What is asked and what is found must not depend on autocast: its rounding would reorder pairs.

    def _query(self, basis_BTD: Tensor) -> Tensor:
        with without_autocast(basis_BTD.device):
            return F.linear(basis_BTD.to(self.query.weight.dtype), self.query.weight)

    def _project(self, embedding_VD: Tensor, positions: int) -> Tensor:
        """The table of keys, with two more columns for the sides of the write gate, and with the
        queries last where they are read from it."""
        weights = [self.key.weight]
        if self.write_gate is not None:
            weights.append(self.write_gate.weight.view(2, -1))
        if self._asks_by_table:
            weights.append(self.query.weight)
        weight_XD = torch.cat(weights) if len(weights) > 1 else weights[0]
        with without_autocast(embedding_VD.device):
            if torch.is_grad_enabled() or len(embedding_VD) <= positions:
                return F.linear(embedding_VD, weight_XD)
            return self._kept.project(embedding_VD, weight_XD)

    def _scale(self) -> float | Tensor:
        if self.log_temperature is None:
            return self.temperature / SHARPNESS
        scale: Tensor = self.log_temperature.exp() / SHARPNESS
        return scale


class _KeptTable:
    """The last table of keys, so that generating a token does not project the whole vocabulary.

    What it was made from is compared by value: that costs as much as the head's own product, and
    cannot miss a change of the parameters by whatever way.
    """

    def __init__(self) -> None:
        self._made: tuple[Tensor, Tensor, Tensor] | None = None

    def project(self, embedding_VD: Tensor, weight_XD: Tensor) -> Tensor:
        inputs = (embedding_VD, weight_XD)
        made = self._made
        if made is None or not all(map(_same, inputs, made)):
            table_VX = F.linear(*inputs)
            made = (embedding_VD.detach().clone(), weight_XD.detach().clone(), table_VX)
            self._made = made
        return made[2]


def _same(one: Tensor, two: Tensor) -> bool:
    alike = one.dtype == two.dtype and one.device == two.device and one.shape == two.shape
    return alike and torch.equal(one, two)
