"""The configuration of Transformer++, and its sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.models.config import between, positive
from palimpsest.models.registry import preset
from palimpsest.models.scaling import WIDTHS, Scaling, head_width, rounded
from palimpsest.models.stack import StackConfig

__all__ = ["SCALING", "TransformerPPConfig"]


@dataclass(frozen=True, kw_only=True)
class TransformerPPConfig(StackConfig):
    """Transformer++; other fields are those of every stack.

    There is no longest text: rotary positions have no bound.

    Attributes:
        n_heads: query heads; divides ``d_model`` into parts of an even width.
        n_kv_heads: heads of keys and values, which divides ``n_heads``; None: as many.
        d_ffn: hidden width of the SwiGLU; None: 8/3 of ``d_model``, rounded up to a multiple of
            64, or of 8 where ``d_model`` is below 512.
        rope_base: base of the rotary angles' wavelengths, in tokens.
    """

    n_heads: int
    n_kv_heads: int | None = None
    d_ffn: int | None = None
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "n_heads")
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.d_ffn is None:
            step = 64 if self.d_model >= 512 else 8
            object.__setattr__(self, "d_ffn", -(-8 * self.d_model // (3 * step)) * step)
        positive(self, "n_kv_heads", "d_ffn")
        assert self.n_kv_heads is not None
        if self.d_model % (2 * self.n_heads):
            raise ConfigError(
                f"n_heads={self.n_heads}: must divide d_model={self.d_model} into parts of an even "
                "width, whose halves rotary positions pair"
            )
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads={self.n_kv_heads}: must divide n_heads={self.n_heads}, which share "
                "keys and values in equal groups"
            )
        between(self, "rope_base", 1.0, math.inf)

    @property
    def head_width(self) -> int:
        """Width of a head of queries, keys or values."""
        return self.d_model // self.n_heads


def sizes(width: int, layers: int) -> dict[str, Any]:
    """As many heads as fit, and the usual 8/3 for the SwiGLU."""
    return {
        "d_model": width,
        "n_layers": layers,
        "n_heads": width // head_width(width),
        "d_ffn": rounded(8 * width / 3, 8),
    }


SCALING = Scaling(
    widths=WIDTHS,
    fields=sizes,
    layers=lambda width: max(1, round(5 * math.sqrt(width / 128))),  # 5 at 128, 12 at 768
    fine="d_ffn",
    fine_step=4,  # with 8, steps of the smallest models are wider than 2 %
)


preset(
    "transformerpp-130m",
    "transformerpp",
    "12-layer baseline of the GPN paper; d_ffn chosen to land at its 130 M parameters",
    vocab_size=32000,
    d_model=768,
    n_layers=12,
    n_heads=12,
    d_ffn=1896,
)
preset(
    "transformerpp-130m-1l",
    "transformerpp",
    "1-layer control: the parameters of transformerpp-130m in one wide layer",
    vocab_size=32000,
    d_model=1536,
    n_layers=1,
    n_heads=24,
    d_ffn=4808,
)
preset(
    "transformerpp-1m",
    "transformerpp",
    "bytes on a laptop, as many parameters as gpnm-1m to 0.12 %",
    vocab_size=259,
    d_model=128,
    n_layers=5,
    n_heads=4,
    d_ffn=300,
)
