"""``palimpsest data prepare``: text files to a folder of token shards."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from palimpsest.errors import InputError, counted
from palimpsest.text import load_tokenizer, prepare_wikitext, read_documents, write_shards

__all__ = ["PrepareArgs", "run"]

PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class PrepareArgs:
    """Tokenise text once, into a folder that --data and --validation of training take.

    One document is in memory at a time, so that the text may be larger than the memory. Token
    shards are not split: make a second folder for the validation text.

    Examples:

    palimpsest data prepare books/ --tokenizer tokenizer.json --out books.shards

    zcat dump.jsonl.gz | palimpsest data prepare /dev/stdin --tokenizer bytes --out dump.shards
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Text files, folders or a pipe (.txt, .jsonl, .json, each also .gz)."""

    tokenizer: str
    """"bytes", a tokenizer file, or a folder that holds one."""

    out: Path
    """The folder to write; it must not exist."""

    field: str = "text"
    """The field of a JSON object that holds the text."""

    prepare: Literal["none", "wikitext"] = "none"
    """wikitext: the non-empty lines as one document."""


def run(args: PrepareArgs) -> int:
    """Carry out the command; 0 when done."""
    if not args.files:
        raise InputError("data prepare: name at least one file, folder or pipe")
    if args.out.exists():
        raise InputError(f"--out {args.out}: exists already; choose another folder, or remove it")
    try:
        tokenizer = load_tokenizer(args.tokenizer)
    except ImportError as failure:
        raise InputError(f"--tokenizer {args.tokenizer}: {failure}") from failure
    documents = read_documents(args.files, field=args.field)
    if args.prepare == "wikitext":
        documents = iter([prepare_wikitext(documents)])
    corpus = write_shards(args.out, documents, tokenizer, progress=_Progress())
    changed = corpus.inexact_documents
    note = "" if not changed else f"; the tokenizer changed the text of {changed:,} of them"
    print(
        f"written: {args.out}: {counted(corpus.num_documents, 'document')}, "
        f"{counted(corpus.num_tokens, 'token')} for {counted(corpus.num_bytes, 'byte')} of text"
        f"{note}"
    )
    return 0


class _Progress:
    """A line every few seconds; how much is left is not known of pipes and compressed files."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._bytes = 0

    def __call__(self, num_bytes: int) -> None:
        self._bytes += num_bytes
        now = time.monotonic()
        if now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        rate = self._bytes / (now - self._start)
        with suppress(OSError, ValueError, AttributeError):  # a closed stderr ends no work
            print(
                f"tokenising: {self._bytes:,} bytes of text so far, {rate:,.0f} bytes/s",
                file=sys.stderr,
                flush=True,
            )
