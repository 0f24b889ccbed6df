"""``palimpsest inspect``: a page on which one can look at a model reading a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray

from palimpsest.cli.model_source import ModelSource, find_model, pick_device, set_window
from palimpsest.cli.output import say
from palimpsest.errors import InputError, counted
from palimpsest.evaluation import check_tokenizer
from palimpsest.evaluation.progress import track
from palimpsest.inspect import Inspection, collect, write_inspection
from palimpsest.inspect.run import check_folder
from palimpsest.inspect.tokens import visible
from palimpsest.text import Tokenizer, read_documents

__all__ = ["InspectArgs", "run"]


@dataclass(frozen=True)
class InspectArgs:
    """Write a page that shows a model reading a text: surprise, predictions, gates, memory, state.

    The folder gets index.html, which opens in any browser and needs no network, and the figures
    as PNG with their numbers as JSON.

    Example:

    palimpsest inspect runs/book --text chapter.txt --compare runs/other
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    text: Path
    """What to read: a file or folder (.txt, .jsonl, .json, each also .gz)."""

    compare: str | None = None
    """A second model, shown beside the first on the same text."""

    out: Path | None = None
    """The folder to write. By default the model's name with "-inspect" behind it, here."""

    max_tokens: int = 20_000
    """Read only so many tokens of the text."""

    window: int | None = None
    """Read in windows of so many tokens that overlap by half, each from an empty state. By default
    the state is carried through the text: attention then reads a sliding window of the length that
    the model was trained on, and a model with learned positions reads overlapping windows of that
    length. 0: no limit, where the model can."""

    field: str = "text"
    """The field of a JSON object that holds the text."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default each model's own."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""


def run(args: InspectArgs) -> int:
    """Carry out the command; 0 when done."""
    sources = [find_model(name) for name in (args.model, args.compare) if name is not None]
    labels = _labels(sources)
    out = args.out or Path(f"{_run_folder(sources[0]).resolve().name}-inspect")
    if args.max_tokens < 1:
        raise InputError(f"--max-tokens {args.max_tokens}: must be at least 1")
    check_folder(out)
    tokenizers = [source.tokenizer(args.tokenizer) for source in sources]
    texts = [document.text for document in read_documents(args.text, field=args.field)]
    kept = _shorten(texts, tokenizers[0], args.max_tokens)
    shortened = sum(map(len, kept)) < sum(map(len, texts))
    found = [
        _look(source, label, tokenizer, kept, shortened, args)
        for source, label, tokenizer in zip(sources, labels, tokenizers, strict=True)
    ]
    page = write_inspection(found, out, title=f"{' and '.join(labels)} reading {args.text.name}")
    for inspection in found:
        print(
            f"{inspection.label}: {counted(inspection.tokens, 'token')}, "
            f"{inspection.mean_surprise:.3f} bits per token. {inspection.facts['reading']}"
        )
    if shortened:
        print(
            "--max-tokens: only the start was read, "
            f"{counted(found[0].tokens, 'token')}; a larger value reads more"
        )
    if not any(page.parent.glob("figures/*.png")):
        print("no PNG files: they need matplotlib (pip install 'palimpsest-lm[plot]')")
    say(f"written: {page}")
    return 0


def _look(
    source: ModelSource,
    label: str,
    tokenizer: Tokenizer,
    texts: list[str],
    shortened: bool,
    args: InspectArgs,
) -> Inspection:
    model = source.load(pick_device(args.device))
    if args.window is not None and model.context_limit != "none":
        set_window(model, args.window)
    check_tokenizer(model, tokenizer, source.trained_with)
    documents: list[NDArray[np.int32]] = [tokenizer.encode_array(text) for text in texts]
    named = visible(str(args.text)) + (" (its beginning)" if shortened else "")
    facts = {"text": named, "tokenizer": tokenizer.name}
    if source.step is not None:
        facts["step"] = str(source.step)
    if source.seed is not None:
        facts["seed"] = str(source.seed)
    total = sum(map(len, documents))
    with track(f"reading ({label})", total) as advance:
        return collect(
            model,
            tokenizer,
            documents,
            label=label,
            facts=facts,
            window=args.window,
            predict=source.predict,
            advance=advance,
        )


def _shorten(texts: list[str], tokenizer: Tokenizer, most: int) -> list[str]:
    """The texts up to so many tokens, cut between two characters, so that models with different
    tokenizers read the same."""
    kept, left = [], most
    for text in texts:
        ids = tokenizer.encode_array(text)
        if len(ids) > left:
            # a character whose bytes are cut off at the end is left out
            text = tokenizer.decode(ids[:left]).rstrip("\ufffd")
            ids = ids[:left]
        if text:
            kept.append(text)
        left -= len(ids)
        if left <= 0:
            break
    return kept


def _run_folder(source: ModelSource) -> Path:
    folder = source.folder
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


def _labels(sources: list[ModelSource]) -> list[str]:
    names = [_run_folder(source).resolve().name for source in sources]
    if len(set(names)) < len(names):
        names = [
            f"{name}, step {source.step}" if source.step is not None else source.named
            for name, source in zip(names, sources, strict=True)
        ]
    if len(set(names)) < len(names):
        names = [f"{name} ({letter})" for name, letter in zip(names, "AB", strict=False)]
    return [visible(name) for name in names]
