"""The demo from beginning to end: text, three models, their measures, samples, a report.

FOLDER/
    demo.json            marks the folder as the demo's own: only such a one is replaced
    text/                training.txt, held-out.txt
    gpnm-1m/, …          the runs (see training/run_folder.py)
    results.json         everything measured, and where it comes from
    results.md           the same to read
    loss.png             where matplotlib is installed
"""

from __future__ import annotations

import platform
import shutil
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from palimpsest.demo.plot import plot_demo
from palimpsest.demo.report import (
    introduction,
    markdown,
    next_steps,
    show_results,
    show_sample,
)
from palimpsest.demo.topics import (
    HELD_OUT,
    DemoText,
    TextFile,
    documentation_topics,
    rule,
    write_demo_text,
)
from palimpsest.demo.yardsticks import measure_compressors
from palimpsest.errors import InputError, PalimpsestError
from palimpsest.evaluation import EvaluationResult, Protocol, evaluate_text
from palimpsest.files import read_json, write_json, write_text
from palimpsest.generation import SamplingConfig, Session
from palimpsest.models import LanguageModel, build
from palimpsest.provenance import versions
from palimpsest.streams import plain, safe_stdout
from palimpsest.text import ByteTokenizer
from palimpsest.training import Recipe, RunResult, load_recipe, train

__all__ = ["DemoSettings", "run_demo"]

MARKER = "demo.json"
FORMAT = "palimpsest-demo"
RESULTS_VERSION = 2
# equal in parameters: with and without memory, and what they are an alternative to
MODELS = ("gpnm-1m", "gpn-1m", "transformerpp-1m")
RECIPE = "gpnm-1m"  # the built-in recipe whose rate and schedule all of them get
OURS = (MARKER, "text", *MODELS, "results.json", "results.md", "loss.png")

PROMPT = "If the object is "
SAMPLING = SamplingConfig(temperature=0.8, top_p=0.95)


@dataclass(frozen=True)
class Size:
    """How long everything is. Lengths are in tokens, which are bytes here."""

    held_out: tuple[str, ...]
    steps: int
    batch_size: int
    seq_len: int
    eval_every: int
    warmup_steps: int
    sample_tokens: int


FULL = Size(
    held_out=HELD_OUT,
    steps=500,
    batch_size=16,
    seq_len=128,
    eval_every=100,
    warmup_steps=50,
    sample_tokens=400,
)
QUICK = Size(
    held_out=HELD_OUT[-1:],
    steps=20,
    batch_size=16,
    seq_len=64,
    eval_every=10,
    warmup_steps=5,
    sample_tokens=60,
)
CARRIED_STRIDE = 1024  # tokens of one forward while the state is carried: changes the speed only


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What a user may choose.

    Attributes:
        out: the demo's folder; an older demo there is replaced, anything else is refused.
        quick: a few steps only, to see that everything works.
        seed: of the models, the order of the data and the samples.
        precision: "auto" takes bf16 where the CPU has instructions for it, else fp32.
    """

    out: Path = Path("demo-run")
    quick: bool = False
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"


def run_demo(settings: DemoSettings, console: Console | None = None) -> int:
    """Run the demo.

    Args:
        settings: what to do.
        console: where to print; standard output by default.

    Returns:
        The exit code: 0, or 128 + the signal's number where one stopped it.

    Raises:
        InputError: the folder is not the demo's own, or this Python has no text for it.
    """
    console = console or Console(file=safe_stdout())
    began = time.monotonic()
    size = QUICK if settings.quick else FULL
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if has_bf16_instructions() else "fp32"
    topics = documentation_topics()
    prepare_folder(settings.out)

    text = write_demo_text(topics, settings.out / "text", size.held_out)
    results: dict[str, Any] = {
        "schema": FORMAT,
        "schema_version": RESULTS_VERSION,
        "quick": settings.quick,
        "seed": settings.seed,
        "precision": precision,
        "device": "cpu",
        "cpu": cpu_name(),
        "software": versions(),
        "text": {
            "source": f"pydoc_data.topics of Python {platform.python_version()}",
            "rule": rule(size.held_out),
            "training": describe_text(text.training),
            "held_out": describe_text(text.held_out),
        },
        "training": asdict(size),
        "yardsticks": [
            asdict(y) for y in measure_compressors(text.training.data, text.held_out.data)
        ],
        "models": [],
    }
    _say(console, introduction(results, settings.out))
    for number, name in enumerate(MODELS, 1):
        console.rule(f"{number}/{len(MODELS)} {name}", align="left")
        recipe = demo_recipe(name, text, size, settings.seed, precision)
        trained = train(recipe, settings.out / name)
        if trained.stopped_by is not None:
            _say(console, "the demo was stopped; palimpsest demo begins it again")
            return 128 + trained.stopped_by
        _say(console, "measuring on the held-out text, then writing a sample")
        results["models"].append(measure(name, trained, text, size, settings.seed))
    results["wall_seconds"] = round(time.monotonic() - began, 1)

    plot = write_results(results, settings.out, console)
    console.rule("results", align="left")
    show_results(results, console)
    for model in results["models"]:
        show_sample(model, console)
    _say(console, next_steps(settings.out, plot, results))
    return 0


def write_results(results: dict[str, Any], folder: Path, console: Console) -> Path | None:
    """Write ``results.json``, ``loss.png`` and ``results.md``.

    Returns:
        The plot, or None without matplotlib, which is said.
    """
    write_json(folder / "results.json", results)
    plot: Path | None = folder / "loss.png"
    try:
        plot_demo(results, [folder / m["name"] for m in results["models"]], folder / "loss.png")
    except PalimpsestError as failure:
        plot = None
        _say(console, f"no plot: {failure}")
    write_text(folder / "results.md", markdown(results, plot))
    return plot


def demo_recipe(name: str, text: DemoText, size: Size, seed: int, precision: str) -> Recipe:
    """The recipe of one model: the built-in one, with the demo's text and length.

    A state of one size is carried from step to step, as it is in use. One that grows with the
    text would grow with every step, so such a model reads the same windows each by itself.
    """
    with torch.device("meta"):
        stream = not state_grows(build(name))
    return load_recipe(
        RECIPE,
        {
            "model.name": name,
            "data.train": [str(text.training.path)],
            "data.validation": [str(text.held_out.path)],
            "data.seq_len": size.seq_len,
            "data.order": "stream" if stream else "epoch",
            "optimizer.warmup_steps": size.warmup_steps,
            "train.steps": size.steps,
            "train.batch_size": size.batch_size,
            "train.precision": precision,
            "train.seed": seed,
            "train.eval_every": size.eval_every,
            "train.eval_batches": 1000,  # all of the held-out text
            "train.save_every": 0,
            "train.log_every": max(size.steps // 100, 1),
            "train.device": "cpu",
        },
    )


def measure(name: str, run: RunResult, text: DemoText, size: Size, seed: int) -> dict[str, Any]:
    """Everything about one trained model, as it goes into the results."""
    protocols = [Protocol(kind="windows", seq_len=size.seq_len)]
    if not state_grows(run.model):
        protocols.append(Protocol(kind="carried", seq_len=CARRIED_STRIDE))
    found = {}
    for protocol in protocols:
        result = evaluate_text(
            run.model,
            ByteTokenizer(),
            text.held_out.path,
            protocol=protocol,
            batch_size=32,
            source=name,
            seed=seed,
        )
        found[protocol.kind] = describe_evaluation(result)
    rates = [row["tokens_per_s"] for row in run.metrics if row["kind"] == "train"]
    return {
        "name": name,
        "architecture": run.model.registry_name,
        "parameters": run.model.num_parameters(),
        "state_bytes": run.model.state_bytes(1, size.seq_len),
        "state_grows": state_grows(run.model),
        "train_tokens": run.step * size.batch_size * size.seq_len,
        "train_tokens_per_s": round(statistics.median(rates), 1),
        "train_seconds": run.metrics[-1]["elapsed"],
        "held_out": found,
        "sample": write_sample(run.model, size.sample_tokens, seed),
    }


def state_grows(model: LanguageModel) -> bool:
    """Whether the state is larger after more tokens, as a cache of keys and values is."""
    return model.state_bytes(1, 2) > model.state_bytes(1, 1)


def write_sample(model: LanguageModel, tokens: int, seed: int) -> dict[str, Any]:
    """Text written by a model, with all that decides it."""
    session = Session(model, ByteTokenizer(), seed)
    session.feed(PROMPT)
    text = "".join(session.generate(tokens, SAMPLING)) + session.flush()
    return {
        "prompt": PROMPT,
        "text": text,
        "seed": seed,
        "temperature": SAMPLING.temperature,
        "top_p": SAMPLING.top_p,
        "dtype": "float32",
        "context": model.describe_reading(tokens + len(PROMPT)),
    }


def describe_evaluation(result: EvaluationResult) -> dict[str, Any]:
    """The figures of an evaluation and its protocol."""
    return {
        "bits_per_byte": result.bits_per_byte,
        "bytes": result.bytes,
        "protocol": result.protocol,
        "dtype": result.dtype,
        "data_sha256": result.data_sha256,
        "wall_seconds": result.wall_seconds,
    }


def describe_text(file: TextFile) -> dict[str, Any]:
    """A text file by name, size and hash."""
    return {
        "file": f"text/{file.path.name}",
        "topics": list(file.topics),
        "bytes": len(file.data),
        "sha256": file.sha256,
    }


def prepare_folder(folder: Path) -> None:
    """Make the demo's folder; an older demo there goes, files of others stay.

    Raises:
        InputError: it exists and was not made by the demo, or cannot be made.
    """
    marker = folder / MARKER
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        made_by = read_json(marker, InputError) if marker.is_file() else None
        if not isinstance(made_by, dict) or made_by.get("format") != FORMAT:
            raise InputError(
                f"{folder}: exists and was not made by palimpsest demo; choose another folder "
                "(--out FOLDER)"
            )
    try:
        for name in OURS[1:]:
            old = folder / name
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise InputError(f"{folder}: cannot be made ({failure.strerror})") from failure
    write_json(marker, {"format": FORMAT, "made_by": "palimpsest demo"})


def has_bf16_instructions() -> bool:
    """Whether this CPU computes in bfloat16 itself; emulated, it is slower than fp32.

    An older torch cannot tell, and neither can one on a processor of another family: then no.
    """
    capabilities = _cpu_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def cpu_name() -> str:
    """The processor in words, as far as it can be told."""
    name = _cpu_capabilities().get("cpu_name")
    return str(name or platform.processor() or platform.machine())


def _cpu_capabilities() -> dict[str, Any]:
    """What torch knows of the processor; nothing where it is too old to be asked."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    return {} if ask is None else dict(ask())


def _say(console: Console, text: str) -> None:
    """A line as it stands: no markup, no folding of paths and hashes."""
    console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
