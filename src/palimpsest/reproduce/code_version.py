"""A hash of the code that a measurement runs, so that results of other code are not mixed in.

It is taken over the syntax of the modules that the measurement imports, directly or not, without
comments and docstrings: another architecture in the package, or a new command, changes nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["code_version", "modules_used"]

PACKAGE = "palimpsest"
ROOT = Path(__file__).resolve().parent.parent


def code_version(*modules: str) -> str:
    """The hash over some modules of the package, all that they import of it, and torch's version.

    Args:
        modules: names such as "palimpsest.models.gpn".
    """
    digest = hashlib.sha256(f"torch {torch.__version__}".encode())
    for name in sorted(modules_used(*modules)):
        digest.update(f"\n{name}\n{_syntax(name)}".encode())
    return digest.hexdigest()


def modules_used(*modules: str) -> set[str]:
    """The given modules and every module of the package that they lead to."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports(name)
    return found


@functools.cache
def _file(module: str) -> Path | None:
    """The source of a module of the package, or None where it is none."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    base = ROOT.joinpath(*parts[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@functools.cache
def _tree(module: str) -> ast.Module:
    path = _file(module)
    assert path is not None, module
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _syntax(module: str) -> str:
    tree = ast.parse(ast.unparse(_tree(module)))  # a copy, since docstrings are taken out
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    return tuple(_targets(_tree(module)))


def _targets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _file(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _file(node.module):
            for alias in node.names:
                yield _home(node.module, alias.name)


@functools.cache
def _home(module: str, name: str) -> str:
    """The module that ``from module import name`` really reads.

    A package's ``__init__`` that passes a name on is looked through, so that a part does not
    depend on all of its neighbours.
    """
    if _file(f"{module}.{name}"):
        return f"{module}.{name}"
    path = _file(module)
    if path is not None and path.name == "__init__.py":
        for node in _tree(module).body:
            if isinstance(node, ast.ImportFrom) and node.module and _file(node.module):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _home(node.module, alias.name)
    return module
