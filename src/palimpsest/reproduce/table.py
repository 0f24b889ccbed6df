"""What a published table is here: rows, what is done for each, and the published figures.

Everything in this file is data. What carries an experiment out is in ``measure_*.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from palimpsest.errors import ConfigError
from palimpsest.models.registry import is_causal
from palimpsest.reproduce.experiments import Experiment

__all__ = ["Column", "DataSource", "Row", "Table"]

Style = Literal["bits", "tenths", "percent", "integer", "ratio"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A measured quantity, and what stands beside it.

    Attributes:
        metric: the name that an experiment gives it.
        title: the heading of what is measured.
        published_title: the heading of the figure it is compared with.
        style: "bits" three decimals, "tenths" one, "percent" of a share 0 … 1,
            "integer" with separators, "ratio" two decimals and ×.
    """

    metric: str
    title: str
    published_title: str = "published"
    style: Style = "bits"

    def format(self, value: float) -> str:
        """A value as the table shows it."""
        if self.style == "percent":
            return f"{100 * value:.1f} %"
        if self.style == "integer":
            return f"{value:,.0f}"
        if self.style == "ratio":
            return f"{value:.2f}×"
        return f"{value:.1f}" if self.style == "tenths" else f"{value:.3f}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model of a table.

    Attributes:
        label: what the table calls it; unique in the table.
        model: registered name of the architecture.
        fields: its configuration, without the vocabulary, which the data decides.
        published: figures by metric; empty for a row of ours.
        parameters: the published count, which must be met exactly; None where there is none.
        experiments: what is measured, where it differs from the table's.
        note: one short remark.
    """

    label: str
    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    parameters: int | None = None
    experiments: tuple[Experiment, ...] | None = None
    note: str = ""

    @property
    def causal(self) -> bool:
        """False where the model sees tokens that it is asked to predict."""
        try:
            return is_causal(self.model, {"vocab_size": 259, **self.fields})
        except ConfigError:  # a row that this version cannot build has no results to label
            return True

    @property
    def remark(self) -> str:
        """The note, led by the label that a row without causality always has."""
        return "; ".join(part for part in ("" if self.causal else "not causal", self.note) if part)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A file that an experiment reads, and where a user finds it.

    Attributes:
        what: its name.
        where: how to get it.
        num_bytes: its size, where it is known.
        sha256: its hash or the beginning of it, where it is known.
    """

    what: str
    where: str
    num_bytes: int | None = None
    sha256: str = ""

    def remedy(self) -> str:
        """Where to get it and what to expect, for an error message."""
        size = f"{self.num_bytes:,} bytes" if self.num_bytes else ""
        full = len(self.sha256) == 64
        digest = f"sha256 {self.sha256}{'' if full else '…'}" if self.sha256 else ""
        expected = ", ".join(part for part in (size, digest) if part)
        return f"{self.what}: {self.where}" + (f" (expected: {expected})" if expected else "")

    def matches(self, num_bytes: int, sha256: str) -> bool | None:
        """Whether a file is the expected one; None where nothing is known."""
        if not self.sha256:
            return None
        same_size = self.num_bytes is None or self.num_bytes == num_bytes
        return sha256.startswith(self.sha256) and same_size


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper.

    Attributes:
        name: what the command line calls it.
        title: one line.
        source: the paper.
        columns: what is shown.
        rows: the models, published ones and ours.
        experiments: what is measured of every row.
        seeds: of every experiment that has chance in it.
        notes: what a reader must know: what is ours, what is not comparable.
        data: the files by the name of their flag.
        quick: whether this is the shortened form (see :meth:`as_quick`).
    """

    name: str
    title: str
    source: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    experiments: tuple[Experiment, ...]
    seeds: tuple[int, ...] = (7, 19, 29)
    notes: tuple[str, ...] = ()
    data: Mapping[str, DataSource] = field(default_factory=dict)
    quick: bool = False

    def experiments_of(self, row: Row) -> tuple[Experiment, ...]:
        """What is measured of a row."""
        return self.experiments if row.experiments is None else row.experiments

    def as_quick(self) -> Table:
        """The same rows with a few steps and a tiny evaluation: shows that everything runs."""

        def few(experiments: tuple[Experiment, ...]) -> tuple[Experiment, ...]:
            return tuple(experiment.as_quick() for experiment in experiments)

        rows = tuple(
            row
            if row.experiments is None
            else dataclasses.replace(row, experiments=few(row.experiments))
            for row in self.rows
        )
        return dataclasses.replace(
            self,
            rows=rows,
            experiments=few(self.experiments),
            seeds=self.seeds[:1],
            title=f"{self.title} (quick: a few steps, no reproduction)",
            quick=True,
        )
