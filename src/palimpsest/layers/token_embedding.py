"""Token embeddings with learned positions.

Legend: B batch, T time, D d_model, V vocabulary, M max_seq_len.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from palimpsest.errors import InputError
from palimpsest.layers.documents import place_in_document
from palimpsest.layers.init import normal_, uninitialised

__all__ = ["TokenEmbedding"]


class TokenEmbedding(nn.Module):
    """E[x] + Pos[t], t counting the tokens of the document; without positions E[x].

    Args:
        vocab_size: V.
        d_model: D.
        max_seq_len: M, rows of the learned positions; None for a model without positions, which
            then has no longest text.
    """

    def __init__(self, vocab_size: int, d_model: int, max_seq_len: int | None) -> None:
        super().__init__()
        self.token = uninitialised(nn.Embedding, vocab_size, d_model)
        normal_(self.token.weight, 0.02)
        self.position: nn.Embedding | None = None
        if max_seq_len is not None:
            self.position = uninitialised(nn.Embedding, max_seq_len, d_model)
            normal_(self.position.weight, 0.02)

    def forward(
        self,
        input_ids: Tensor,
        position_B: Tensor,
        hold_BT: Tensor | None,
        reset_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Embed tokens at their places in their documents.

        Args:
            input_ids: (B,T).
            position_B: tokens of the document before position 0.
            hold_BT: True at padding.
            reset_BT: True where a document starts.

        Returns:
            x_BTD, and the tokens of the document after the last position.

        Raises:
            InputError: a document longer than the learned positions.
        """
        length = input_ids.shape[1]
        x_BTD = F.embedding(input_ids, self.token.weight)
        if hold_BT is None and reset_BT is None:
            if self.position is None:
                return x_BTD, position_B + length
            low, high = (int(x) for x in position_B.aminmax())
            self._check(high + length)
            if low == high:  # a slice, whose gradient needs no scattering
                return x_BTD + self.position.weight[low : low + length], position_B + length
        place_BT, after_B = place_in_document(position_B, length, hold_BT, reset_BT)
        if self.position is None:
            return x_BTD, after_B
        if hold_BT is not None:
            place_BT = place_BT.masked_fill(hold_BT, 0)
        self._check(int(place_BT.max()) + 1)
        return x_BTD + F.embedding(place_BT, self.position.weight), after_B

    def _check(self, needed: int) -> None:
        assert self.position is not None
        bound = self.position.num_embeddings
        if needed > bound:
            raise InputError(
                f"a text of {needed} positions (those in the state included): learned positions "
                f"end at max_seq_len={bound}; shorten the text, or build the model with "
                "positions='none', which has no bound"
            )
