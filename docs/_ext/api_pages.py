"""The API reference: one page per public package, written from ``__all__`` before each build."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

CODE = re.compile(r"(`[^`]*`{1,2}|`{2}[^`]*`{2})")
INTERNAL = {"cli", "demo"}  # packages behind commands


def public_packages() -> list[ModuleType]:
    """``palimpsest`` and every package below it that has an ``__all__``."""
    root = importlib.import_module("palimpsest")
    found = [root]
    for entry in pkgutil.walk_packages(root.__path__, "palimpsest."):
        parts = entry.name.split(".")[1:]
        if entry.ispkg and not INTERNAL & set(parts):
            module = importlib.import_module(entry.name)
            if getattr(module, "__all__", None):
                found.append(module)
    return found


def homes(modules: list[ModuleType]) -> dict[int, str]:
    """For each object, the one package whose page describes it: the deepest that exports it."""
    found: dict[int, str] = {}
    for module in sorted(modules, key=lambda module: module.__name__.count(".")):
        for name in module.__all__:
            found[id(getattr(module, name))] = module.__name__
    return found


def page(module: ModuleType, homes: dict[int, str]) -> str:
    """The page of one package: its docstring, then every name of ``__all__``."""
    lines = [f"# `{module.__name__}`", "", "```{eval-rst}", f".. automodule:: {module.__name__}"]
    lines += ["   :no-members:", "   :no-index:", ""]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        full = f"{module.__name__}.{name}"
        if callable(value) and homes[id(value)] != module.__name__:
            home = homes[id(value)]
            role = "class" if inspect.isclass(value) else "func"
            lines += [f"``{full}``: see :py:{role}:`{home}.{name}`.", ""]
        elif inspect.ismodule(value):
            lines += [f"``{full}``: a module.", ""]
        elif inspect.isclass(value):
            kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
            lines += [f".. {kind}:: {full}", ""]
        elif callable(value):
            lines += [f".. autofunction:: {full}", ""]
        else:
            lines += [f".. py:data:: {full}", "", f"   {type(value).__name__}", ""]
    return "\n".join([*lines, "```", ""])


def write_pages(folder: Path) -> None:
    """Write ``index.md`` and the pages into ``folder``; files already equal are left alone."""
    folder.mkdir(exist_ok=True)
    modules = public_packages()
    where = homes(modules)
    texts = {f"{module.__name__}.md": page(module, where) for module in modules}
    index = ["# API reference", "", "Every public name, from its docstring.", "", "```{toctree}"]
    index += [":maxdepth: 1", "", *[module.__name__ for module in modules], "```", ""]
    texts["index.md"] = "\n".join(index)
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for ``help()``: |k|, a * b and name_ are meant as they stand."""
    if any(line.rstrip().endswith("::") or ">>>" in line for line in lines):
        return
    for i, line in enumerate(lines):
        parts = CODE.split(line)
        parts[::2] = [re.sub(r"[|*]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[i] = "".join(parts)
    for i in range(len(lines) - 1, 0, -1):  # an indented paragraph needs an empty line around it
        above, here = lines[i - 1], lines[i]
        apart = above.startswith(" ") != here.startswith(" ") and above.strip() and here.strip()
        if apart and (above.startswith(" ") or not above.rstrip().endswith(":")):
            lines.insert(i, "")


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _escape, priority=400)  # before napoleon's 500
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "api"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
