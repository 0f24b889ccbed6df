"""Grounded Prediction Networks: one state vector, revised at every token by one block.

Source: arXiv 2605.10643 (Wang, 2026). ``gpn`` has no memory, ``gpnm`` (GPN+M) one gated delta-rule
memory that is read and written once a token.

Legend: B batch, T time, D d_state, E d_emb, H heads, K d_key, U d_val, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palimpsest.errors import StateError
from palimpsest.layers.grounded_cell import GroundedCell
from palimpsest.layers.grounded_taps import block_taps, observer
from palimpsest.layers.init import lecun_normal_, normal_, uninitialised
from palimpsest.layers.norm import RMSNorm
from palimpsest.models import flops
from palimpsest.models.config import ModelConfig, positive
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.registry import preset, register
from palimpsest.models.scaling import WIDTHS, Scaling, rounded
from palimpsest.ops.grounded_loop import Observe, grounded_loop
from palimpsest.state import State
from palimpsest.taps import Tap, listening, tap

__all__ = ["GPN", "GPNM", "GPNConfig", "GPNMConfig", "GroundedState"]


@dataclass(frozen=True, kw_only=True)
class GPNConfig(ModelConfig):
    """GPN without memory.

    Attributes:
        d_state: width of the state.
        d_emb: width of the token embeddings, tied with the decoder.
        d_ffn: hidden width of the SwiGLU; 0 takes 8/3 of d_state, rounded.
        n_layers: prediction layers revisited at each token.
        decoder_bias: whether the decoder has a bias in embedding space.
    """

    d_state: int
    d_emb: int
    d_ffn: int = 0
    n_layers: int = 1
    decoder_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_ffn == 0:
            object.__setattr__(self, "d_ffn", round(8 * self.d_state / 3))
        positive(self, "d_state", "d_emb", "d_ffn", "n_layers")

    @property
    def memory(self) -> tuple[int, int, int] | None:
        return None


@dataclass(frozen=True, kw_only=True)
class GPNMConfig(GPNConfig):
    """GPN+M.

    Attributes:
        n_heads: memory heads.
        d_key: width of a head's keys.
        d_val: width of a head's values.
    """

    n_heads: int
    d_key: int
    d_val: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "n_heads", "d_key", "d_val")

    @property
    def memory(self) -> tuple[int, int, int] | None:
        return self.n_heads, self.d_key, self.d_val


@dataclass(frozen=True)
class GroundedState(State):
    """A state between two tokens, after the prediction made from the last one.

    Attributes:
        predicted: (B,D) the prediction, which the decoder reads and the next token grounds.
        grounded: (B,D) the grounded state that it was made from; the next write's key.
        memory: (B,H,K,U) the memory after its last write; (B,0,0,0) without memory.
    """

    kind: ClassVar[str] = "grounded"

    predicted: Tensor
    grounded: Tensor
    memory: Tensor


class GroundedModel(LanguageModel):
    """What GPN and GPN+M share: embeddings, the block, the tied decoder."""

    state_class = GroundedState
    sequential = True
    config: GPNConfig

    def __init__(self, config: GPNConfig) -> None:
        super().__init__(config)
        self.embedding = uninitialised(nn.Embedding, config.vocab_size, config.d_emb)
        self.fuse_norm = RMSNorm(config.d_emb)
        self.fuse = uninitialised(nn.Linear, config.d_emb, config.d_state, bias=False)
        self.cell = GroundedCell(config.d_state, config.d_ffn, config.n_layers, config.memory)
        self.decode_norm = RMSNorm(config.d_state)
        self.decode = uninitialised(
            nn.Linear, config.d_state, config.d_emb, bias=config.decoder_bias
        )
        normal_(self.embedding.weight, 0.02)
        lecun_normal_(self.fuse.weight)
        lecun_normal_(self.decode.weight)
        if config.decoder_bias:
            nn.init.zeros_(self.decode.bias)

    def encode(
        self, input_ids: Tensor, state: State, hold_BT: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        assert isinstance(state, GroundedState)
        unit_BTE = self.fuse_norm(self.embedding(input_ids))
        drive_BTD = self.fuse(unit_BTE.to(self.dtype)).to(self.state_dtype)
        drive_BTD = tap(self, "drive", drive_BTD)
        predicted_BTD, predicted_BD, grounded_BD, memory_BHKU = grounded_loop(
            drive_BTD,
            self.cell.params(),
            state.predicted,
            state.grounded,
            None if self.config.memory is None else state.memory,
            hold_BT=hold_BT,
            reset_BT=reset_BT,
            observe=self._observer() if listening() else None,
        )
        tap(self, "state.predicted", predicted_BTD)
        memory = state.memory if memory_BHKU is None else memory_BHKU
        features_BTE = self._decode(tap(self, "decoder.input", predicted_BTD))
        return features_BTE, GroundedState(predicted_BD, grounded_BD, memory)

    def _observer(self) -> Observe | None:
        return observer(self, self.config.n_layers, self.config.memory is not None)

    def describe_taps(self) -> dict[str, Tap]:
        return {
            "drive": Tap("(B,T,D)", "what the token adds to the state", "state", replaceable=True),
            "state.predicted": Tap("(B,T,D)", "the state after the prediction", "state"),
            "decoder.input": Tap(
                "(B,T,D)",
                "state.predicted as the decoder reads it; replaced, it changes no state",
                "state",
                cheap=False,
                replaceable=True,
            ),
            **block_taps(self.config.n_layers, self.config.memory is not None),
        }

    def _decode(self, predicted: Tensor) -> Tensor:
        features: Tensor = self.decode(self.decode_norm(predicted).to(self.dtype))
        return features

    def state_features(self, state: State) -> Tensor:
        assert isinstance(state, GroundedState)
        return self._decode(state.predicted)

    def head_weight(self) -> Tensor:
        return self.embedding.weight

    def check_state(self, state: State, batch: int) -> None:
        super().check_state(state, batch)
        assert isinstance(state, GroundedState)
        # the sizes of 0 without memory are exact: nothing here grows with the text
        wanted, found = self.config.memory or (0, 0, 0), tuple(state.memory.shape[1:])
        if found != wanted:
            raise StateError(
                f"state.memory of shape {(batch, *found)}: {self.registry_name} with this "
                f"configuration needs {(batch, *wanted)}; the state belongs to another model"
            )

    def body_flops(self, length: int) -> dict[str, int]:
        c = self.config
        counts = {"projections": flops.products(length, self.fuse, self.cell, self.decode)}
        if c.memory is not None:
            heads, key, value = c.memory
            entries = heads * key * value
            # the write asks the memory for its own prediction first; every layer reads
            reads = (1 + c.n_layers) * flops.memory_read(length, entries)
            counts["recurrence"] = reads + flops.memory_write(length, entries)
        return counts

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GroundedState:
        device, dtype = device or self.device, dtype or self.state_dtype
        zero = torch.zeros(batch, self.config.d_state, device=device, dtype=dtype)
        memory = torch.zeros(batch, *(self.config.memory or (0, 0, 0)), device=device, dtype=dtype)
        return GroundedState(zero, zero.clone(), memory)


def gpn_sizes(width: int, layers: int) -> dict[str, Any]:
    """Embeddings of a quarter of the state, as in the presets of 1 M parameters."""
    return {
        "d_state": width,
        "d_emb": rounded(width / 4, 16),
        "d_ffn": rounded(8 * width / 3, 4),
        "n_layers": layers,
    }


def gpnm_sizes(width: int, layers: int) -> dict[str, Any]:
    """With a memory whose values are together as wide as the state, and keys half as wide."""
    d_key = 16 if width < 192 else 32 if width < 512 else 64 if width < 1536 else 128
    heads = max(1, round(width / (2 * d_key)))
    memory = {"n_heads": heads, "d_key": d_key, "d_val": 2 * d_key}
    return {**gpn_sizes(width, layers), **memory}


@register("gpn", GPNConfig)
class GPN(GroundedModel):
    """Grounded Prediction Network without memory."""

    scaling = Scaling(
        widths=WIDTHS, fields=gpn_sizes, layers=lambda width: 1, fine="d_ffn", fine_step=4
    )


@register("gpnm", GPNMConfig)
class GPNM(GroundedModel):
    """Grounded Prediction Network with one gated delta-rule memory (GPN+M)."""

    scaling = Scaling(
        widths=WIDTHS, fields=gpnm_sizes, layers=lambda width: 1, fine="d_ffn", fine_step=4
    )
    config: GPNMConfig


preset(
    "gpnm-130m",
    "gpnm",
    "published 1-layer GPN+M, 129.2 M parameters",
    vocab_size=32000,
    d_state=2496,
    d_emb=768,
    d_ffn=6656,
    n_heads=15,
    d_key=128,
    d_val=256,
)
preset(
    "gpnm-130m-2l",
    "gpnm",
    "published 2-layer GPN+M; d_ffn chosen to land at its 130 M parameters",
    vocab_size=32000,
    d_state=1920,
    d_emb=768,
    d_ffn=4880,
    n_layers=2,
    n_heads=11,
    d_key=128,
    d_val=256,
)
preset(
    "gpn-130m",
    "gpn",
    "published GPN; d_ffn chosen near 8/3 d_state to land at its 130 M parameters",
    vocab_size=32000,
    d_state=3184,
    d_emb=768,
    d_ffn=8400,
)
preset(
    "gpnm-12m",
    "gpnm",
    "11.6 M parameters, for a strong CPU or any GPU",
    vocab_size=8192,
    d_state=768,
    d_emb=256,
    d_ffn=2048,
    n_heads=8,
    d_key=64,
    d_val=128,
)
preset(
    "gpnm-1m",
    "gpnm",
    "bytes on a laptop, 0.97 M parameters",
    vocab_size=259,
    d_state=256,
    d_emb=64,
    d_ffn=684,
    n_heads=4,
    d_key=32,
    d_val=64,
)
preset(
    "gpn-1m",
    "gpn",
    "bytes on a laptop, as many parameters as gpnm-1m",
    vocab_size=259,
    d_state=302,
    d_emb=64,
    d_ffn=810,
)
preset(
    "gpnm-tiny",
    "gpnm",
    "bytes in seconds, for tests and first steps",
    vocab_size=259,
    d_state=64,
    d_emb=32,
    d_ffn=172,
    n_heads=2,
    d_key=16,
    d_val=32,
)
