from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from palimpsest.text import (
    CorpusError,
    Document,
    is_validation_by_hash,
    prepare_wikitext,
    read_documents,
    split_documents,
)


def texts(*args: object, **kwargs: object) -> list[str]:
    return [d.text for d in read_documents(*args, **kwargs)]  # type: ignore[arg-type]


def test_folder_in_sorted_order_with_every_suffix(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes("é\r\n ".encode())
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}\n')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}'))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"four"))
    (tmp_path / "sub/e.json").write_text(json.dumps([{"text": "five"}, {"text": ""}]))
    (tmp_path / ".hidden").write_text("x")
    assert texts(tmp_path) == ["one", "two", "é\r\n ", "three", "four", "five", ""]
    sources = [d.source for d in read_documents(str(tmp_path / "a.jsonl"))]
    assert sources == [f"{tmp_path}/a.jsonl:1", f"{tmp_path}/a.jsonl:3"]
    assert texts([tmp_path / "d.txt.gz", tmp_path / "b.txt"]) == ["four", "é\r\n "]


def test_another_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "one", "text": 3}\n')
    assert texts(tmp_path, field="content") == ["one"]


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.txt", b"", "a.txt: the file is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl: the file is empty"),
        ("a.txt", b"abc\xff", "not UTF-8: byte 0xff at offset 3"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "a.jsonl:2: not UTF-8.*offset 24"),
        ("a.jsonl", b'{"text": "a"}\n{"t": "b"}\n', "a.jsonl:2: has no field 'text' .*'t'"),
        ("a.jsonl", b'{"text": 3}\n', "a.jsonl:1: the field 'text' is no text .int"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: is no object"),
        ("a.jsonl", b"{\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl:1: the text is not valid Unicode"),
        ("a.json", b'{"text": "a"}', "a.json: not a JSON array"),
        ("a.json", b'[{"text": "a"}, {}]', r"a.json\[1\]: has no field 'text'"),
        ("a.parquet", b"x", "suffix '.parquet' is not supported; known are .txt"),
        ("a.gz", b"x", "suffix '' is not supported"),
        ("a.txt.gz", b"x", "damaged .gz"),
        ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], "damaged .gz"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, data: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=problem):
        texts(tmp_path)


def test_missing_paths_are_found_first(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="nowhere: no such file or folder"):
        read_documents([tmp_path / "nowhere"])
    with pytest.raises(CorpusError, match="the folder holds no file"):
        read_documents(tmp_path)
    with pytest.raises(CorpusError, match="paths is empty"):
        read_documents([])


def test_wikitext_rule() -> None:
    parts = [Document(" = A = \n \n\tb\u2028c\n", "x"), Document("\nd", "y")]
    assert prepare_wikitext(parts) == Document("= A =\nb\u2028c\nd", "x, y")
    with pytest.raises(CorpusError, match="no line holds any text"):
        prepare_wikitext([Document(" \n", "x")])


def test_real_wikitext(shared_data: Path) -> None:
    read = read_documents(shared_data / "data/wikitext-2/wiki.valid.raw")
    text = prepare_wikitext(read).text
    assert text.startswith("= Homarus gammarus =\nHomarus gammarus , known")
    assert "\n\n" not in text and text == text.strip()


def test_real_json_files(shared_data: Path) -> None:
    assert len(texts(shared_data / "data/fineweb/fineweb_subset_300docs.json")) == 300
    assert len(texts(shared_data / "data/lambada/lambada_test.jsonl")) == 5153


def documents(count: int) -> list[Document]:
    return [Document(f"text {i % (count - 1)}", str(i)) for i in range(count)]  # one twice


@pytest.mark.parametrize("rule", ["auto", "hash", "last"])
@pytest.mark.parametrize("count", [30, 400])
def test_no_document_is_on_both_sides(rule: str, count: int) -> None:
    given = documents(count)
    training, validation = split_documents(given, 0.1, rule=rule)
    assert sorted([*training, *validation], key=str) == sorted(given, key=str)
    assert not {d.text for d in training} & {d.text for d in validation}
    assert 1 <= len(validation) < count / 4
    assert split_documents(given, 0.1, rule=rule) == (training, validation)


def test_which_rule_auto_is() -> None:
    many, few = documents(400), documents(30)
    assert split_documents(many, 0.1) == split_documents(many, 0.1, rule="hash")
    assert split_documents(few, 0.1) == split_documents(few, 0.1, rule="last")
    _, validation = split_documents(few, 0.1)
    assert [d.source for d in validation] == ["0", "27", "28", "29"]  # 0 has the text of 29


def test_the_hash_rule_looks_at_the_text_alone() -> None:
    many = documents(400)
    _, validation = split_documents(many, 0.1, rule="hash")
    _, part = split_documents(many[:200], 0.1, rule="hash")
    assert part == [d for d in validation if int(d.source) < 200]
    assert all(is_validation_by_hash(d.text, 0.1) for d in validation)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.99])
def test_one_document_is_cut_at_a_line(fraction: float) -> None:
    text = "".join(f"line {i} é\n" for i in range(100)) + "the last line"
    (training,), (validation,) = split_documents([Document(text, "x")], fraction)
    assert training.text + validation.text == text
    assert training.text.endswith("\n") and validation.text
    share = len(validation.text.encode()) / len(text.encode())
    assert abs(share - fraction) < 0.02


def test_the_cut_takes_the_boundary_before_where_none_is_later() -> None:
    (training,), (validation,) = split_documents([Document("a\n" + "b" * 50, "x")], 0.1)
    assert (training.text, validation.text) == ("a\n", "b" * 50)


def test_a_text_of_one_line_is_cut_between_words() -> None:
    (training,), (validation,) = split_documents([Document("ab cd " * 50 + "e", "x")], 0.1)
    assert training.text + validation.text == "ab cd " * 50 + "e"
    assert training.text.endswith(" ") and 20 <= len(validation.text) <= 33


def test_splits_that_cannot_be() -> None:
    one = [Document("oneline\n", "x")]
    with pytest.raises(CorpusError, match="x: one document of 8 bytes without a line break or"):
        split_documents(one, 0.1)
    with pytest.raises(CorpusError, match="has 2 documents"):
        split_documents(one * 2, 0.1, rule="cut")
    with pytest.raises(CorpusError, match="puts 0 of 2 documents into training and 2"):
        split_documents(one * 2, 0.5, rule="last")
    with pytest.raises(CorpusError, match="no documents"):
        split_documents([], 0.1)
    with pytest.raises(ValueError, match=r"fraction=1.0"):
        split_documents(one, 1.0)
    with pytest.raises(ValueError, match="rule='odd'"):
        split_documents(one, 0.1, rule="odd")
