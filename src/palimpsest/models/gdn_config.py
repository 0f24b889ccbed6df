"""The configuration of Gated DeltaNet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.models.config import between, positive
from palimpsest.models.registry import preset
from palimpsest.models.scaling import WIDTHS, Scaling, head_width, rounded
from palimpsest.models.stack import StackConfig

__all__ = ["SCALING", "GDNConfig"]


@dataclass(frozen=True, kw_only=True)
class GDNConfig(StackConfig):
    """Gated DeltaNet; other fields are those of every stack.

    Attributes:
        n_heads: memories of each layer.
        head_dim: width of a memory's keys.
        expand_v: width of its values as a multiple of ``head_dim``.
        d_ffn: hidden width of the SwiGLU.
        conv_size: positions that the short convolution sees; 0 leaves it out.
    """

    n_heads: int
    head_dim: int
    expand_v: float = 2.0
    d_ffn: int
    conv_size: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "n_heads", "head_dim", "d_ffn")
        between(self, "expand_v", 0.0, math.inf)
        if self.expand_v * self.head_dim != self.value_width:
            raise ConfigError(
                f"expand_v={self.expand_v}: times head_dim={self.head_dim} must be a whole number, "
                "the width of the values"
            )
        if self.conv_size != 0:
            positive(self, "conv_size")
        if self.conv_size == 1:
            raise ConfigError("conv_size=1: must be 0, which is none, or at least 2")

    @property
    def value_width(self) -> int:
        """V."""
        return round(self.expand_v * self.head_dim)


def sizes(width: int, layers: int) -> dict[str, Any]:
    """Keys as wide as the stream, in heads of 128 where they fit, and the presets' feed-forward."""
    head_dim = 128 if width >= 512 and width % 128 == 0 else head_width(width)
    return {
        "d_model": width,
        "n_layers": layers,
        "n_heads": width // head_dim,
        "head_dim": head_dim,
        "d_ffn": rounded(1.9 * width, 8),
    }


SCALING = Scaling(
    widths=WIDTHS,
    fields=sizes,
    layers=lambda width: max(1, round(4 * (width / 128) ** 0.5)),  # 4 at 128, 10 at 768
    fine="d_ffn",
)


preset(
    "gdn-130m",
    "gdn",
    "10-layer baseline of the GPN paper; d_ffn chosen to land at its 130 M parameters",
    vocab_size=32000,
    d_model=768,
    n_layers=10,
    n_heads=6,
    head_dim=128,
    d_ffn=1456,
)
preset(
    "gdn-130m-1l",
    "gdn",
    "1-layer control: the parameters of gdn-130m in one wide layer",
    vocab_size=32000,
    d_model=1536,
    n_layers=1,
    n_heads=12,
    head_dim=128,
    d_ffn=2792,
)
preset(
    "gdn-1m",
    "gdn",
    "bytes on a laptop, as many parameters as gpnm-1m to 0.04 %",
    vocab_size=259,
    d_model=128,
    n_layers=4,
    n_heads=4,
    head_dim=32,
    d_ffn=240,
)
