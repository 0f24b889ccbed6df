"""The documentation: its examples run, its table of presets is the registry's.

``python -m tests.test_docs`` prints the table of presets as it should be.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.cli.main import main
from tests.pages import DOCS, ROOT, WRITTEN, tagged_blocks

# In this order and in one folder: the quick start makes the text and the runs of the others.
EXECUTED = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "quickstart.md",
    DOCS / "howto" / "train.md",
    DOCS / "howto" / "generate.md",
    DOCS / "evaluation.md",
    DOCS / "inspect.md",
    DOCS / "reproduce.md",
    *sorted((DOCS / "models").glob("*.md")),
]
SMALLER = {  # options added to a command of a page, so that it takes seconds
    "train --task": "--steps 2 --batch-size 2 --set train.eval_batches=1",
    "eval gpnm-tiny throughput": "--rounds 1",
    "inspect": "--max-tokens 200",
    "bench": "--rounds 1 --batch 2 --length 16",
}
PRESETS = re.compile(r"<!-- presets:[^\n]*-->\n(.*?)<!-- end of presets -->", re.DOTALL)
LONG = 1024  # tokens after which a growing state is measured


def presets_table() -> str:
    lines = [
        "| preset | architecture | parameters | state of one text | what it is |",
        "| :-- | :-- | --: | --: | :-- |",
    ]
    for name, preset in palimpsest.list_presets().items():
        with torch.device("meta"):
            model = palimpsest.build(name)
        length = min(LONG, model.max_length or LONG)
        size = f"{model.state_bytes(1, length):,} B"
        if model.state_bytes(1, length) != model.state_bytes(1, 1):
            size += f" after {length:,} tokens"
        cells = (f"`{name}`", f"`{preset.model}`", f"{model.num_parameters():,}", size, preset.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def run_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words[0] == "palimpsest", f"a bash block holds commands of palimpsest only: {line}"
    words = words[1:]
    for start, more in SMALLER.items():
        if words[: len(start.split())] == start.split():
            words += more.split()
    assert main(words) == 0, line


def test_the_table_of_presets_is_the_registry() -> None:
    found = PRESETS.search((DOCS / "models" / "index.md").read_text(encoding="utf-8"))
    assert found is not None, "docs/models/index.md has no table of presets"
    assert found[1] == presets_table(), (
        f"docs/models/index.md, Presets: put this table there\n\n{presets_table()}"
    )


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python and shell block of the README and of the how-to pages, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    commands: set[str] = set()
    for page in EXECUTED:
        names: dict[str, object] = {"__name__": page.stem}
        for language, code in tagged_blocks(page.read_text(encoding="utf-8"), "python", "bash"):
            if language == "python":
                exec(compile(code, str(page), "exec"), names)
                continue
            for line in code.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("make "):
                    run_command(line)
                    commands.add(line.split()[1])
    assert commands >= {"train", "eval", "generate", "inspect", "bench", "info", "match"}


def test_every_page_has_a_title_and_is_in_the_menu() -> None:
    menus = "\n".join(p.read_text(encoding="utf-8") for p in WRITTEN if p.name == "index.md")
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# "), f"{page.name} starts without a title"
        if page.name != "index.md":
            entry = rf"^(\w+/)?{re.escape(page.stem)}$"
            assert re.search(entry, menus, re.MULTILINE), f"{page.name} is in no toctree"


if __name__ == "__main__":
    print(presets_table(), end="")
