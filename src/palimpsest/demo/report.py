"""The demo's results as tables in the terminal and as Markdown, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

__all__ = ["introduction", "markdown", "next_steps", "show_results", "show_sample"]

MODEL_COLUMNS = (
    "model",
    "params",
    "state (B)",
    "train tokens",
    "windowed",
    "carried",
    "train tok/s",
)
YARDSTICK_COLUMNS = ("compressor", "alone", "after the training text")


def introduction(results: dict[str, Any], folder: Path) -> str:
    """What is about to be done, with what, on what."""
    software, text, size = results["software"], results["text"], results["training"]
    tokens = size["steps"] * size["batch_size"] * size["seq_len"]
    lines = [
        f"palimpsest {software['palimpsest']}, commit {software['commit'] or 'unknown'}",
        f"Python {software['python']}, torch {software['torch']}, {results['cpu']}, "
        f"{software['threads']} threads, {results['precision']}, seed {results['seed']}",
        f"text: {text['source']} (the text of another Python differs a little)",
    ]
    for name in ("training", "held_out"):
        about = text[name]
        lines.append(
            f"  {name.replace('_', ' ')}: {folder / about['file']}, {about['bytes']:,} bytes, "
            f"sha256 {about['sha256']}"
        )
    lines.append(
        f"training of each model: {size['steps']} steps of {size['batch_size']} × "
        f"{size['seq_len']} bytes, {tokens / text['training']['bytes']:.1f} times the training text"
    )
    return "\n".join(lines)


def show_results(results: dict[str, Any], console: Console) -> None:
    """Print both tables with what makes their figures mean something."""
    console.print(escape(_about_models(results)), highlight=False)
    table = Table(pad_edge=False)  # all of it in 80 columns
    for column in MODEL_COLUMNS:
        name = column == "model"
        table.add_column(column, justify="left" if name else "right", no_wrap=name)
    for row in _model_rows(results):
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(escape(_about_yardsticks(results)), highlight=False)
    table = Table()
    for column in YARDSTICK_COLUMNS:
        table.add_column(column, justify="left" if column == "compressor" else "right")
    for row in _yardstick_rows(results):
        table.add_row(*map(escape, row))
    console.print(table)


def show_sample(model: dict[str, Any], console: Console) -> None:
    """Print the text that a model wrote, its prompt in bold."""
    sample = model["sample"]
    body = Text(sample["prompt"], style="bold")
    body.append(_printable(sample["text"]), style="not bold")
    title, _, window = _sample_title(model).partition("; ")
    panel = Panel(body, title=title, title_align="left", subtitle=window or None)
    console.print(panel)


def next_steps(folder: Path, plot: Path | None, results: dict[str, Any]) -> str:
    """What was written where, and commands to try."""
    run = shlex.quote(str(folder / results["models"][0]["name"]))
    held_out = shlex.quote(str(folder / results["text"]["held_out"]["file"]))
    lines = [
        f"done in {results['wall_seconds']:.0f} s. Written:",
        f"  {folder / 'results.md'}, {folder / 'results.json'}"
        + (f", and the plot {plot}" if plot else ""),
        "",
        "Try next:",
        f'  palimpsest generate {run} --prompt "The class " --save-session story.session',
        f"  palimpsest generate {run} --session story.session     (goes on where it stopped)",
        f"  palimpsest eval {run} --text {held_out} --protocol carried",
        f"  palimpsest train --resume {run} --steps {2 * results['training']['steps']}",
        "  palimpsest train gpnm-1m --data YOUR-TEXT.txt --out runs/mine     (your own text)",
        "  palimpsest train --model gpnm-12m --tokenizer tokenizer.json --data FOLDER     (larger)",
        "  palimpsest info     (all models and presets)",
    ]
    if results["quick"]:
        lines.insert(
            1,
            "  these are the figures and texts of a few steps: the texts are not readable yet; "
            "without --quick the models read about 1 MB and write words",
        )
    return "\n".join(lines)


def markdown(results: dict[str, Any], plot: Path | None) -> str:
    """``results.md``."""
    text, software = results["text"], results["software"]
    command = "palimpsest demo" + (" --quick" if results["quick"] else "")
    parts = [
        "# Demo",
        f"`{command} --seed {results['seed']} --precision {results['precision']}`, palimpsest "
        f"{software['palimpsest']}, commit {software['commit'] or 'unknown'}, Python "
        f"{software['python']}, torch {software['torch']}, {software['threads']} threads of "
        f"{results['cpu']}; {results['wall_seconds']:.0f} s in all.",
        f"Text: {text['source']}. Rule: {text['rule']}.",
        _table(
            ("file", "topics", "bytes", "sha256"),
            [
                (p["file"], str(len(p["topics"])), f"{p['bytes']:,}", f"`{p['sha256']}`")
                for p in (text["training"], text["held_out"])
            ],
            left=("file", "sha256"),
        ),
        "## Models",
        _about_models(results),
        _table(MODEL_COLUMNS, _model_rows(results), left=("model",)),
        "## Compressors",
        _about_yardsticks(results),
        _table(YARDSTICK_COLUMNS, _yardstick_rows(results), left=("compressor",)),
    ]
    if plot is not None:
        parts.append(f"![bits per byte over the training text read]({plot.name})")
    parts.append("## Samples")
    for model in results["models"]:
        body = model["sample"]["prompt"] + _printable(model["sample"]["text"])
        fence = "`" * 3
        while fence in body:
            fence += "`"
        parts += [f"{_sample_title(model)}:", f"{fence}text\n{body}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def _about_models(results: dict[str, Any]) -> str:
    size, first = results["training"], results["models"][0]["held_out"]
    training = results["text"]["training"]["bytes"]
    passes = results["models"][0]["train_tokens"] / training
    return (
        f"Held-out bits per byte, lower is better. windowed: {first['windows']['protocol']}. "
        f"carried: {first['carried']['protocol']}. Every model: {size['steps']} batches "
        f"of {size['batch_size']} × {size['seq_len']} bytes ({passes:.1f} times the training "
        "text), the state carried from batch to batch and its gradient cut there, seed "
        f"{results['seed']}, trained in {results['precision']}, measured in "
        f"{first['windows']['dtype']}.{_about_growing(results)}"
    )


def _about_growing(results: dict[str, Any]) -> str:
    names = [m["name"] for m in results["models"] if m["state_grows"]]
    if not names:
        return ""
    return (
        f" Except {', '.join(names)}: its state grows with the text, so it reads as many windows "
        "one by one in a random order, from an empty state each, and is not measured carried; its "
        f"state is given after {results['training']['seq_len']} bytes. All get one learning rate, "
        "tuned for none of them here."
    )


def _about_yardsticks(results: dict[str, Any]) -> str:
    parameters = results["models"][0]["parameters"]
    return (
        "The same held-out text, bits per byte at the highest setting. alone: compressed by "
        "itself. after the training text: (training + held out) - training, so the compressor may "
        "look back at the training text as far as its window reaches (gzip 32 kB, bzip2 900 kB, xz "
        f"all of it). A model's {parameters:,} parameters are not counted as part of a text."
    )


def _model_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            m["name"],
            f"{m['parameters']:,}",
            f"{m['state_bytes']:,}",
            f"{m['train_tokens'] / 1e6:.2f} M",
            f"{m['held_out']['windows']['bits_per_byte']:.3f}",
            f"{m['held_out']['carried']['bits_per_byte']:.3f}"
            if "carried" in m["held_out"]
            else "–",
            f"{m['train_tokens_per_s']:,.0f}",
        )
        for m in results["models"]
    ]


def _yardstick_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (y["name"], f"{y['bits_alone']:.3f}", f"{y['bits_after_training']:.3f}")
        for y in results["yardsticks"]
    ]


def _sample_title(model: dict[str, Any]) -> str:
    sample = model["sample"]
    return (
        f"{model['name']}, temperature {sample['temperature']}, top-p {sample['top_p']}, "
        f"seed {sample['seed']}, {sample['dtype']}"
        + (f"; {sample['context']}" if sample.get("context") else "")
    )


def _printable(text: str) -> str:
    """Control characters, which a model may write, as U+FFFD; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]], left: tuple[str, ...]) -> str:
    rule = (":--" if column in left else "--:" for column in columns)
    lines = [columns, tuple(rule), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
