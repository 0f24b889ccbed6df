"""How many tokens a second: reading a prompt, training, and writing, by length and batch.

Everything takes turns within a round, several models included, so that whatever else the machine
does falls on all of them; a figure is the median over the rounds, and ratios within one run are
what one should read.

Legend: B batch, T time.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from palimpsest.errors import InputError
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.evaluation.memory import memory_rule, peak_bytes
from palimpsest.evaluation.progress import track
from palimpsest.evaluation.record import Result, provenance
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = [
    "Phase",
    "ThroughputResult",
    "ThroughputRow",
    "measure_throughput",
    "throughput_table",
    "training_step",
    "wait_for",
]

Phase = Literal["prefill", "training", "decode"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, kw_only=True)
class ThroughputRow:
    """One phase at one batch and length.

    Attributes:
        phase: "prefill": a forward over the prompt with the logits of its last position;
            "training": forward, backward and a step of AdamW; "decode": greedy tokens one by one
            behind a prompt that was read before the clock started.
        batch: B.
        length: T, tokens of each row; for "decode" of the prompt.
        tokens: tokens that one measurement reads or writes, over all rows.
        seconds: of each round.
        tokens_per_s: tokens over the median of the seconds.
        peak_bytes: the most memory taken above what was in use; None where it cannot be told.
        state_bytes: bytes of the state of all rows at the end.
    """

    phase: Phase
    batch: int
    length: int
    tokens: int
    seconds: tuple[float, ...]
    tokens_per_s: float
    peak_bytes: int | None
    state_bytes: int

    @classmethod
    def read(cls, found: Any) -> ThroughputRow:
        """From a row or from what JSON keeps of one."""
        if isinstance(found, cls):
            return found
        return cls(**{**found, "seconds": tuple(found["seconds"])})


@dataclass(frozen=True, kw_only=True)
class ThroughputResult(Result):
    """Speed of one model (the other fields: see ``Result``).

    ``data_sha256`` is over the random ids of the largest measurement, as int64, which smaller ones
    read in another shape; ``batch_size`` is the largest.

    Attributes:
        results: one row for each phase, batch and length.
    """

    SCHEMA: ClassVar[str] = "palimpsest-throughput"
    KIND: ClassVar[str] = "throughput"

    results: tuple[ThroughputRow, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(ThroughputRow.read(r) for r in self.results))


def measure_throughput(
    models: Mapping[str, LanguageModel],
    *,
    lengths: Sequence[int] = (128, 512),
    batches: Sequence[int] = (1, 8),
    phases: Sequence[Phase] = PHASES,
    decode_tokens: int = 32,
    rounds: int = 5,
    precision: Precision = "fp32",
    progress: bool = True,
) -> dict[str, ThroughputResult]:
    """Measure one or several models side by side.

    Args:
        models: by the names that the results shall have. Their parameters come back as they were.
        lengths: T.
        batches: B.
        phases: "prefill", "training", "decode".
        decode_tokens: tokens written in one measurement of "decode".
        rounds: how often everything is measured, after a warm-up and a run that weighs the memory.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        progress: whether to show progress on standard error.

    Returns:
        A result for each model, under its name.

    Raises:
        InputError: values below 1, an unknown phase, a length that a model cannot hold.
    """
    _check(models, lengths, batches, phases, decode_tokens, rounds, precision)
    cells = [
        _Cell(name, model, phase, batch, length, decode_tokens, precision)
        for phase, batch, length in itertools.product(phases, batches, lengths)
        for name, model in models.items()
    ]
    start = time.perf_counter()
    bar = track("throughput", len(cells) * (rounds + 2), unit="measurements")
    with bar if progress else nullcontext(lambda _: None) as advance:
        for cell in cells:  # compiles what is compiled
            cell.run()
            advance(1)
        for cell in cells:
            cell.weigh()
            advance(1)
        for _ in range(rounds):
            for cell in cells:
                cell.measure()
                advance(1)
    wall_seconds = time.perf_counter() - start
    about = {
        "lengths": list(lengths),
        "batches": list(batches),
        "phases": list(phases),
        "decode_tokens": decode_tokens,
        "rounds": rounds,
        "models": list(models),
    }
    results = {}
    for name, model in models.items():
        own = [cell for cell in cells if cell.name == name]
        longest = max(lengths) + (decode_tokens if "decode" in phases else 0)
        ids = random_ids(model, max(batches), max(lengths))
        results[name] = ThroughputResult(
            **provenance(model, precision, longest),
            source=name,
            data=f"random ids below {model.config.vocab_size}, generator seeded 0",
            data_sha256=hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest(),
            protocol=f"medians of {rounds} rounds, {len(cells)} measurements in turn; memory: "
            f"{memory_rule(model.device)}, in one run of its own",
            settings=about,
            seed=None,
            batch_size=max(batches),
            wall_seconds=wall_seconds,
            results=tuple(cell.row() for cell in own),
        )
    return results


def throughput_table(results: Sequence[ThroughputResult]) -> Table:
    """Several results side by side: one line for each phase, batch and length."""
    table = Table()
    for heading in ("phase", "batch", "length"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    several = len(results) > 1
    for index, result in enumerate(results):
        prefix = f"{escape(result.source or result.model)}\n" if several else ""
        table.add_column(f"{prefix}tokens/s", justify="right", overflow="fold")
        if index:
            table.add_column("×", justify="right")
        table.add_column("peak MB", justify="right")
    for rows in zip(*(r.results for r in results), strict=True):
        cells = [rows[0].phase, str(rows[0].batch), f"{rows[0].length:,}"]
        for index, row in enumerate(rows):
            cells.append(f"{row.tokens_per_s:,.0f}")
            if index:
                cells.append(f"{row.tokens_per_s / rows[0].tokens_per_s:.2f}")
            cells.append("?" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.1f}")
        table.add_row(*cells)
    return table


def training_step(model: LanguageModel, ids_BT: Tensor, precision: Precision) -> Callable[[], None]:
    """One step of AdamW on the loss of (B,T+1) ids; the rate is 0, so every step does the same."""
    optimizer = torch.optim.AdamW(model.param_groups(lr=0.0, weight_decay=0.1))

    def step() -> None:
        was_training = model.training
        model.train()
        with torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(ids_BT[:, :-1], targets=ids_BT[:, 1:]).loss
        assert loss is not None
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        model.train(was_training)

    return step


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_ids(model: LanguageModel, batch: int, length: int) -> Tensor:
    """(B,T+1) ids, the same for every model of one vocabulary."""
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.config.vocab_size, (batch, length + 1), generator=generator)
    return ids_BT.to(model.device)


class _Cell:
    """One phase of one model at one batch and length, and what was measured of it."""

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        phase: Phase,
        batch: int,
        length: int,
        decode_tokens: int,
        precision: Precision,
    ) -> None:
        self.name, self.model, self.phase = name, model, phase
        self.batch, self.length, self.precision = batch, length, precision
        self.decode_tokens = decode_tokens
        self.seconds: list[float] = []
        self.peak: int | None = None

    def prepare(self) -> Callable[[], object]:
        """The work that is timed; what comes before it is done here, and freed afterwards."""
        ids_BT = random_ids(self.model, self.batch, self.length)
        if self.phase == "training":
            step = training_step(self.model, ids_BT, self.precision)
            step()  # AdamW makes its moments at the first step
            return step
        if self.phase == "prefill":
            return lambda: self._prefill(ids_BT[:, :-1])
        token_B1, state = self._prefill(ids_BT[:, :-1])
        return lambda: self._decode(token_B1, state)

    def run(self) -> float:
        work = self.prepare()
        wait_for(self.model.device)
        start = time.perf_counter()
        work()
        wait_for(self.model.device)
        return time.perf_counter() - start

    def measure(self) -> None:
        self.seconds.append(self.run())

    def weigh(self) -> None:
        self.peak = peak_bytes(self.prepare(), self.model.device)

    def row(self) -> ThroughputRow:
        decode = self.phase == "decode"
        tokens = self.batch * (self.decode_tokens if decode else self.length)
        end = self.length + (self.decode_tokens if decode else 0)
        with inference(self.model, self.precision):
            state_bytes = self.model.state_bytes(self.batch, end)
        return ThroughputRow(
            phase=self.phase,
            batch=self.batch,
            length=self.length,
            tokens=tokens,
            seconds=tuple(self.seconds),
            tokens_per_s=tokens / statistics.median(self.seconds),
            peak_bytes=self.peak,
            state_bytes=state_bytes,
        )

    def _prefill(self, ids_BT: Tensor) -> tuple[Tensor, State]:
        """Reads all but the last token for the state alone, so that no other logits are made."""
        state: State | None = None
        with inference(self.model, self.precision):
            if ids_BT.shape[1] > 1:
                state = self.model(ids_BT[:, :-1]).state
            out = self.model(ids_BT[:, -1:], state)
            return out.logits.argmax(-1), out.state

    def _decode(self, token_B1: Tensor, state: State) -> None:
        with inference(self.model, self.precision):
            for _ in range(self.decode_tokens):
                out = self.model(token_B1, state)
                token_B1, state = out.logits.argmax(-1), out.state


def _check(
    models: Mapping[str, LanguageModel],
    lengths: Sequence[int],
    batches: Sequence[int],
    phases: Sequence[Phase],
    decode_tokens: int,
    rounds: int,
    precision: Precision,
) -> None:
    check_precision(precision)
    if not models:
        raise InputError("models={}: name at least one")
    for label, values in (("lengths", lengths), ("batches", batches), ("phases", phases)):
        if not values:
            raise InputError(f"{label}=[]: name at least one")
        if len(set(values)) < len(values):
            raise InputError(f"{label}={list(values)}: name each once")
    for label, numbers in (
        ("lengths", lengths),
        ("batches", batches),
        ("decode_tokens", (decode_tokens,)),
        ("rounds", (rounds,)),
    ):
        if min(numbers) < 1:
            raise InputError(f"{label}={min(numbers)}: must be at least 1")
    for phase in phases:
        if phase not in PHASES:
            raise InputError(f"phase {phase!r}: choose from {', '.join(PHASES)}")
    longest = max(lengths) + (decode_tokens if "decode" in phases else 0)
    for name, model in models.items():
        if model.max_length is not None and longest > model.max_length:
            raise InputError(
                f"{name}: {longest} tokens (the longest prompt and what is written behind it): "
                f"{model.describe_bound()}; use smaller lengths"
            )
