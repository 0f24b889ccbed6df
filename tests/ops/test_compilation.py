"""A compilation is announced once, before it begins, and not if the cache on disk has the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from palimpsest.cli import main as main_module
from palimpsest.ops import compilation
from palimpsest.ops.compilation import NOTICE, report_compilation, watch_compilation

pytest.importorskip("numba")

KERNEL = "import numba\n\n@numba.njit(cache=True)\ndef add_one(x):\n    return x + 1\n"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compilation, "_reported", False)
    watch_compilation()
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL, encoding="utf-8")
    return path


def test_the_first_compilation_is_reported_once(kernel: Path) -> None:
    lines: list[str] = []
    module = load(kernel)
    with report_compilation(lines.append):
        assert (module.add_one(1), module.add_one(1.0)) == (2, 2.0)
    assert lines == [NOTICE] and "compiling" in NOTICE


def test_code_from_the_cache_is_not_reported(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(kernel).add_one(1)
    lines: list[str] = []
    monkeypatch.setattr(compilation, "_reported", False)
    with report_compilation(lines.append):
        assert load(kernel).add_one(1) == 2
        assert lines == []
        assert load(kernel).add_one(1.0) == 2.0  # a type that is not in the cache
    assert lines == [NOTICE]


def test_the_innermost_reporter_is_called_and_none_outside(kernel: Path) -> None:
    outer: list[str] = []
    inner: list[str] = []
    module = load(kernel)
    with report_compilation(outer.append):
        with report_compilation(inner.append):
            module.add_one(1)
        module.add_one(1.0)
    assert (outer, inner) == ([], [NOTICE])


def test_every_command_reports_it(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load(kernel)

    def run(_: object) -> int:
        return int(module.add_one(-1))

    monkeypatch.setattr("palimpsest.cli.info.run", run)
    assert main_module.main(["info"]) == 0
    assert capsys.readouterr().err == f"palimpsest: {NOTICE}\n"


def test_the_kernels_of_the_package_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("palimpsest.ops.kernel_cache.watch_compilation", lambda: calls.append(1))
    from palimpsest.ops.threads import compiled

    compiled(load_nothing)
    assert calls == [1]


def load_nothing() -> None:
    """A loop to compile."""
