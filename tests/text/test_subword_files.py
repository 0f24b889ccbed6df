"""What a tokenizer.json can hold that would make encoding random, inexact or fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.text import (
    ByteTokenizer,
    Corpus,
    Document,
    HFTokenizer,
    Tokenizer,
    TokenizerError,
    load_tokenizer,
    subword,
)

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def definition(**changes: Any) -> dict[str, Any]:
    """A small byte-level BPE file."""
    letters = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ", "ab", "abc", "Ġd"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**level, "use_regex": True},
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": {token: index for index, token in enumerate(letters)},
            "merges": [["a", "b"], ["ab", "c"], ["Ġ", "d"]],
        },
        **changes,
    }


def made(**changes: Any) -> HFTokenizer:
    return HFTokenizer(json.dumps(definition(**changes)))


def added(index: int, content: str, special: bool = False, **changes: bool) -> dict[str, Any]:
    return {"id": index, "content": content, "special": special, **PLAIN, **changes}


@pytest.mark.parametrize("which", ["bytes", "bpe", "sentencepiece"])
def test_half_of_a_surrogate_pair_is_one_error(which: str, shared_data: Path) -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    if which == "bpe":
        tokenizer = made()
    elif which == "sentencepiece":
        tokenizer = load_tokenizer(shared_data / "data/mistral/tokenizer.model.v1")
    for encode in (tokenizer.encode, tokenizer.encode_array):
        with pytest.raises(TokenizerError, match=r"surrogate pair, '\\udc80', at character 3"):
            encode("ab \udc80")


def test_dropout_is_off() -> None:
    model = {**definition()["model"], "dropout": 0.5}
    text = "abc abc d " * 50
    random = made(model=model)
    assert random.encode(text) == random.encode(text) == made().encode(text)


def test_truncation_and_padding_are_off() -> None:
    truncation = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    padding = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    text = "abc d abc"
    assert made(truncation=truncation, padding=padding).encode(text) == made().encode(text)


def test_sentencepiece_does_not_sample(shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "data/mistral/tokenizer.model.v1")
    text = "several readings of one text are equal " * 20
    assert len({tuple(tokenizer.encode(text)) for _ in range(5)}) == 1


def test_added_ids_behind_a_gap_are_those_of_the_library() -> None:
    size = len(definition()["model"]["vocab"])
    tokenizer = made(added_tokens=[added(size + 50, "<far>"), added(size + 90, "<end>", True)])
    assert tokenizer.encode("a<far>")[1] == size
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.bytes_of(size) == b"<far>" and tokenizer.special_ids == {size + 1}
    assert tokenizer.decode(tokenizer.encode("a<far>b")) == "a<far>b"


def test_ids_with_gaps() -> None:
    model = definition()["model"]
    tokenizer = made(model={**model, "vocab": {**model["vocab"], "abc": 500}})
    assert tokenizer.encode("abc") == [500] and tokenizer.vocab_size == 501
    assert tokenizer.bytes_of(499) == b""
    with pytest.raises(TokenizerError, match="id 4000000000 in a vocabulary of"):
        made(model={**model, "vocab": {**model["vocab"], "abc": 4_000_000_000}})


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match="its vocabulary has no token"):
        made(model={"type": "BPE", "vocab": {}, "merges": []})


def test_special_names_in_a_text_stay_text() -> None:
    size = len(definition()["model"]["vocab"])
    tokenizer = made(added_tokens=[added(size, "<end>", True)])
    assert (
        size not in tokenizer.encode("a<end>")
        and tokenizer.decode(tokenizer.encode("<end>")) == "<end>"
    )


def test_an_unknown_token_stands_for_no_bytes() -> None:
    model = definition()["model"]
    vocab = {**model["vocab"], "<unk>": 200}
    tokenizer = made(model={**model, "vocab": vocab, "unk_token": "<unk>", "fuse_unk": True})
    ids = tokenizer.encode("aéa")
    assert 200 in ids and tokenizer.count_bytes(ids) == 2
    corpus = Corpus.from_documents([Document("aéa", "x")], tokenizer)
    assert corpus.inexact_documents == 1 and corpus.num_bytes == 4


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"String": "x"}, "content": "ab"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ],
)
def test_bytes_are_those_of_the_text_whatever_the_normalizer(normalizer: dict[str, Any]) -> None:
    texts = ["abc", "x  ", "\u212a"]  # the Kelvin sign becomes "k", 3 bytes to 1
    corpus = Corpus.from_documents([Document(t, t) for t in texts], made(normalizer=normalizer))
    assert corpus.num_bytes == sum(len(t.encode()) for t in texts)
    assert corpus.inexact_documents >= 1


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "tokenizer.palimpsest.json"]
)
def test_deep_json_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition()))
    (tmp_path / name).write_text('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(TokenizerError, match=r"not JSON .nested too deeply"):
        load_tokenizer(tmp_path)


def test_a_byte_order_mark_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(definition()).encode())
    assert load_tokenizer(path).encode("abc") == made().encode("abc")


CUTTABLE: list[dict[str, Any]] = [
    {},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
    {"pre_tokenizer": {**definition()["pre_tokenizer"], "add_prefix_space": True}},
    {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation", "behavior": "Isolated"},
                definition()["pre_tokenizer"],
            ],
        }
    },
    {"added_tokens": [added(99, "<x>"), added(100, "abc<y>")]},
]
TEXT = "abc d  ab\n d d'd abc<y> d <x> <x>d\n\n ab, 12 d a  b\t<d c abc d" * 30


@pytest.mark.parametrize("changes", CUTTABLE)
def test_pieces_are_the_whole(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made(**changes)
    whole = tokenizer._encode_text(TEXT)
    for size in (0, 1, 7, 100, 10_000):
        monkeypatch.setattr(subword, "PIECE", size)
        pieces = list(tokenizer.encode_pieces(TEXT.encode()))
        assert np.concatenate(pieces).tolist() == whole == tokenizer.encode(TEXT)
        assert len(pieces) == 1 if size > len(TEXT) else len(pieces) > 5


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {**definition()["pre_tokenizer"], "use_regex": False}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"added_tokens": [added(99, "c d")]},
        {"added_tokens": [added(99, "<x>", rstrip=True)]},
    ],
)
def test_where_a_cut_could_change_ids_there_is_none(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subword, "PIECE", 1)
    assert len(list(made(**changes).encode_pieces(TEXT.encode()))) == 1


def test_pieces_of_real_text(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(shared_data / "data/minimind/tokenizer.json")
    text = (shared_data / "data/wikitext-2/wiki.valid.raw").read_text(encoding="utf-8")[:300_000]
    assert isinstance(tokenizer, HFTokenizer)
    monkeypatch.setattr(subword, "PIECE", 500)
    assert len(list(tokenizer.encode_pieces(text.encode()))) > 400
    assert tokenizer.encode_array(text).tolist() == tokenizer._encode_text(text)
