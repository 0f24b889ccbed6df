"""LAMBADA against one forward for each example, and what its data must look like."""

from __future__ import annotations

import json
import math
import sys
import types
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from palimpsest.errors import InputError
from palimpsest.evaluation import EvaluationResult, LambadaResult, evaluate_lambada, load_result
from palimpsest.evaluation import lambada_data as data_module
from palimpsest.evaluation.lambada import score_lambada
from palimpsest.evaluation.lambada_data import (
    SHA256,
    LambadaText,
    encode_lambada,
    file_sha256,
    read_lambada,
)
from palimpsest.models import LanguageModel
from palimpsest.text import ByteTokenizer, CorpusError, HFTokenizer
from tests.evaluation.models import FAMILIES, small_model

TEXTS = [
    "the cat sat on the mat and the cat sat on the mat",
    "a bee",
    "déjà vu, said the old woman to the 😀 man",
    "one two  three",  # the first of the two spaces ends the context: it goes to the word
    "alone",
    "x y",
    "she gave him the ring and he gave her the ring",
]


def write(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: t}) + "\n" for t in texts), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "examples.jsonl", TEXTS)


def subword() -> HFTokenizer:
    """A byte-level BPE without BOS, trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=275, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(TEXTS * 3, trainer)
    return HFTokenizer(raw.to_str(), name="bpe")


def one_at_a_time(
    model: LanguageModel, examples: list[tuple[list[int], list[int]]]
) -> tuple[list[bool], list[bool], list[float]]:
    """Each example by one forward over all its ids, without padding, batch or state."""
    first, whole, nats = [], [], []
    for context, word in examples:
        with torch.no_grad():
            logits = model(torch.tensor([context + word[:-1]])).logits[0].double()
        found = logits[len(context) - 1 :].log_softmax(-1)
        top = found.argmax(-1).tolist()
        first.append(top[0] == word[0])
        whole.append(top == word)
        nats.append(-sum(float(row[t]) for row, t in zip(found, word, strict=True)))
    return first, whole, nats


def byte_split(text: str) -> tuple[list[int], list[int]]:
    """Written anew: the word begins behind the last visible character before the last space."""
    cut = text.rindex(" ") if " " in text else 0
    while cut and text[cut - 1] == " ":
        cut -= 1
    return [257, *text[:cut].encode()], list(text[cut:].encode())


def greedy(model: LanguageModel, context: list[int], count: int) -> list[int]:
    ids = list(context)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(context) :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_equals_one_forward_each(family: str, batch_size: int, data: Path) -> None:
    model = small_model(family)
    first, whole, nats = one_at_a_time(model, [byte_split(t) for t in TEXTS])
    result = evaluate_lambada(model, ByteTokenizer(), data, batch_size=batch_size, progress=False)
    assert result.examples == len(TEXTS)
    assert result.word_tokens == sum(len(byte_split(t)[1]) for t in TEXTS)
    assert result.first_token_correct == sum(first) and result.word_correct == sum(whole)
    assert result.word_nats.value == pytest.approx(np.mean(nats), rel=1e-9)
    assert result.token_nats.value == pytest.approx(sum(nats) / result.word_tokens, rel=1e-9)
    assert result.word_perplexity.value == pytest.approx(math.exp(np.mean(nats)), rel=1e-9)
    stderr = np.std(nats, ddof=1) / math.sqrt(len(nats))
    assert result.word_nats.stderr == pytest.approx(stderr, rel=1e-9)
    assert "BOS before each passage" in result.protocol
    assert result.data_sha256 == file_sha256(data) and result.inexact == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_right_answers_are_counted(family: str) -> None:
    """Words that the model itself would write are right; then one whose last token is wrong."""
    model = small_model(family)
    examples = []
    for length, count in ((9, 3), (1, 2), (5, 1), (30, 4)):
        context = [257, *range(40, 40 + length - 1)]
        word = greedy(model, context, count)
        examples.append(data_module.LambadaExample(tuple(context), tuple(word), True))
    wrong = (*examples[0].word[:-1], (examples[0].word[-1] + 1) % 256)
    examples.append(data_module.LambadaExample(examples[0].context, wrong, True))
    scores = score_lambada(model, examples, batch_size=3, progress=False)
    assert scores.first_correct.tolist() == [True] * 5
    assert scores.word_correct.tolist() == [True] * 4 + [False]
    expected = one_at_a_time(model, [(list(e.context), list(e.word)) for e in examples])
    np.testing.assert_allclose(scores.nats, expected[2], rtol=1e-9)
    assert scores.tokens.tolist() == [3, 2, 1, 4, 3]


def test_subwords_without_bos(tmp_path: Path) -> None:
    tokenizer = subword()
    texts = [t for t in TEXTS if t != "alone"]
    data = write(tmp_path / "e.jsonl", texts, field="passage")
    model = small_model("gpnm", tokenizer.vocab_size)
    pairs = []
    for text in texts:
        head = text[: text.rindex(" ")].rstrip()
        whole, before = tokenizer.encode(text), tokenizer.encode(head)
        assert whole[: len(before)] == before
        pairs.append((before, whole[len(before) :]))
    first, whole_right, nats = one_at_a_time(model, pairs)
    result = evaluate_lambada(model, tokenizer, data, field="passage", batch_size=4, progress=False)
    assert (result.first_token_correct, result.word_correct) == (sum(first), sum(whole_right))
    assert result.word_nats.value == pytest.approx(np.mean(nats), rel=1e-9)
    assert "no BOS" in result.protocol and "which here is the space" not in result.protocol
    with pytest.raises(InputError, match="nothing precedes the word 'alone'"):
        write(data, TEXTS)
        evaluate_lambada(model, tokenizer, data, progress=False)


def test_a_bounded_model_asks_for_a_bounded_context(tmp_path: Path) -> None:
    data = write(tmp_path / "e.jsonl", ["a " * 60 + "word", "b end"])
    model = small_model("transformer")
    with pytest.raises(InputError, match=r"at most 96 positions; pass max_context=91 or less"):
        evaluate_lambada(model, ByteTokenizer(), data, progress=False)
    result = evaluate_lambada(model, ByteTokenizer(), data, max_context=91, progress=False)
    context = [257, *("a " * 60).rstrip().encode()[-91:]]
    pairs = [(context, list(b" word")), ([257, *b"b"], list(b" end"))]
    assert result.word_nats.value == pytest.approx(
        np.mean(one_at_a_time(model, pairs)[2]), rel=1e-9
    )
    assert "given the 91 tokens before it" in result.protocol


def test_a_merge_over_the_border_is_counted() -> None:
    """Some tokenizers join the context's end with the word: the harness's rule, and said."""

    class Joining(ByteTokenizer):
        def _encode_text(self, text: str) -> list[int]:
            return list(text.replace("b c", "Q").encode())

    texts = [LambadaText("t:1", "a b", " cde")]
    (example,) = encode_lambada(texts, Joining(), bos=True, max_context=None)
    assert example.context == (257, *b"a b") and example.word == (*b"de",)
    assert not example.exact
    with pytest.raises(InputError, match="t:2: tokenizer 'bytes' leaves no token"):
        encode_lambada([LambadaText("t:2", "a b", " c")], Joining(), bos=True, max_context=None)


def test_results_are_read_back_and_kinds_are_kept_apart(data: Path, tmp_path: Path) -> None:
    model = small_model("gpnm")
    result = evaluate_lambada(model, ByteTokenizer(), data, source="m", seed=4, progress=False)
    path = result.save(tmp_path / "r.json")
    assert LambadaResult.load(path) == result == load_result(path)
    found = json.loads(path.read_text())
    del found["sha256"]  # the edits below are meant
    assert (found["schema"], found["schema_version"]) == ("palimpsest-lambada", 1)
    assert found["word_accuracy"]["value"] == result.word_correct / len(TEXTS)
    with pytest.raises(InputError, match=r"\(perplexity\); its schema .* is that of LAMBADA"):
        EvaluationResult.load(path)
    path.write_text(json.dumps({**found, "schema_version": 7}))
    for load in (LambadaResult.load, load_result):
        with pytest.raises(InputError, match="palimpsest-lambada version 7, this palimpsest reads"):
            load(path)
    path.write_text(json.dumps({**found, "schema": "other"}))
    with pytest.raises(InputError, match="schema 'other' is no result of palimpsest; known: "):
        load_result(path)


def test_bad_data(tmp_path: Path) -> None:
    model, tokenizer = small_model("gpnm"), ByteTokenizer()
    with pytest.raises(InputError, match=f"no such file; get .* sha256 {SHA256}"):
        evaluate_lambada(model, tokenizer, tmp_path / "none.jsonl", progress=False)
    path = write(tmp_path / "e.jsonl", ["a b", "ends in space "])
    with pytest.raises(CorpusError, match=r"e\.jsonl:2: the text does not end in a word"):
        evaluate_lambada(model, tokenizer, path, progress=False)
    with pytest.raises(CorpusError, match="has no field 'other'"):
        read_lambada(path, "other")
    write(path, TEXTS)
    with pytest.raises(InputError, match="fingerprint"):
        evaluate_lambada(model, tokenizer, path, trained_with="0" * 64, progress=False)
    for change in ({"max_context": 0}, {"max_examples": 0}, {"batch_size": 0}, {"bos": "always"}):
        with pytest.raises(InputError, match=next(iter(change))):
            evaluate_lambada(model, tokenizer, path, progress=False, **change)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="training has diverged"):
        evaluate_lambada(model, tokenizer, path, progress=False)


def test_the_hub(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = types.ModuleType("huggingface_hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(data_module, "_check_connection", lambda: None)
    asked = []

    def download(repository: str, file: str, **more: object) -> str:
        asked.append((repository, file, more["repo_type"]))
        return str(data)

    hub.hf_hub_download = download  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="is not the file that was expected from the hub"):
        data_module.find_lambada("hub")
    monkeypatch.setattr(data_module, "SHA256", file_sha256(data))
    assert data_module.find_lambada("hub") == data
    assert asked[-1] == ("EleutherAI/lambada_openai", "data/lambada_test.jsonl", "dataset")

    def offline(*_: object, **__: object) -> str:
        raise OSError("no\nroute")

    hub.hf_hub_download = offline  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"hub could not be read \(OSError: no route\); get data/"):
        data_module.find_lambada("hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="pip install huggingface_hub"):
        data_module.find_lambada("hub")


def test_the_real_file(shared: Path) -> None:
    path = shared / "data" / "lambada" / "lambada_test.jsonl"
    if not path.is_file():
        pytest.skip("needs LAMBADA's test file in the reference data")
    assert file_sha256(path) == SHA256
    texts, sha256 = read_lambada(path)
    assert sha256 == SHA256
    assert len(texts) == 5153
    assert all(t.word.strip() and t.context == t.context.rstrip() for t in texts)
    assert sum(t.word != " " + t.word.strip() for t in texts) == 1
    assert sum("\n" in t.word for t in texts) == 7  # a space is what separates words, as there
    model = small_model("gpnm")
    result = evaluate_lambada(model, ByteTokenizer(), path, max_examples=12, progress=False)
    pairs = [([257, *t.context.encode()], list(t.word.encode())) for t in texts[:12]]
    assert result.word_nats.value == pytest.approx(
        np.mean(one_at_a_time(model, pairs)[2]), rel=1e-9
    )


def test_without_a_network_the_hub_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client would try for half a minute, and print each attempt."""
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, timeout: float) -> None:
        assert timeout <= 5
        raise urllib.error.URLError(OSError(101, "Network is unreachable"))

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_, **__: pytest.fail("it was tried"))
    with pytest.raises(
        InputError, match=r"cannot be reached \(Network is unreachable\); get data/"
    ):
        data_module.find_lambada("hub")
