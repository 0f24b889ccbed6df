"""How much memory loading a text takes, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, resource, sys
from palimpsest.text import load_corpus, load_tokenizer

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

path, name = sys.argv[1:]
tokenizer = load_tokenizer(name)
tokenizer.encode("imports what it needs")
before = peak()
corpus = load_corpus(path, tokenizer)
assert corpus.inexact_documents == 0 and corpus.num_bytes == os.path.getsize(path)
print((peak() - before) / corpus.num_bytes)
"""


def bytes_per_byte(path: Path, tokenizer: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), tokenizer],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return float(done.stdout)


def test_bytes_take_three_times_their_size(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Déjà vu 😀, a text of the test.\n".encode() * 400_000)  # 14 MB
    assert bytes_per_byte(path, "bytes") < 5  # it was 20 to 26


@pytest.mark.slow
def test_subwords_take_a_few_times_the_size(tmp_path: Path, shared_data: Path) -> None:
    path = tmp_path / "a.txt"
    source = (shared_data / "data/wikitext-2/wiki.valid.raw").read_bytes()
    path.write_bytes((source * 20)[:8_000_000].decode("utf-8", "ignore").encode())
    tokenizer = shared_data / "data/minimind/tokenizer.json"
    assert bytes_per_byte(path, str(tokenizer)) < 16  # it was 150; 13 MB of it are one piece's
