"""The Markdown pages of the repository and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WRITTEN = sorted(p for p in DOCS.rglob("*.md") if not {"_build", "api"} & set(p.parts))
PAGES = sorted([*ROOT.glob("*.md"), *WRITTEN])


def blocks(text: str, *languages: str) -> list[str]:
    """The code of every block in one of ``languages``, in order."""
    return [code for _, code in tagged_blocks(text, *languages)]


def tagged_blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """(language, code) of every block in one of ``languages``, in order."""
    pattern = rf"^```({'|'.join(languages)})\n(.*?)^```"
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)
