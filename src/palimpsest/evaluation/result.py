"""The result of perplexity: the numbers and everything one needs to believe them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.markup import escape
from rich.table import Table

from palimpsest.errors import counted
from palimpsest.evaluation.record import TextResult
from palimpsest.streams import plain

__all__ = ["EvaluationResult", "results_table"]


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(TextResult):
    """Perplexity and bits per byte of a text (the other fields: see ``Result``).

    ``data_sha256`` is over the text (for one unprepared text file: as ``sha256sum`` prints it),
    ``settings`` are those of ``Protocol``.

    Attributes:
        documents: how many separate texts the data holds.
        tokens: tokens that were predicted.
        bytes: UTF-8 bytes of text that these tokens stand for.
        loss: mean cross-entropy, nats per token.
    """

    SCHEMA: ClassVar[str] = "palimpsest-evaluation"
    SCHEMA_VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "perplexity"

    documents: int
    tokens: int
    bytes: int
    loss: float

    @property
    def perplexity(self) -> float:
        """exp(loss), per token: comparable only between equal tokenizers."""
        return math.exp(self.loss) if self.loss < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """loss · tokens / (ln 2 · bytes): comparable between tokenizers."""
        return self.loss * self.tokens / (math.log(2) * self.bytes)

    def derived(self) -> dict[str, Any]:
        return {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}

    def rows(self) -> dict[str, str]:
        return {
            "data": f"{self.data} ({counted(self.documents, 'document')}, "
            f"sha256 {self.data_sha256[:16]}…)",
            "tokenizer": f"{self.tokenizer} ({self.tokenizer_fingerprint[:16]}…)",
            "counted": f"{counted(self.tokens, 'token')} = {counted(self.bytes, 'byte')}",
            "loss": f"{self.loss:.4f} nats per token",
            "perplexity": f"{self.perplexity:,.3f} per token",
            "bits per byte": f"{self.bits_per_byte:.4f}",
            "time": f"{self.wall_seconds:.1f} s, "
            f"{self.tokens / max(self.wall_seconds, 1e-9):,.0f} tokens/s",
        }


def results_table(results: list[EvaluationResult]) -> Table:
    """Several results side by side, one a line."""
    table = Table()
    for name in ("model", "data", "protocol", "dtype"):
        table.add_column(name, overflow="fold")
    for name in ("parameters", "state bytes", "tokens", "nats/token", "perplexity", "bits/byte"):
        table.add_column(name, justify="right")
    for r in results:
        table.add_row(
            escape(plain(r.source or r.model)) + ("" if r.causal else " (not causal)"),
            escape(plain(r.data)),
            r.protocol,
            r.dtype,
            f"{r.parameters:,}",
            f"{r.state_bytes:,}",
            f"{r.tokens:,}",
            f"{r.loss:.4f}",
            f"{r.perplexity:,.3f}",
            f"{r.bits_per_byte:.4f}",
        )
    return table
