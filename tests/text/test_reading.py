"""Pipes, compressed files, byte order marks, deep JSON, and paths that are not texts."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palimpsest.text import (
    ByteTokenizer,
    Corpus,
    CorpusError,
    Document,
    is_stream,
    prepare_wikitext,
    read_documents,
    read_hashed,
    reading,
    split_documents,
)

BOM = b"\xef\xbb\xbf"
DEEP = b"[" * 100_000 + b"]" * 100_000


def texts(*args: object, **kwargs: object) -> list[str]:
    return [d.text for d in read_documents(*args, **kwargs)]  # type: ignore[arg-type]


@contextmanager
def piped(data: bytes) -> Iterator[str]:
    """A path as the shell's <(…) makes it."""
    end, start = os.pipe()

    def write() -> None:
        with open(start, "wb") as stream:
            stream.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield f"/dev/fd/{end}"
    finally:
        os.close(end)
        writer.join()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a text\n{", ["a text\n{"]),
        (b'{"text": "one"}\n{"text": "two"}\n', ["one", "two"]),
        (BOM + b'\n{"text": "one"}', ["one"]),
        (b'[{"text": "one"}, {"text": "two"}]', ["one", "two"]),
        (b"[{ not JSON", ["[{ not JSON"]),
        (b"{" + DEEP, [(b"{" + DEEP).decode()]),
        (gzip.compress(b"packed", mtime=0), ["packed"]),
        (b"x" * 300_000, ["x" * 300_000]),
    ],
)
def test_a_pipe_is_read_once_and_its_format_found(data: bytes, found: list[str]) -> None:
    with piped(data) as path:
        assert is_stream(path)
        assert texts(path) == found


def test_a_fifo_with_a_suffix_has_that_format(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b'{"text": "kept as it is"}',))
    writer.start()
    assert texts(path) == ['{"text": "kept as it is"}']
    writer.join()


def test_an_empty_or_missing_pipe_is_named() -> None:
    with piped(b"") as path, pytest.raises(CorpusError, match="no text arrived through it"):
        texts(path)
    with pytest.raises(CorpusError, match="/dev/fd/9876: no pipe is open here; pipe the text"):
        texts("/dev/fd/9876")


def test_a_pipe_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "memory_bytes", lambda: 2000)
    with (
        piped(b"x" * 1001) as path,
        pytest.raises(CorpusError, match=r"over half of this machine's memory .1,000 bytes"),
    ):
        texts(path)


def test_hash_and_text_of_one_reading(tmp_path: Path) -> None:
    data = b'{"text": "one"}\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    with piped(data) as path:
        for place in (path, tmp_path / "a.jsonl"):
            documents, sha256 = read_hashed(place)
            assert [d.text for d in documents] == ["one"]
            assert sha256 == hashlib.sha256(data).hexdigest()
    with pytest.raises(CorpusError, match="is a folder"):
        read_hashed(tmp_path)


def test_a_compressed_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GZIP_FREE", 1 << 20)
    for name in ("a.txt.gz", "a.jsonl.gz", "a.json.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(bytes(8 << 20)))
        limit = r"a\.\w+\.gz: its [\d,]+ bytes decompress to more than .* 100 times .*1,048,576 b"
        with pytest.raises(CorpusError, match=limit):
            texts(path)
    path.write_bytes(gzip.compress(json.dumps([{"text": "ab" * 400_000}]).encode()))
    assert len(texts(path)[0]) == 800_000  # a ratio over 100 is no fault below GZIP_FREE


def test_out_of_memory_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("some text")

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ByteTokenizer, "count_bytes", full)
    with pytest.raises(CorpusError, match=r"a.txt: its 9 bytes do not fit into memory; cut it"):
        Corpus.from_documents(read_documents(tmp_path / "a.txt"), ByteTokenizer())
    monkeypatch.setattr(reading, "check_memory", full)
    with pytest.raises(CorpusError, match=r"a.txt: does not fit into memory; cut it"):
        texts(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "data",
    [
        BOM + b"a",
        b"a\r\nb\r",
        b"\x00\x00",
        b"\n\n",
        b"x",
        "\u2028 é 日本 😀\x1c".encode(),
        b"y" * 99_999,
    ],
)
def test_a_text_is_kept_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    assert texts(path) == [data.decode()]
    corpus = Corpus.from_documents(read_documents(path), ByteTokenizer())
    assert corpus.tokens.tolist() == [257, *data, 258]
    assert corpus.text_sha256 == hashlib.sha256(data).hexdigest()
    assert (corpus.num_bytes, corpus.inexact_documents) == (len(data), 0)


def test_a_byte_order_mark_before_json_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(BOM + b'[{"text": "one"}]')
    (tmp_path / "b.jsonl").write_bytes(BOM + b'{"text": "two"}\r\n')
    assert texts(tmp_path) == ["one", "two"]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("data", [DEEP, b'{"text": ' + DEEP + b"}", b"1" * 5000])
def test_json_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=r"a\.json.*not JSON .(nested too deeply|Exceeds)"):
        texts(tmp_path)


def test_invalid_utf8_is_found_across_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palimpsest.text.documents.PIECE", 5)
    path = tmp_path / "a.txt"
    valid = "aé日😀" * 40
    path.write_text(valid, encoding="utf-8")
    assert texts(path) == [valid]
    for at in range(30):
        data = valid.encode()[:at] + b"\xff" + valid.encode()
        with pytest.raises(UnicodeDecodeError) as expected:
            data.decode()
        path.write_bytes(data)
        with pytest.raises(CorpusError, match=f"at offset {expected.value.start} "):
            texts(path)
    path.write_bytes("ab".encode("utf-16"))
    with pytest.raises(CorpusError, match="from UTF-16 to UTF-8"):
        texts(path)


def test_paths_that_are_not_texts(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.txt"))
        for path, problem in [
            ("loop", "cannot be read .a link that leads to itself"),
            ("s.txt", "is a socket, not a text"),
            ("/dev/zero", "is a device, not a text"),
            ("a\0b", "no such file or folder"),
            ("x" * 300, "cannot be read .File name too long"),
        ]:
            with pytest.raises(CorpusError, match=problem):
                read_documents(tmp_path / path)


def test_nothing_in_a_folder_is_skipped_silently(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    (other / "a.txt").write_text("behind a link")
    link = folder / "link"
    link.symlink_to(other)
    assert texts(folder) == ["behind a link"]
    (other / "back").symlink_to(folder)
    with pytest.raises(CorpusError, match="link/back: is a link to a folder above it"):
        texts(folder)
    link.unlink()
    (folder / "b.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(CorpusError, match=r"b\.txt: is a link to nothing"):
        texts(folder)
    (folder / "b.txt").unlink()
    os.mkfifo(folder / "c.txt")
    with pytest.raises(CorpusError, match=r"c\.txt: is a pipe, a socket or a device inside"):
        texts(folder)
    (folder / "c.txt").unlink()
    (folder / ".hidden.txt").write_text("x")
    with pytest.raises(CorpusError, match="the folder holds no file"):
        texts(folder)


def test_documents_from_bytes_and_from_text_are_equal() -> None:
    one, same = Document("é", "x"), Document(memoryview("é".encode()), "x")
    assert one == same and hash(one) == hash(same) and repr(one) == repr(same)
    assert one != Document("é", "y") and one != "é"
    assert bytes(one.utf8) == bytes(same.utf8)
    with pytest.raises(CorpusError, match="y: the text is not valid Unicode"):
        Corpus.from_documents([Document("\ud800", "y")], ByteTokenizer())
    parts = split_documents([Document(b"a\nb\n", "x")], 0.5)
    assert parts == ([Document("a\n", "x")], [Document("b\n", "x")])
    assert prepare_wikitext([Document(b" \x1ca\r\n\n b", "x")]) == Document("a\nb", "x")
