"""Sessions: a pause anywhere changes nothing, and a foreign session is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest.errors import InputError, StateError
from palimpsest.generation import GREEDY, SamplingConfig, Session, generate
from palimpsest.models import LanguageModel
from palimpsest.state import State
from palimpsest.text import ByteTokenizer, Tokenizer
from tests.generation.conftest import SMALL
from tests.generation.toy_model import ToyConfig, ToyModel

FREE = SamplingConfig(temperature=1.2, repetition_penalty=1.05, top_p=0.99)
# bytes that often begin UTF-8 characters and stop strings
LOUD = SamplingConfig(temperature=8.0)
PROMPT = "Grüße, "


def begin(model: LanguageModel, tokenizer: Tokenizer, seed: int = 11) -> Session:
    session = Session(model, tokenizer, seed)
    session.feed(PROMPT)
    return session


def test_a_session_writes_what_generate_writes(model: LanguageModel, tokenizer) -> None:
    ids = torch.tensor([[257, *PROMPT.encode()]])
    rows = generate(
        model,
        ids,
        max_new_tokens=40,
        sampling=FREE,
        seed=11,
        stop_ids=[258],
        forbidden_ids=[256, 257],
    ).rows()
    session = begin(model, tokenizer)
    text = "".join(session.generate(40, FREE)) + session.flush()
    assert text == tokenizer.decode(rows[0])
    assert session.finished in ("length", "end")


@pytest.mark.parametrize("at", [1, 2, 7, 23])
@pytest.mark.parametrize("sampling", [GREEDY, FREE, LOUD])
def test_a_pause_changes_nothing(
    model: LanguageModel, tokenizer, tmp_path: Path, at: int, sampling: SamplingConfig
) -> None:
    stop = ["\x00\x01", "zz"]
    whole = begin(model, tokenizer)
    expected = "".join(whole.generate(24, sampling, stop))
    paused = begin(model, tokenizer)
    first = "".join(paused.generate(at, sampling, stop))
    paused.save(tmp_path / "session")
    if paused.finished != "length":
        assert first == expected
        return
    resumed = Session.load(tmp_path / "session", model, tokenizer)
    assert first + "".join(resumed.generate(24 - at, sampling, stop)) == expected
    assert resumed.finished == whole.finished
    same = zip(whole.state.named_tensors(), resumed.state.named_tensors(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in same)
    assert resumed.save(tmp_path / "r").read_bytes() == whole.save(tmp_path / "w").read_bytes()


def test_a_session_may_be_saved_between_two_pieces(
    model: LanguageModel, tokenizer, tmp_path: Path
) -> None:
    expected = "".join(begin(model, tokenizer).generate(30, FREE))
    session, text, tokens = begin(model, tokenizer), "", 0
    while True:
        piece = next(session.generate(1, FREE), "")
        text, tokens = text + piece, tokens + 1
        if session.finished == "end" or tokens == 30:
            break
        session.save(tmp_path / "s")
        session = Session.load(tmp_path / "s", model, tokenizer)
    assert text == expected


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(alphabet="aé😀 ", min_size=1, max_size=8), st.integers(0, 2**20))
def test_stop_strings_end_the_text(tmp_path: Path, stop: str, seed: int) -> None:
    """Loud text that is sure to hold one of the stop strings, and never gives it out."""
    model = ToyModel(ToyConfig(vocab_size=259)).double()
    free = Session(model, ByteTokenizer(), seed)
    text = "".join(free.generate(60, LOUD)) + free.flush()
    bounded = Session(model, ByteTokenizer(), seed)
    cut = "".join(bounded.generate(60, LOUD, [stop, text[10:12] or "q"]))
    assert text.startswith(cut)
    assert stop not in cut and (text[10:12] or "q") not in cut
    if len(text) > 13:
        assert bounded.finished == "stop" and len(cut) <= 10


def test_feeding_goes_on_in_the_same_state(model: LanguageModel, tokenizer) -> None:
    whole = Session(model, tokenizer, 4)
    whole.feed("one two three")
    pieces = Session(model, tokenizer, 4)
    for text in ("one", "", " two", " three"):
        pieces.feed(text)
    assert list(whole.generate(20, FREE)) == list(pieces.generate(20, FREE))


def test_feed_returns_the_text_that_waited(model: LanguageModel, tokenizer) -> None:
    session = begin(model, tokenizer)
    session._waiting = session._waiting.__class__(b"\xc3", "EN", False)
    assert session.feed("next") == "EN\ufffd"
    assert session.flush() == ""


def test_an_older_iterator_ends(model: LanguageModel, tokenizer) -> None:
    session = begin(model, tokenizer)
    old = session.generate(50, FREE)
    next(old)
    session.feed("something else")
    assert list(old) == []


def test_forks_share_the_past_only(model: LanguageModel, tokenizer) -> None:
    session = begin(model, tokenizer)
    one, two = session.fork(1), session.fork(2)
    first = "".join(one.generate(30, FREE))
    assert "".join(two.generate(30, FREE)) != first
    assert "".join(begin(model, tokenizer, 1).generate(30, FREE)) == first
    expected = "".join(begin(model, tokenizer).generate(30, FREE))
    assert "".join(session.generate(30, FREE)) == expected


def test_padding_and_bos_are_never_written(tokenizer) -> None:
    model = ToyModel(ToyConfig(vocab_size=384))  # rounded up: ids 259 … 383 stand for nothing
    session = Session(model, tokenizer, 3)
    for _ in range(5):
        list(session.generate(40, LOUD))
    assert not session._seen[0, [256, *range(259, 384)]].any()


def test_without_bos_and_prompt_there_is_nothing_to_continue(model: LanguageModel) -> None:
    session = Session(model, ByteTokenizer(), bos=False)
    session.feed("")
    with pytest.raises(InputError, match="feed a prompt first"):
        session.generate(1)
    session.feed("a")
    list(session.generate(1))


def test_bad_arguments_are_refused_at_once(model: LanguageModel, tokenizer) -> None:
    session = begin(model, tokenizer)
    with pytest.raises(InputError, match="pass a list of strings"):
        session.generate(1, stop="END")
    with pytest.raises(InputError, match="max_new_tokens=0"):
        session.generate(0)
    with pytest.raises(InputError, match="not valid Unicode"):
        session.feed("\udc80")
    with pytest.raises(InputError, match="not causal"):
        Session(ToyModel(ToyConfig(vocab_size=259, causal=False)), tokenizer)
    with pytest.raises(InputError, match="vocab_size is 20"):
        Session(ToyModel(ToyConfig(vocab_size=20)), tokenizer)


def test_a_foreign_session_is_refused_by_both_names(
    model: LanguageModel, tokenizer, tmp_path: Path
) -> None:
    path = begin(model, tokenizer).save(tmp_path / "s")
    gpn = palimpsest.build("gpn", vocab_size=259, d_state=20, d_emb=12).double()
    with pytest.raises(StateError, match=rf"{model.registry_name}\(.*not to .*gpn\("):
        Session.load(path, gpn, tokenizer)
    with torch.no_grad():
        next(model.parameters())[0] += 1e-3
    with pytest.raises(StateError, match=r"weights \w+.*weights \w+"):
        Session.load(path, model, tokenizer)


def test_another_tokenizer_is_refused(model: LanguageModel, tokenizer, tmp_path: Path) -> None:
    path = begin(model, tokenizer).save(tmp_path / "s")
    other = ByteTokenizer()
    other._fingerprint = "ab" * 32
    with pytest.raises(StateError, match=r"tokenizer.*abab"):
        Session.load(path, model, other)


def test_what_is_no_session_is_refused(tokenizer, tmp_path: Path) -> None:
    model = palimpsest.build("gpnm", vocab_size=259, **SMALL)
    with pytest.raises(StateError, match="no such file"):
        Session.load(tmp_path / "none", model, tokenizer)
    model.init_state(1).save(tmp_path / "state")
    with pytest.raises(StateError, match="'grounded', not a session"):
        Session.load(tmp_path / "state", model, tokenizer)
    path = begin(model, tokenizer).save(tmp_path / "s")
    record = State.load(path)
    dataclasses.replace(record, random=torch.zeros(3)).save(path)
    with pytest.raises(StateError, match="the session is damaged"):
        Session.load(path, model, tokenizer)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StateError, match="cut short"):
        Session.load(path, model, tokenizer)


def test_a_failed_save_leaves_the_older_file(
    model: LanguageModel, tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(model, tokenizer)
    before = session.save(tmp_path / "s").read_bytes()
    list(session.generate(3))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        session.save(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
