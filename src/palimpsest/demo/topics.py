"""English text that needs no download: the topics of Python's own ``help()``.

The text belongs to the Python that runs the demo and differs a little between its versions, so its
hash is part of every result.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import InputError
from palimpsest.files import write_text

__all__ = [
    "HELD_OUT",
    "DemoText",
    "TextFile",
    "documentation_topics",
    "rule",
    "split_topics",
    "write_demo_text",
]

# chosen by name, before any training: whole chapters of running text about one matter each
HELD_OUT = ("assignment", "comparisons", "execmodel", "import")

_PARAGRAPH = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class TextFile:
    """A text of the demo, as written to a file.

    Attributes:
        path: the file.
        data: its bytes.
        topics: the names of the topics in it.
    """

    path: Path
    data: bytes
    topics: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """As ``sha256sum`` prints it."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class DemoText:
    """What the models are trained on, and what they never see."""

    training: TextFile
    held_out: TextFile


def documentation_topics() -> dict[str, str]:
    """The topics of this Python's ``help()``, by name.

    Raises:
        InputError: a Python without them (some distributions leave them out).
    """
    try:
        # by name: type checkers know the module as a dict of str only in some versions
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise InputError(
            "this Python has no pydoc_data.topics, the text of the demo; use another Python, or "
            "train on a text of your own: palimpsest train gpnm-1m --data FILE"
        ) from None
    return dict(topics)


def rule(held_out: Sequence[str] = HELD_OUT) -> str:
    """What :func:`split_topics` does, in a sentence."""
    return (
        "topics of pydoc_data.topics from the longest to the shortest, without paragraphs that an "
        "earlier one has, and without topics of which less than half is left; then in order of "
        f"name, joined by an empty line; held out: {', '.join(held_out)}"
    )


def split_topics(
    topics: Mapping[str, str], held_out: Sequence[str] = HELD_OUT
) -> tuple[dict[str, str], dict[str, str]]:
    """The topics to train on and those held out, by :func:`rule`.

    Topics repeat each other at length ("specialnames" holds all of "customization",
    "attribute-access" and others), so without the rule held-out text would have been trained on.

    Raises:
        InputError: nothing is left on one side.
    """
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        text = topics[name].strip("\n")
        paragraphs = [p.strip("\n") for p in _PARAGRAPH.split(text)]
        left = "\n\n".join(p for p in paragraphs if p not in seen)
        if left and 2 * len(left) >= len(text):
            kept[name] = left + "\n"
            seen.update(paragraphs)
    names = sorted(kept)
    training = {name: kept[name] for name in names if name not in held_out}
    apart = {name: kept[name] for name in names if name in held_out}
    if not training or not apart:
        raise InputError(
            f"pydoc_data.topics of this Python has {len(topics)} topics, {len(apart)} of them "
            f"among the held-out {', '.join(held_out)}: the demo needs both kinds"
        )
    return training, apart


def write_demo_text(
    topics: Mapping[str, str], folder: Path, held_out: Sequence[str] = HELD_OUT
) -> DemoText:
    """Split the topics and write ``training.txt`` and ``held-out.txt``.

    Raises:
        InputError: nothing is left on one side.
        StorageError: the files cannot be written.
    """
    parts = split_topics(topics, held_out)
    files = []
    for name, part in zip(("training.txt", "held-out.txt"), parts, strict=True):
        text = "\n".join(part.values())
        write_text(folder / name, text)
        files.append(TextFile(folder / name, text.encode("utf-8"), tuple(part)))
    return DemoText(*files)
