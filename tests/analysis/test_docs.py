"""The tables of taps in docs/analysis.md are the models' own; its examples run.

``python -m tests.analysis.test_docs`` writes the tables anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import palimpsest
from palimpsest import analysis
from palimpsest.taps import Tap
from tests.contract.configs import CONFIGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analysis.md"
TABLES = re.compile(r"(<!-- taps:[^\n]*-->\n).*?(<!-- end of taps -->)", re.DOTALL)


def rows_of(name: str) -> dict[str, Tap]:
    """The taps of all configurations of an architecture, layers taken together."""
    found: dict[str, Tap] = {}
    for fields in CONFIGS[name].values():
        for tap, about in analysis.taps(palimpsest.build(name, **fields)).items():
            key = re.sub(r"^layers\.\d+\.", "layers.*.", tap)
            if key not in found or about.cheap:  # GPN: the last layer's output is the state
                found[key] = about
    return found


def tables() -> str:
    lines: list[str] = []
    for name in palimpsest.list_models():
        lines += [f"\n### {name}\n", "| tap | shape | | what it is |", "| :-- | :-- | :-- | :-- |"]
        for tap, about in rows_of(name).items():
            marks = ["" if about.cheap else "if named", "replaceable" if about.replaceable else ""]
            cells = (f"`{tap}`", about.shape, ", ".join(m for m in marks if m), about.doc)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


def test_the_tables_are_the_models() -> None:
    found = TABLES.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == found[1] + tables() + found[2], (
        "docs/analysis.md: run python -m tests.analysis.test_docs"
    )


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 5
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), names)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLES.sub(lambda m: m[1] + tables() + m[2], text), encoding="utf-8")
