"""The configuration of Mamba-2, its presets and how it grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.models.config import at_least, positive
from palimpsest.models.registry import preset
from palimpsest.models.scaling import Scaling
from palimpsest.models.stack import StackConfig

__all__ = ["SCALING", "Mamba2Config"]


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(StackConfig):
    """Mamba-2; other fields are those of every stack.

    Attributes:
        expand: the inner width as a multiple of ``d_model``.
        head_dim: width of a head, which divides the inner width.
        state_dim: width of the keys and queries (B and C), rows of a head's memory.
        n_groups: groups of heads; those of a group share B and C.
        conv_size: positions that the convolutions see, at least 2.
    """

    expand: int = 2
    head_dim: int = 64
    state_dim: int = 128
    n_groups: int = 1
    conv_size: int = 4
    norm_eps: float = 1e-5
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "expand", "head_dim", "state_dim", "n_groups")
        at_least(self, "conv_size", 2)  # with 1 it would see no earlier position
        if self.d_inner % self.head_dim:
            raise ConfigError(
                f"head_dim={self.head_dim}: must divide expand · d_model = {self.d_inner}, the "
                "inner width"
            )
        if self.n_heads % self.n_groups:
            raise ConfigError(
                f"n_groups={self.n_groups}: must divide the {self.n_heads} heads, "
                "expand · d_model / head_dim"
            )

    @property
    def d_inner(self) -> int:
        """Width of all heads together."""
        return self.expand * self.d_model

    @property
    def n_heads(self) -> int:
        """Heads of a layer."""
        return self.d_inner // self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of a layer's convolution."""
        return self.d_inner + 2 * self.n_groups * self.state_dim


def sizes(width: int, n_layers: int) -> dict[str, Any]:
    """Heads of the published 64 and memories of the published 128 rows, smaller where narrow."""
    return {
        "d_model": width,
        "n_layers": n_layers,
        "head_dim": 32 if width < 128 or width % 32 else 64,
        "state_dim": 32 if width < 128 else 64 if width < 512 else 128,
    }


SCALING = Scaling(
    # twice the width holds whole heads; finer than WIDTHS, for state_dim moves a wide layer little
    widths=(*range(16, 768, 16), *range(768, 8193, 32)),
    fields=sizes,
    layers=lambda width: max(1, round(8 * (width / 128) ** 0.61)),  # 8 at 128, 24 at 768
    fine="state_dim",
    fine_step=4,
)


preset(
    "mamba2-130m",
    "mamba2",
    "the published 130 M layers; 114.9 M parameters with 32,000 ids in place of 50,288",
    vocab_size=32000,
    d_model=768,
    n_layers=24,
)
preset(
    "mamba2-130m-1l",
    "mamba2",
    "1-layer control: the parameters of mamba2-130m in one wide layer",
    vocab_size=32000,
    d_model=2432,
    n_layers=1,
)
preset(
    "mamba2-1m",
    "mamba2",
    "bytes on a laptop, as many parameters as gpnm-1m to 0.1 %",
    vocab_size=259,
    d_model=128,
    n_layers=8,
    state_dim=64,
)
