"""Links to files of the repository that are not pages of the site.

CONTRIBUTING.md and CHANGELOG.md become pages; other files outside docs/ are shown as text.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}


def redirect(text: str, docname: str) -> str:
    """``text`` with every link out of docs/ replaced; ``docname`` is the page it stands on."""
    folder = posixpath.dirname(docname)
    if docname in {"contributing", "changelog"}:
        folder = ".."  # written in the root of the repository

    def replace(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        here = posixpath.dirname(docname) or "."
        if path in PAGES:
            return f"[{words}]({posixpath.relpath(PAGES[path], here)}{anchor})"
        if path.startswith("docs/") and path.endswith(".md"):
            return f"[{words}]({posixpath.relpath(path[5:], here)}{anchor})"
        if path.startswith("docs/figures/"):
            return match[0]
        return words if "`" in words or words != target else f"`{path}`"

    return LINK.sub(replace, text)


def _read(app: Any, docname: str, source: list[str]) -> None:
    root = app.srcdir.parent
    if docname in {"contributing", "changelog"}:
        source[0] = (root / f"{docname.upper()}.md").read_text(encoding="utf-8")
    if not docname.startswith("api/"):
        source[0] = redirect(source[0], docname)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
