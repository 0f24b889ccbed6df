from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.text import (
    ByteTokenizer,
    Corpus,
    CorpusError,
    Document,
    HFTokenizer,
    ShardError,
    Tokenizer,
    load_corpus,
    load_tokenizer,
    open_shards,
    write_shards,
)

BYTES = ByteTokenizer()
TEXTS = ["one é", "", " two\n", "日本"]


def documents(texts: list[str] | None = None) -> list[Document]:
    return [Document(text, str(i)) for i, text in enumerate(TEXTS if texts is None else texts)]


def small_bpe(**steps: object) -> Tokenizer:
    vocab = {character: index for index, character in enumerate("abĠ")}
    plain: dict[str, object] = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", **plain},
        "decoder": {"type": "ByteLevel", **plain},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        **steps,
    }
    return HFTokenizer(json.dumps(definition))


def test_documents_join_with_marks() -> None:
    corpus = Corpus.from_documents(documents(), BYTES)
    joined = [i for text in TEXTS for i in BYTES.encode(text, bos=True, eos=True)]
    assert corpus.tokens.tolist() == joined
    assert corpus.tokens.dtype == np.uint16
    assert corpus.document_starts.tolist() == [0, 8, 10, 17]
    assert corpus.document_bytes.tolist() == [6, 0, 5, 6]
    assert (corpus.num_tokens, corpus.num_documents, corpus.num_bytes) == (25, 4, 17)
    assert corpus.bos and corpus.eos and corpus.inexact_documents == 0
    assert [BYTES.decode(corpus.document(i)) for i in range(4)] == TEXTS
    with pytest.raises(IndexError):
        corpus.document(4)


def test_marks_can_be_left_out_but_not_invented() -> None:
    corpus = Corpus.from_documents(documents(), BYTES, bos=False, eos=False)
    assert BYTES.decode(corpus.tokens) == "".join(TEXTS)
    plain = small_bpe()
    corpus = Corpus.from_text("ab", plain)
    assert corpus.tokens.tolist() == [0, 1] and not corpus.bos and not corpus.eos
    with pytest.raises(CorpusError, match="eos=True: tokenizer 'tokenizers' has no eos token"):
        Corpus.from_text("ab", plain, eos=True)


def test_hash_of_the_text() -> None:
    one = Corpus.from_text("abc", BYTES)
    assert one.text_sha256 == hashlib.sha256(b"abc").hexdigest()
    split = Corpus.from_documents(documents(["ab", "c"]), BYTES)
    assert split.text_sha256 == hashlib.sha256(b"ab\xffc").hexdigest()


def test_large_vocabularies_use_uint32() -> None:
    vocab = {"a": 0, "b": 70_000, "Ġ": 1}
    wide = small_bpe(model={"type": "BPE", "vocab": vocab, "merges": []})
    assert Corpus.from_text("ab", wide).tokens.dtype == np.uint32
    assert Corpus.from_text("ab", wide).tokens.tolist() == [0, 70_000]


def test_tokenizers_that_change_the_text_are_told() -> None:
    lower = small_bpe(normalizer={"type": "Replace", "pattern": {"String": "c"}, "content": "ab"})
    corpus = Corpus.from_documents(documents(["ab", "ac", "b"]), lower)
    assert corpus.inexact_documents == 1
    assert corpus.num_bytes == 5  # the text's own bytes


def test_wikitext_protocol(shared_data: Path) -> None:
    path = shared_data / "data/wikitext-2/wiki.valid.raw"
    corpus = load_corpus(path, BYTES, prepare="wikitext")
    lines = [line.strip() for line in path.read_bytes().decode().split("\n")]
    expected = "\n".join(line for line in lines if line).encode()
    assert corpus.tokens.tolist() == [257, *expected, 258]
    assert corpus.num_bytes == len(expected)
    with pytest.raises(ValueError, match="prepare='wiki'"):
        load_corpus(path, BYTES, prepare="wiki")


def test_no_documents() -> None:
    with pytest.raises(CorpusError, match="no documents"):
        Corpus.from_documents([], BYTES)


@pytest.mark.parametrize("marks", [True, False])
@given(
    texts=st.lists(st.sampled_from(["", "a", " a b", "日本 x", "🙂"]), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_byte_lengths_of_any_stretch(
    mistral: Tokenizer, marks: bool, texts: list[str], data: st.DataObject
) -> None:
    corpus = Corpus.from_documents(documents(texts), mistral, bos=marks, eos=marks)
    whole = corpus.byte_lengths(mistral)
    assert whole.sum() == corpus.num_bytes == sum(len(t.encode()) for t in texts)
    start = data.draw(st.integers(0, corpus.num_tokens))
    stop = data.draw(st.integers(start, corpus.num_tokens))
    assert np.array_equal(corpus.byte_lengths(mistral, start, stop), whole[start:stop])


@pytest.fixture(scope="session")
def mistral(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "data/mistral/tokenizer.model.v1")


def test_byte_lengths_want_their_own_tokenizer() -> None:
    corpus = Corpus.from_text("ab", BYTES)
    with pytest.raises(CorpusError, match="is not the one that made this corpus"):
        corpus.byte_lengths(small_bpe())
    with pytest.raises(IndexError):
        corpus.byte_lengths(BYTES, 0, 5)


def test_shards_equal_the_corpus_in_memory(tmp_path: Path) -> None:
    in_memory = Corpus.from_documents(documents(), BYTES)
    written = write_shards(tmp_path / "new/shards", iter(documents()), BYTES)
    opened = open_shards(tmp_path / "new/shards", tokenizer=BYTES, verify=True)
    for corpus in (written, opened):
        assert isinstance(corpus.tokens, np.memmap) and not corpus.tokens.flags.writeable
        for name, value in vars(in_memory).items():
            assert np.array_equal(getattr(corpus, name), value), name
    assert load_tokenizer(tmp_path / "new/shards").fingerprint() == BYTES.fingerprint()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["shards"]


def test_failed_writing_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> object:
        yield Document("a", "x")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_shards(tmp_path / "s", failing(), BYTES)  # type: ignore[arg-type]
    with pytest.raises(ShardError, match="gave no token"):
        write_shards(tmp_path / "s", [], BYTES)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "s").mkdir()
    with pytest.raises(ShardError, match="exists already"):
        write_shards(tmp_path / "s", documents(), BYTES)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "s", documents(), BYTES)
    return tmp_path / "s"


def test_damaged_files_are_named(shards: Path) -> None:
    for name in ("tokens.bin", "documents.bin"):
        whole = (shards / name).read_bytes()
        (shards / name).write_bytes(whole[:-1])
        with pytest.raises(ShardError, match=f"{name}: truncated"):
            open_shards(shards)
        (shards / name).write_bytes(whole + b"x")
        with pytest.raises(ShardError, match=f"{name}: too long"):
            open_shards(shards)
        (shards / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(ShardError, match=f"{name}: its sha256"):
            open_shards(shards, verify=True)
        (shards / name).unlink()
        with pytest.raises(ShardError, match=f"{name}: no such file"):
            open_shards(shards)
        (shards / name).write_bytes(whole)
    open_shards(shards, verify=True)


def test_foreign_headers_are_refused(shards: Path) -> None:
    header = json.loads((shards / "shards.json").read_text())
    del header["sha256"]
    for change, problem in [
        ({"format": "other"}, "a foreign header"),
        ({"version": 2}, "version 2"),
        ({"tokens": "25"}, "fields: tokens"),
        ({"more": 1}, "fields: more"),
        ({"dtype": "float32"}, "fields: dtype"),
    ]:
        (shards / "shards.json").write_text(json.dumps({**header, **change}))
        with pytest.raises(ShardError, match=f"shards.json: .*{problem}"):
            open_shards(shards)
    (shards / "shards.json").write_text("x")
    with pytest.raises(ShardError, match="not JSON"):
        open_shards(shards)
    (shards / "shards.json").unlink()
    with pytest.raises(ShardError, match="no such header"):
        open_shards(shards)


def test_another_tokenizer_is_refused(shards: Path) -> None:
    with pytest.raises(ShardError, match="its ids come from tokenizer 'bytes'"):
        open_shards(shards, tokenizer=small_bpe())
