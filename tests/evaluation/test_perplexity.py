"""Perplexity and bits per byte: against one plain forward, for any batch size and protocol."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import palimpsest
from palimpsest.errors import InputError
from palimpsest.evaluation import EvaluationResult, Protocol, evaluate_documents, evaluate_text
from palimpsest.models import LanguageModel
from palimpsest.text import ByteTokenizer, CorpusError, Document, HFTokenizer
from tests.generation.toy_model import ToyConfig, ToyModel

TEXT = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 😀 Ende.\n"


@pytest.fixture(params=["gpnm", "toy"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(3)
    if request.param == "toy":
        return ToyModel(ToyConfig(vocab_size=259))
    small = {"d_state": 20, "d_emb": 12, "d_ffn": 28, "n_heads": 2, "d_key": 5, "d_val": 7}
    return palimpsest.build("gpnm", vocab_size=259, **small)


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


def subword(**options: object) -> HFTokenizer:
    """A byte-level BPE whose ids split characters, trained here."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    raw.train_from_iterator([TEXT] * 3, trainer)
    return HFTokenizer(raw.to_str(), name="bpe", **options)


def total_nats(result: EvaluationResult) -> float:
    return result.loss * result.tokens


def plain_nats(model: LanguageModel, ids: list[int]) -> float:
    """The nats of ids[1:], by one forward and the full logits."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return float(functional.cross_entropy(logits.double(), torch.tensor(ids[1:]), reduction="sum"))


def run(model: LanguageModel, tokenizer, texts: list[str], batch_size: int = 3, **fields: object):
    documents = [Document(text, "text") for text in texts]
    return evaluate_documents(
        model,
        tokenizer,
        documents,
        data="texts",
        protocol=Protocol(**fields),
        batch_size=batch_size,
        progress=False,
    )


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_carried_equals_one_forward(model: LanguageModel, tokenizer, chunk: int) -> None:
    result = run(model, tokenizer, [TEXT], kind="carried", seq_len=chunk)
    expected = plain_nats(model, [257, *TEXT.encode()])
    assert total_nats(result) == pytest.approx(expected, rel=1e-6)
    assert result.tokens == result.bytes == len(TEXT.encode())
    assert result.bits_per_byte == pytest.approx(expected / math.log(2) / len(TEXT.encode()))
    assert result.perplexity == pytest.approx(math.exp(expected / result.tokens))


def test_windows_equal_plain_forwards(model: LanguageModel, tokenizer) -> None:
    stream = [257, *TEXT.encode()]
    expected = sum(plain_nats(model, stream[i : i + 11]) for i in range(0, len(stream) - 1, 10))
    result = run(model, tokenizer, [TEXT], kind="windows", seq_len=10)
    assert total_nats(result) == pytest.approx(expected, rel=1e-6)
    assert result.tokens == len(TEXT.encode())


def test_strided_windows_equal_plain_forwards(model: LanguageModel, tokenizer) -> None:
    stream = [257, *TEXT.encode()]
    expected = plain_nats(model, stream[:11])
    for low in range(4, len(stream) - 1, 4):
        expected += plain_nats(model, stream[low : low + 11])
        context = stream[low : low + 7]
        expected -= plain_nats(model, context)
        if low + 11 >= len(stream):
            break
    result = run(model, tokenizer, [TEXT], kind="strided", seq_len=10, stride=4)
    assert total_nats(result) == pytest.approx(expected, rel=1e-5)


def test_current_reading_counts_the_first_token_from_the_zero_state(
    model: LanguageModel, tokenizer
) -> None:
    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        logits = model(ids, predict="current").logits[0].double()
    expected = float(functional.cross_entropy(logits, ids[0], reduction="sum"))
    result = run(model, tokenizer, [TEXT], kind="carried", predict="current", bos="none", seq_len=9)
    assert total_nats(result) == pytest.approx(expected, rel=1e-6)
    assert result.tokens == len(TEXT.encode())
    # with BOS read first, both readings are the same prediction of each token
    both = [run(model, tokenizer, [TEXT], kind="carried", predict=p) for p in ("next", "current")]
    assert both[0].loss == pytest.approx(both[1].loss, rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "windows", "seq_len": 13},
        {"kind": "windows", "seq_len": 13, "bos": "window"},
        {"kind": "windows", "seq_len": 13, "bos": "window", "predict": "current"},
        {"kind": "strided", "seq_len": 13, "stride": 5, "predict": "current"},
        {"kind": "carried", "seq_len": 13},
        {"kind": "carried", "seq_len": 13, "predict": "current", "bos": "none"},
    ],
)
def test_batch_size_changes_nothing(model: LanguageModel, tokenizer, fields: dict) -> None:
    texts = [TEXT, "short", TEXT[:40], "", "x", TEXT * 2]
    losses = [run(model, tokenizer, texts, batch_size=b, **fields) for b in (1, 4, 64)]
    assert len({(r.tokens, r.bytes) for r in losses}) == 1
    assert losses[0].tokens == sum(len(t.encode()) for t in texts)
    for other in losses[1:]:
        assert other.loss == pytest.approx(losses[0].loss, rel=1e-6)


def test_documents_do_not_see_each_other(model: LanguageModel, tokenizer) -> None:
    alone = sum(total_nats(run(model, tokenizer, [t], kind="carried")) for t in (TEXT, "abc"))
    together = total_nats(run(model, tokenizer, [TEXT, "abc"], kind="carried"))
    assert together == pytest.approx(alone, rel=1e-6)


def test_bytes_are_exact_for_ids_that_split_characters(model: LanguageModel) -> None:
    tokenizer = subword(bos="<s>")
    assert any(0x80 <= tokenizer.bytes_of(i)[0] < 0xC0 for i in tokenizer.encode(TEXT))
    small = ToyModel(ToyConfig(vocab_size=tokenizer.vocab_size))
    result = run(small, tokenizer, [TEXT], kind="windows", seq_len=5, bos="document")
    assert result.bytes == len(TEXT.encode())
    assert result.tokens == len(tokenizer.encode(TEXT)) < result.bytes
    # without BOS the first token counts neither as a token nor as bytes
    bare = run(small, tokenizer, [TEXT], kind="windows", seq_len=5, bos="none")
    assert bare.tokens == result.tokens - 1
    assert bare.bytes == result.bytes - len(tokenizer.bytes_of(tokenizer.encode(TEXT)[0]))
    some = run(small, tokenizer, [TEXT], kind="windows", seq_len=5, bos="document", max_windows=2)
    first = tokenizer.encode(TEXT)[:10]
    assert (some.tokens, some.bytes) == (10, sum(len(tokenizer.bytes_of(i)) for i in first))


def test_a_wrong_tokenizer_is_refused(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="280 ids, the model's vocab_size is 259"):
        run(model, subword(), [TEXT])
    with pytest.raises(InputError, match="was trained with abcdabcd"):
        evaluate_text(model, ByteTokenizer(), "unread", trained_with="abcd" * 16)


def test_a_vocabulary_rounded_up_is_accepted(tokenizer) -> None:
    assert run(ToyModel(ToyConfig(vocab_size=384)), tokenizer, ["ab"]).tokens == 2
    with pytest.raises(InputError, match="vocab_size is 385"):
        run(ToyModel(ToyConfig(vocab_size=385)), tokenizer, ["ab"])


def test_a_model_of_bounded_length_is_respected(tokenizer) -> None:
    model = ToyModel(ToyConfig(vocab_size=259, length=16))
    assert run(model, tokenizer, [TEXT], seq_len=16).tokens
    for fields in ({"seq_len": 17}, {"kind": "carried"}):
        with pytest.raises(InputError, match="holds at most 16 positions"):
            run(model, tokenizer, [TEXT], **fields)


def test_broken_parameters_are_named(tokenizer) -> None:
    model = ToyModel(ToyConfig(vocab_size=259))
    with torch.no_grad():
        model.embedding.weight[3] = float("nan")
    with pytest.raises(InputError, match="NaN or infinite"):
        run(model, tokenizer, [TEXT])


@pytest.mark.parametrize("texts", [[""], ["", ""]])
def test_nothing_to_predict_is_refused(model: LanguageModel, tokenizer, texts: list) -> None:
    with pytest.raises(InputError, match="no token can be predicted"):
        run(model, tokenizer, texts)


def test_files(model: LanguageModel, tokenizer, tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl.gz"
    lines.write_bytes(gzip.compress(json.dumps({"text": TEXT}).encode() + b"\n"))
    (tmp_path / "b.txt").write_text(TEXT, encoding="utf-8")
    result = evaluate_text(model, tokenizer, tmp_path, progress=False, seed=7)
    assert (result.documents, result.bytes, result.seed) == (2, 2 * len(TEXT.encode()), 7)
    import hashlib

    one = evaluate_text(model, tokenizer, tmp_path / "b.txt", progress=False)
    assert one.data_sha256 == hashlib.sha256((tmp_path / "b.txt").read_bytes()).hexdigest()
    (tmp_path / "c.txt").write_bytes(b"caf\xe9")
    with pytest.raises(CorpusError, match="not UTF-8: byte 0xe9 at offset 3"):
        evaluate_text(model, tokenizer, tmp_path / "c.txt", progress=False)
    (tmp_path / "d.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match="empty"):
        evaluate_text(model, tokenizer, tmp_path / "d.txt", progress=False)


def test_the_model_comes_back_as_it_was(model: LanguageModel, tokenizer) -> None:
    model.train()
    before = [p.clone() for p in model.parameters()]
    run(model, tokenizer, [TEXT])
    assert model.training and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_bf16_is_labelled_and_close(model: LanguageModel, tokenizer) -> None:
    kwargs = {"data": "t", "progress": False}
    documents = [Document(TEXT, "t")]
    fp32 = evaluate_documents(model, tokenizer, documents, **kwargs)
    bf16 = evaluate_documents(model, tokenizer, documents, precision="bf16", **kwargs)
    assert (fp32.dtype, bf16.dtype) == ("float32", "bfloat16 over float32")
    assert bf16.loss == pytest.approx(fp32.loss, rel=0.02)
    assert bf16.loss != fp32.loss
    with pytest.raises(InputError, match="precision='fp8'"):
        evaluate_documents(model, tokenizer, documents, precision="fp8", **kwargs)
