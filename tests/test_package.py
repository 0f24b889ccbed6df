"""The package as a whole: what importing it costs, who imports whom, how long files are."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import palimpsest

ROOT = Path(palimpsest.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST_FILE = 400  # lines; the house aims at 100 to 350

# from the ground up: a module imports from its own floor or from those below
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "_version"),
    ("arguments", "digests", "files", "heap", "locks", "picture", "provenance", "streams", "taps"),
    ("ops",),
    ("state",),
    ("layers",),
    ("models",),
    ("text", "tasks"),
    ("training", "evaluation", "generation", "analysis"),
    ("loading",),
    ("reproduce", "demo", "compare", "inspect"),
    ("interop",),
    ("cli", "__main__"),
)
FLOOR_OF = {part: height for height, floor in enumerate(FLOORS) for part in floor}
NAME_NO_ARCHITECTURE = ("training", "evaluation", "generation", "analysis", "text", "tasks")

# packages that only some users have, or that take long to import
NOT_AT_IMPORT = (
    "numba", "llvmlite", "matplotlib", "rich", "tyro", "tokenizers", "sentencepiece",
    "transformers", "pandas", "scipy",
)  # fmt: skip
SECONDS_TO_IMPORT = 0.5  # beyond torch and numpy; far more than it takes, far less than numba


def module_name(path: Path) -> str:
    parts = ("palimpsest", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """ "palimpsest.models.gpn" → "models"; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file imports, wherever in the file, with the line."""
    modules = {module_name(p) for p in FILES}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if (name := full if full in modules else node.module) in modules:
                    yield str(name), node.lineno


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_go_down(path: Path) -> None:
    own = part_of(module_name(path))
    if own == "":
        pytest.skip("the package's own front door")
    assert own in FLOOR_OF, f"{own!r} is on no floor: add it to FLOORS in {Path(__file__).name}"
    for module, line in imports_of(path):
        other = part_of(module)
        assert other, f"{label(path)}:{line} imports the package's front door, a cycle"
        assert other in FLOOR_OF, module
        assert FLOOR_OF[other] <= FLOOR_OF[own], f"{label(path)}:{line} imports {module} above it"
        if FLOOR_OF[other] == FLOOR_OF[own] and own == "state":
            assert other == own


@pytest.mark.parametrize(
    "path", [p for p in FILES if part_of(module_name(p)) in NAME_NO_ARCHITECTURE], ids=label
)
def test_what_serves_every_model_names_none(path: Path) -> None:
    architectures = {cls.__module__ for cls, _ in palimpsest.models.registry._models.values()}
    for module, line in imports_of(path):
        assert module not in architectures, f"{label(path)}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_file_fits_a_reader(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE, f"{label(path)} has {lines} lines: one concept per file"


def test_relative_imports_are_not_used() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}:{node.lineno}"


def run(program: str) -> str:
    """In a fresh interpreter that turns warnings into errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_cheap_and_brings_no_extras() -> None:
    report = json.loads(
        run(
            "import json, sys, time, torch, numpy\n"
            "there = set(sys.modules)\n"
            "start = time.process_time()  # what a busy machine adds is no cost of ours\n"
            "from palimpsest import State, build, load\n"
            "seconds = time.process_time() - start\n"
            "print(json.dumps([seconds, sorted(set(sys.modules) - there)]))"
        )
    )
    seconds, modules = report
    brought = {name.split(".")[0] for name in modules}
    assert not brought & set(NOT_AT_IMPORT), sorted(brought & set(NOT_AT_IMPORT))
    assert seconds < SECONDS_TO_IMPORT


def test_the_front_door_imports_nothing_heavy_until_asked() -> None:
    run(
        "import sys, palimpsest, palimpsest.cli.main\n"
        "assert not {'torch', 'numpy', 'numba', 'rich', 'tyro'} & set(sys.modules)\n"
        "assert 'build' in dir(palimpsest) and 'text' in dir(palimpsest)\n"
    )


def test_every_module_imports_by_itself() -> None:
    """No module relies on another having been imported, beside those below the models.

    Those below the models stay once imported, for speed; the others are forgotten before each one
    is imported.
    """
    names = [module_name(path) for path in FILES if path.stem != "__main__"]
    run(
        "import importlib, sys, palimpsest.models\n"
        "front = {m for m in sys.modules if m.split('.')[0] == 'palimpsest'}\n"
        f"for name in {names!r}:\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] == 'palimpsest']:\n"
        "        if loaded not in front:\n"
        "            del sys.modules[loaded]\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except Exception as failure:\n"
        "        raise SystemExit(f'{name}: {failure!r}')\n"
    )


def test_public_names_exist() -> None:
    for name in palimpsest.__all__:
        assert hasattr(palimpsest, name), name
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        palimpsest.bild  # noqa: B018
    assert palimpsest.__version__
    assert (ROOT / "py.typed").is_file()


def test_errors_are_palimpsest_errors() -> None:
    """So that the command line can print each of them in one line."""
    for name in palimpsest.__all__:
        value = getattr(palimpsest, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, palimpsest.PalimpsestError)
    assert issubclass(palimpsest.ops.BackendUnavailableError, palimpsest.PalimpsestError)
