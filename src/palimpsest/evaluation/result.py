"""The result of an evaluation: the numbers and everything one needs to believe them."""

from __future__ import annotations

import math
import platform
import subprocess
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from palimpsest._version import __version__
from palimpsest.errors import InputError
from palimpsest.files import read_json, write_json

__all__ = ["EvaluationResult", "results_table", "software_versions", "working_commit"]

SCHEMA = "palimpsest-evaluation"
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What was measured, on what, and how.

    Attributes:
        model: the architecture's registered name.
        source: the folder the model was read from, or what the caller calls it; None if unsaid.
        parameters: number of parameters, tied ones counted once.
        state_bytes: bytes of one row's state after the longest stretch read.
        data: the file or folder that was read.
        data_sha256: over the text (for one unprepared text file: as ``sha256sum`` prints it).
        documents: how many separate texts it holds.
        tokenizer: its name.
        tokenizer_fingerprint: sha256 over its definition.
        protocol: one line that says how the text was cut and what was counted.
        settings: the same as fields (see ``Protocol``).
        tokens: tokens that were predicted.
        bytes: UTF-8 bytes of text that these tokens stand for.
        loss: mean cross-entropy, nats per token.
        seed: the model's training seed where the caller knows it; the evaluation itself has no
            chance in it.
        dtype: the precision of the numbers.
        batch_size: rows of a forward.
        device: where it ran.
        threads: CPU threads of torch.
        commit: git commit of the working directory, "+changes" where it has uncommitted ones;
            None outside a checkout.
        versions: palimpsest, torch and python.
        wall_seconds: time of the forward passes.
    """

    model: str
    source: str | None
    parameters: int
    state_bytes: int
    data: str
    data_sha256: str
    documents: int
    tokenizer: str
    tokenizer_fingerprint: str
    protocol: str
    settings: dict[str, Any]
    tokens: int
    bytes: int
    loss: float
    seed: int | None
    dtype: str
    batch_size: int
    device: str
    threads: int
    commit: str | None
    versions: dict[str, str]
    wall_seconds: float

    @property
    def perplexity(self) -> float:
        """exp(loss), per token: comparable only between equal tokenizers."""
        return math.exp(self.loss) if self.loss < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """loss · tokens / (ln 2 · bytes): comparable between tokenizers."""
        return self.loss * self.tokens / (math.log(2) * self.bytes)

    def to_dict(self) -> dict[str, Any]:
        """All fields, the two derived figures, and the schema's name and version."""
        perplexity = self.perplexity
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            **asdict(self),
            "perplexity": perplexity if math.isfinite(perplexity) else None,
            "bits_per_byte": self.bits_per_byte,
        }

    def save(self, path: str | Path) -> Path:
        """Write JSON; a file of that name is replaced only when the new one is complete."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls, path: str | Path) -> EvaluationResult:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no such file, not a result, or of another schema version (both are named).
        """
        data = read_json(Path(path), InputError)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise InputError(f"{path}: is not an evaluation result of palimpsest")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"{path}: schema {SCHEMA} version {data.get('schema_version')!r}, this palimpsest "
                f"reads version {SCHEMA_VERSION}; evaluate again"
            )
        known = {f.name for f in fields(cls)}
        derived = {"schema", "schema_version", "perplexity", "bits_per_byte"}
        missing, unknown = sorted(known - data.keys()), sorted(data.keys() - known - derived)
        if missing or unknown:
            raise InputError(f"{path}: missing fields {missing}, unknown fields {unknown}")
        return cls(**{name: data[name] for name in known})

    def table(self) -> Table:
        """Everything, one field a line."""
        table = Table(
            show_header=False, title=escape(self.source or self.model), title_justify="left"
        )
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        rows = {
            "model": f"{self.model}, {self.parameters:,} parameters, "
            f"state {self.state_bytes:,} bytes",
            "data": f"{self.data} ({self.documents:,} documents, sha256 {self.data_sha256[:16]}…)",
            "tokenizer": f"{self.tokenizer} ({self.tokenizer_fingerprint[:16]}…)",
            "protocol": self.protocol,
            "counted": f"{self.tokens:,} tokens = {self.bytes:,} bytes",
            "loss": f"{self.loss:.4f} nats per token",
            "perplexity": f"{self.perplexity:,.3f} per token",
            "bits per byte": f"{self.bits_per_byte:.4f}",
            "numbers": f"{self.dtype}, batch {self.batch_size}, {self.device}, "
            f"{self.threads} threads",
            "seed": "not known" if self.seed is None else str(self.seed),
            "software": ", ".join(f"{k} {v}" for k, v in self.versions.items())
            + (f", commit {self.commit}" if self.commit else ""),
            "time": f"{self.wall_seconds:.1f} s, "
            f"{self.tokens / max(self.wall_seconds, 1e-9):,.0f} tokens/s",
        }
        for name, value in rows.items():
            table.add_row(name, escape(value))
        return table


def results_table(results: list[EvaluationResult]) -> Table:
    """Several results side by side, one a line."""
    table = Table()
    for name in ("model", "data", "protocol", "dtype"):
        table.add_column(name, overflow="fold")
    for name in ("parameters", "state bytes", "tokens", "nats/token", "perplexity", "bits/byte"):
        table.add_column(name, justify="right")
    for r in results:
        table.add_row(
            escape(r.source or r.model),
            escape(r.data),
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


def software_versions() -> dict[str, str]:
    """Versions of palimpsest, torch and python."""
    return {
        "palimpsest": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def working_commit() -> str | None:
    """The git commit of the working directory, or None outside a checkout or without git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changes else commit
