"""What the README shows is run, what it lists is compared with the package.

``python -m tests.test_readme`` prints the table of presets as it should be.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TABLE = re.compile(r"<!-- presets:[^\n]*-->\n(.*?)<!-- end of presets -->", re.DOTALL)
SMALLER = {  # what is added to a command of the README, so that it takes seconds
    "train --task": "--steps 2 --batch-size 2 --set train.eval_batches=1",
    "inspect": "--max-tokens 200",
    "bench": "--rounds 1 --batch 2 --length 16",
}
LONG = 1024  # tokens after which a growing state is weighed


def blocks(language: str) -> Iterator[str]:
    return (m[1] for m in re.finditer(rf"```{language}\n(.*?)```", README, re.DOTALL))


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


def test_the_table_of_presets_is_the_registry() -> None:
    found = TABLE.search(README)
    assert found is not None, "README.md has no table of presets"
    assert found[1] == presets_table(), (
        f"README.md, Models and presets: put this table there\n\n{presets_table()}"
    )


def test_the_tours_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python tour from top to bottom, then the commands, which use its text."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = list(blocks("python"))
    assert len(snippets) >= 5
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("palimpsest ")]
    assert {command.split()[1] for command in commands} >= {"train", "eval", "generate", "bench"}
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        for start, more in SMALLER.items():
            if words[: len(start.split())] == start.split():
                words += more.split()
        assert main(words) == 0, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, f"{page.name}: {sorted(named - targets)}"


def test_the_changelog_knows_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{palimpsest.__version__}]" in changes


if __name__ == "__main__":
    print(presets_table(), end="")
