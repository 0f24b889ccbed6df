"""Freed memory stays in the process: a block that comes back needs no new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from palimpsest.heap import keep_freed_memory

PROGRAM = """
import resource
import torch
from palimpsest.heap import keep_freed_memory

if {keep}:
    assert keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
before = faults()
for _ in range(24):  # small blocks settle in the first holes, so a few rounds still need new ones
    torch.ones(64 * 2**20 // 4)
print(faults() - before)
"""


def page_faults(keep: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back")
def test_a_block_that_comes_back_needs_no_new_pages() -> None:
    assert page_faults(keep=True) < page_faults(keep=False) / 2


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
