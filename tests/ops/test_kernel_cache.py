"""Compiled code is kept where that is possible; where it is not, kernels compile all the same."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.ops import compilation
from palimpsest.ops.compilation import report_compilation

pytest.importorskip("numba")
from numba.core.caching import CacheImpl, IndexDataCacheFile
from numba.core.config import reload_config

from palimpsest.ops.kernel_cache import compile_function
from tests.ops.test_compilation import load

SOURCE = "def double(x):\n    return x + x\n"
TRAIN = """
import torch, palimpsest
from palimpsest.models.registry import build
model = build("gpnm-tiny")
print(float(model(torch.arange(64)[None]).logits.detach().sum()))
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A new kernel of one source file, as in a new process."""
    for name, value in (("_reported", False), ("_no_cache", None), ("_no_cache_reported", False)):
        monkeypatch.setattr(compilation, name, value)
    path = tmp_path / "source.py"
    path.write_text(SOURCE, encoding="utf-8")
    return lambda: compile_function(load(path).double, {})


def hits(kernel: Any) -> int:
    return sum(kernel.stats.cache_hits.values())


def data_files(folder: Path) -> list[Path]:
    return sorted((folder / "__pycache__").glob("*.nbc"))


def test_code_is_kept(make: Callable[[], Any]) -> None:
    assert make()(2) == 4
    again = make()
    assert again(2) == 4 and hits(again) == 1


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["byte", "short", "empty", "noise"])
def test_a_damaged_file_is_compiled_anew(
    make: Callable[[], Any], tmp_path: Path, suffix: str, damage: str
) -> None:
    make()(2)
    (path,) = (tmp_path / "__pycache__").glob(f"*.{suffix}")
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    bad = {
        "byte": bytes(flipped),
        "short": good[: len(good) // 2],
        "empty": b"",
        "noise": b"x" * 99,
    }
    path.write_bytes(bad[damage])
    kernel = make()
    assert kernel(2) == 4 and (hits(kernel) == 0 or (suffix, damage) == ("nbi", "byte"))
    again = make()
    assert again(2) == 4 and hits(again) == 1


def test_code_of_other_sources_is_not_used(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()(2)
    monkeypatch.setattr("palimpsest.ops.kernel_cache._sources_digest", lambda: "other")
    kernel = make()
    assert kernel(2) == 4 and hits(kernel) == 0


def test_a_full_disk_is_said_once(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, name: str) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cache-file")

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    lines: list[str] = []
    with report_compilation(lines.append):
        kernel = make()
        assert (kernel(2), kernel(2.0), make()(2)) == (4, 4.0, 4)
    assert len(lines) == 2 and lines[0] == compilation.NOTICE
    assert "No space left on device: cache-file" in lines[1] and "\n" not in lines[1]
    assert not data_files(tmp_path)


def test_no_folder_is_said_once(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    lines: list[str] = []
    with report_compilation(lines.append):
        assert (make()(2), make()(2.0)) == (4, 4.0)
    assert len(lines) == 1 and "NUMBA_CACHE_DIR" in lines[0] and "every process" in lines[0]
    monkeypatch.setattr(compilation, "_no_cache_reported", False)
    with caplog.at_level(logging.WARNING, "palimpsest"):
        assert make()(2) == 4
    assert len(caplog.records) == 1


def test_a_cache_folder_that_cannot_be_made(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    reload_config()
    try:
        assert make()(2) == 4
    finally:
        monkeypatch.undo()
        reload_config()


def run(code: str, package: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": str(package.parent),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_package_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A copy whose folders for compiled code, and the user's, are files: for root, too."""
    package = tmp_path / "site" / "palimpsest"
    source = Path(palimpsest.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").write_text("", encoding="utf-8")
    (tmp_path / "home").write_text("", encoding="utf-8")
    nowhere = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache")}
    code = TRAIN + "import os; assert palimpsest.__file__.startswith(os.environ['PYTHONPATH'])"
    done = run(code, package, **nowhere)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be kept") == 1 and len(done.stderr.splitlines()) == 1


def test_compilation_switched_off() -> None:
    """The pure PyTorch backends run, and the reason is shown."""
    package = Path(palimpsest.__file__).parent
    code = TRAIN + "from palimpsest.ops.threads import numba_missing; print(numba_missing())"
    done = run(code, package, NUMBA_DISABLE_JIT="1")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    value, reason = done.stdout.splitlines()
    assert float(value) and "NUMBA_DISABLE_JIT" in reason
