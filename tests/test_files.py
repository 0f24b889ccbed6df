"""Writing files: a failure leaves what was there, whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.digests import tensors_digest
from palimpsest.errors import CheckpointError, InputError, StorageError
from palimpsest.files import (
    atomic_path,
    parse_json,
    read_json,
    write_json,
    write_safetensors,
    write_text,
)


def only(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_write_and_replace(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "note.txt"
    write_text(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    write_text(path, "again")
    assert path.read_text() == "again"
    assert only(path.parent) == ["note.txt"]


@pytest.mark.parametrize("failure", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(1)])
def test_failure_keeps_the_old_file(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "kept.txt"
    write_text(path, "old")
    with pytest.raises(type(failure)), atomic_path(path) as temporary:
        temporary.write_text("half of the ne")
        raise failure
    assert path.read_text() == "old"
    assert only(tmp_path) == ["kept.txt"]


def test_nothing_appears_before_the_end(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "f") as temporary:
        temporary.write_text("x")
        assert not (tmp_path / "f").exists()
    assert only(tmp_path) == ["f"]


def test_block_that_writes_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"f: cannot be written \(No such file"),
        atomic_path(tmp_path / "f"),
    ):
        pass


def test_error_about_another_file_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failure, atomic_path(tmp_path / "f") as temporary:
        temporary.write_text("x")
        (tmp_path / "source that is missing").read_text()
    assert not isinstance(failure.value, StorageError)


def test_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        write_text(tmp_path / "folder", "x")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files may not grow past 64 KiB: writing fails as on a full disk."""
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old_limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
    signal.signal(signal.SIGXFSZ, old_handler)


def test_full_disk(tmp_path: Path, full_disk: None) -> None:
    write_text(tmp_path / "text", "old")
    write_safetensors(tmp_path / "tensors", {"x": torch.zeros(3)}, "kind", {})
    before = (tmp_path / "tensors").read_bytes()
    with pytest.raises(StorageError, match="text: cannot be written"):
        write_text(tmp_path / "text", "x" * (1 << 17))
    with pytest.raises(StorageError, match="tensors: cannot be written"):
        write_safetensors(tmp_path / "tensors", {"x": torch.zeros(1 << 16)}, "kind", {})
    assert (tmp_path / "text").read_text() == "old"
    assert (tmp_path / "tensors").read_bytes() == before
    assert only(tmp_path) == ["tensors", "text"]


def test_full_disk_while_a_model_is_saved(tmp_path: Path, full_disk: None) -> None:
    small = palimpsest.build("gpn", vocab_size=5, d_state=6, d_emb=3)
    small.save(tmp_path)
    with pytest.raises(StorageError, match=r"model\.safetensors: cannot be written"):
        palimpsest.build("gpn", vocab_size=5, d_state=96, d_emb=3).save(tmp_path)
    assert palimpsest.load(tmp_path).config == small.config
    state = small.init_state(4096)
    with pytest.raises(StorageError, match="cannot be written"):
        state.save(tmp_path / "state")
    assert only(tmp_path) == ["config.json", "model.safetensors"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            write_text(tmp_path / "f", "x")
    finally:
        tmp_path.chmod(0o700)


def test_json(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None], "a": "é"}
    write_json(tmp_path / "v.json", value)
    assert read_json(tmp_path / "v.json", InputError) == value
    assert "é" in (tmp_path / "v.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b'{"a": 1', "not valid JSON, or was cut short"),
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
    ],
    ids=["missing", "cut", "empty", "binary"],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "v.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as failure:
        read_json(path, CheckpointError)
    assert str(path) in str(failure.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path, InputError)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "1" * 5000], ids=["deep", "long"])
def test_json_that_python_cannot_hold_is_the_callers_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json: is not valid JSON"):
        read_json(path, CheckpointError)
    with pytest.raises(ValueError, match=r"nested too deeply|Exceeds"):
        parse_json(text)
    assert parse_json("\ufeff[1]") == [1]


def test_one_element_of_a_larger_tensor_is_digested() -> None:
    """Its stride is not 1, although torch calls it contiguous."""
    part = torch.arange(5, 8)[::3]
    assert part.stride() == (3,) and part.is_contiguous()
    assert tensors_digest({"a": part}) == tensors_digest({"a": torch.tensor([5])})
