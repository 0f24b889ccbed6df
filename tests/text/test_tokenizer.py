from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palimpsest.text import (
    ByteTokenizer,
    HFTokenizer,
    SentencePieceTokenizer,
    StreamDecoder,
    Tokenizer,
    TokenizerError,
    load_tokenizer,
)

TRICKY = [
    "",
    " ",
    "a",
    " a",
    "   a  b ",
    "\n",
    "\t\r\n\x00",
    "naïve café",
    "日本語とかな",
    "👩‍👩‍👧‍👦🏳️‍🌈 x",
    "<s></s><|im_start|>user<|endoftext|> <0x41>",
    "Ġ Ċ e\u0301 \ufeff\ufffd",
]
# U+2581 is the one character that a SentencePiece model cannot keep (see its docstring).
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30)


def metaspace_file(folder: Path) -> Path:
    """A small `tokenizers` file of the Llama kind: prepended ▁, byte fallback."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{value:02X}>" for value in range(256)]]
    pieces += ["▁", "a", "b", "▁a", "日"]
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    normalizers = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": pieces[index], "special": True, **plain} for index in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [["▁", "a"]],
        },
    }
    path = folder / "llama.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def named(
    shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Tokenizer]:
    made = {
        "bytes": load_tokenizer("bytes"),
        "minimind": load_tokenizer(shared_data / "data/minimind/tokenizer.json"),
        "mistral": load_tokenizer(shared_data / "data/mistral/tokenizer.model.v1"),
        "metaspace": load_tokenizer(metaspace_file(tmp_path_factory.mktemp("llama"))),
    }
    return made.__getitem__


every = pytest.mark.parametrize("which", ["bytes", "minimind", "mistral", "metaspace"])


def check_exact(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    table = tokenizer.token_bytes()
    joined = b"".join(table[i] for i in ids)
    dummy = b" " if tokenizer.prefix_space and text else b""
    assert joined == dummy + text.encode()
    assert tokenizer.count_bytes(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    stream = StreamDecoder(tokenizer)
    assert "".join(stream.push(i) for i in ids) + stream.flush() == text


@every
def test_tricky_texts_keep_their_bytes(named: Callable[[str], Tokenizer], which: str) -> None:
    for text in TRICKY:
        check_exact(named(which), text)


@every
@given(text=texts)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_keeps_its_bytes(named: Callable[[str], Tokenizer], which: str, text: str) -> None:
    check_exact(named(which), text)


@every
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_stream_equals_decode_for_any_ids(
    named: Callable[[str], Tokenizer], which: str, data: st.DataObject
) -> None:
    tokenizer = named(which)
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.vocab_size, 300) - 1), max_size=20))
    for continued in (False, True):
        stream = StreamDecoder(tokenizer, continued=continued)
        pushed = "".join(stream.push(i) for i in ids) + stream.flush()
        assert pushed == tokenizer.decode(ids, continued=continued)


@every
def test_real_text(named: Callable[[str], Tokenizer], shared_data: Path, which: str) -> None:
    path = shared_data / "data/wikitext-2/wiki.valid.raw"
    check_exact(named(which), path.read_bytes().decode()[:40_000])


@every
def test_marks_have_no_bytes(named: Callable[[str], Tokenizer], which: str) -> None:
    tokenizer = named(which)
    ids = tokenizer.encode("a é", bos=True, eos=True)
    assert ids[0] == tokenizer.bos_id and ids[-1] == tokenizer.eos_id
    assert tokenizer.count_bytes(ids) == 4
    assert tokenizer.count_bytes(ids + ids) == 8  # the dummy space after a mark does not count
    assert tokenizer.decode(ids + ids) == "a éa é"
    assert np.array_equal(tokenizer.encode_array("a é", bos=True, eos=True), ids)
    assert ids.count(tokenizer.bos_id or -1) == 1


@every
def test_saving_keeps_everything(
    named: Callable[[str], Tokenizer], which: str, tmp_path: Path
) -> None:
    tokenizer = named(which)
    first = tokenizer.save(tmp_path / "run")
    for spec in (first, tmp_path / "run"):
        loaded = load_tokenizer(spec)
        assert type(loaded) is type(tokenizer)
        assert loaded.name == tokenizer.name
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.token_bytes() == tokenizer.token_bytes()
        assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (
            tokenizer.bos_id,
            tokenizer.eos_id,
            tokenizer.pad_id,
        )
    again = load_tokenizer(first).save(tmp_path / "again")
    assert again.read_bytes() == first.read_bytes()


def test_known_ids(named: Callable[[str], Tokenizer]) -> None:
    byte = named("bytes")
    assert (byte.vocab_size, byte.pad_id, byte.bos_id, byte.eos_id) == (259, 256, 257, 258)
    assert byte.encode("é", bos=True, eos=True) == [257, 0xC3, 0xA9, 258]
    minimind = named("minimind")
    assert (minimind.vocab_size, minimind.bos_id, minimind.eos_id) == (6400, 1, 2)
    mistral = named("mistral")
    assert (mistral.vocab_size, mistral.bos_id, mistral.eos_id) == (32000, 1, 2)
    metaspace = named("metaspace")
    assert (metaspace.bos_id, metaspace.eos_id, metaspace.pad_id) == (1, 2, None)
    assert len({named(n).fingerprint() for n in ("bytes", "minimind", "mistral", "metaspace")}) == 4


def test_decode_agrees_with_the_libraries(
    named: Callable[[str], Tokenizer], shared_data: Path
) -> None:
    import sentencepiece
    import tokenizers

    hf = tokenizers.Tokenizer.from_file(str(shared_data / "data/minimind/tokenizer.json"))
    sp = sentencepiece.SentencePieceProcessor(
        model_file=str(shared_data / "data/mistral/tokenizer.model.v1")
    )
    for text in ["a b", " naïve 日本 🙂\n", "1 2\t3"]:
        assert named("minimind").encode(text) == hf.encode(text).ids
        assert named("minimind").decode(hf.encode(text).ids) == hf.decode(hf.encode(text).ids)
        assert named("mistral").encode(text) == sp.encode(text)
        assert named("mistral").decode(sp.encode(text)) == sp.decode(sp.encode(text))


def test_byte_lengths_inside_a_text(named: Callable[[str], Tokenizer]) -> None:
    mistral = named("mistral")
    ids = mistral.encode("one two")
    assert mistral.byte_lengths(ids).tolist() == [3, 4]
    assert mistral.byte_lengths(ids, starts=()).tolist() == [4, 4]
    assert mistral.decode(ids[1:], continued=True) == " two"
    assert mistral.byte_lengths([], starts=()).tolist() == []
    assert mistral.count_bytes([]) == 0


def test_the_stream_waits_for_whole_characters() -> None:
    stream = StreamDecoder(ByteTokenizer())
    assert [stream.push(i) for i in "é".encode()] == ["", "é"]
    assert stream.push("日".encode()[0]) == ""
    assert stream.flush() == "\ufffd"


def test_a_split_character_counts_its_own_bytes() -> None:
    byte = ByteTokenizer()
    ids = byte.encode("日")
    assert [byte.count_bytes([i]) for i in ids] == [1, 1, 1]
    assert byte.decode(ids[:2]) == "\ufffd"


def test_ids_outside_the_vocabulary() -> None:
    byte = ByteTokenizer()
    for wrong in (-1, 259):
        for use in (byte.decode, byte.count_bytes):
            with pytest.raises(TokenizerError, match=f"id {wrong} is outside.*0 … 258"):
                use([65, wrong])
        with pytest.raises(TokenizerError, match=f"id {wrong}"):
            StreamDecoder(byte).push(wrong)


def test_specs_that_name_no_tokenizer(tmp_path: Path) -> None:
    for name, problem in [
        ("nothing", "no such tokenizer"),
        ("folder", "no tokenizer.palimpsest.json"),
        ("a.txt", "suffix '.txt'"),
        ("bad.json", "not JSON"),
        ("other.json", "tokenizers library refuses"),
        ("bad.model", "not a SentencePiece model"),
    ]:
        path = tmp_path / name
        if name == "folder":
            path.mkdir()
        elif name != "nothing":
            path.write_text('{"x": 1}' if name == "other.json" else "x", encoding="utf-8")
        with pytest.raises(TokenizerError, match=problem):
            load_tokenizer(path)


def test_saved_files_are_checked(tmp_path: Path) -> None:
    path = ByteTokenizer().save(tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "name": "other"}))
    with pytest.raises(TokenizerError, match="does not match its sha256"):
        load_tokenizer(path)
    del data["sha256"]  # a file of an older version; what it says is checked all the same
    for change, problem in [
        ({"version": 99}, "version=99"),
        ({"kind": "words"}, "kind='words'"),
        ({"fingerprint": "0"}, "the file was changed"),
    ]:
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(TokenizerError, match=problem):
            load_tokenizer(tmp_path)


def test_marks_that_are_missing(tmp_path: Path) -> None:
    definition = metaspace_file(tmp_path).read_text(encoding="utf-8")
    with pytest.raises(TokenizerError, match="eos='<end>' is no token"):
        HFTokenizer(definition, eos="<end>")
    with pytest.raises(TokenizerError, match="bos=True: tokenizer 'x' has no bos token"):
        HFTokenizer(definition, name="x").encode("a", bos=True)


def test_unknown_decoders_are_refused(tmp_path: Path) -> None:
    data = json.loads(metaspace_file(tmp_path).read_text(encoding="utf-8"))
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(TokenizerError, match=r"decoder \['WordPiece'\]"):
        HFTokenizer(json.dumps(data))


def test_sentencepiece_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "sentencepiece":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install palimpsest-lm\[sentencepiece\]"):
        SentencePieceTokenizer(b"")
