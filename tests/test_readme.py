"""The README: what it shows is run, what it lists is compared with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import palimpsest
from tests.pages import PAGES, ROOT, blocks

README = ROOT / "README.md"


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks(README.read_text(encoding="utf-8"), "bash")[0]
    commands = [line.split("#")[0].strip() for line in first.splitlines()]
    assert commands == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    targets += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if "://" not in target and not target.startswith("api/"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, f"{page.name}: {sorted(named - targets)}"


def test_the_changelog_knows_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{palimpsest.__version__}]" in changes
