"""How well general-purpose compressors do on the held-out text.

Both figures are fair in a way of their own, and both are given:

- alone: the compressor sees the held-out text only, and has to learn everything from it;
- after the training text: what the held-out text adds to the size of the training text, so that
  the compressor may use the training text as the models do (as far back as its window reaches:
  32 kB for gzip, 900 kB for bzip2, everything for xz).

Neither counts a program or a model as part of what must be sent.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Yardstick", "measure_compressors"]

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 9, mtime=0),
    "bzip2": lambda data: bz2.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
}


@dataclass(frozen=True)
class Yardstick:
    """A compressor on the held-out text.

    Attributes:
        name: the compressor, at its highest setting.
        bits_alone: bits per byte of the held-out text by itself.
        bits_after_training: bits per byte that it adds to the compressed training text.
    """

    name: str
    bits_alone: float
    bits_after_training: float


def measure_compressors(training: bytes, held_out: bytes) -> list[Yardstick]:
    """Compress with gzip, bzip2 and xz at their highest settings.

    Args:
        training: the training text; UTF-8 bytes.
        held_out: the held-out text; UTF-8 bytes, at least one.
    """
    found = []
    for name, compress in COMPRESSORS.items():
        alone = len(compress(held_out))
        added = len(compress(training + held_out)) - len(compress(training))
        found.append(Yardstick(name, 8 * alone / len(held_out), 8 * added / len(held_out)))
    return found
