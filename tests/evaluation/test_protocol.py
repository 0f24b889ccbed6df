"""The cut of a text into windows: each token predicted once, from what the protocol says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.errors import InputError
from palimpsest.evaluation.protocol import (
    IGNORED,
    Protocol,
    document_windows,
    first_counted,
    text_windows,
)
from palimpsest.text import ByteTokenizer

BOS = 257


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    kind = draw(st.sampled_from(["windows", "strided", "carried"]))
    seq_len = draw(st.integers(1, 9))
    return Protocol(
        kind=kind,
        seq_len=seq_len,
        stride=draw(st.integers(1, seq_len)) if kind == "strided" else None,
        predict=draw(st.sampled_from(["next", "current"])),
        bos=draw(st.sampled_from(["document", "none"] + ["window"] * (kind != "carried"))),
    )


@given(protocols(), st.integers(0, 30))
def test_every_token_is_predicted_exactly_once(protocol: Protocol, length: int) -> None:
    tokens = np.arange(length, dtype=np.uint16)
    windows = list(document_windows(tokens, protocol, BOS))
    counted = [int(t) for w in windows for t in w.targets if t != IGNORED]
    assert counted == list(range(first_counted(protocol), length))
    for window in windows:
        assert window.inputs.shape == window.targets.shape
        for position, target in enumerate(window.targets):
            if target == IGNORED:
                continue
            if protocol.predict == "current":
                assert window.inputs[position] == target
            else:  # the input before a target is the token before it, or BOS
                before = target - 1 if position or protocol.bos != "window" else BOS
                assert window.inputs[position] == (BOS if target == 0 else before)


@given(protocols(), st.integers(1, 30))
def test_windows_are_as_long_as_stated(protocol: Protocol, length: int) -> None:
    windows = list(document_windows(np.arange(length), protocol, BOS))
    if protocol.kind == "carried":
        assert len(windows) <= 1
        return
    extra = int(protocol.bos == "window" and protocol.predict == "current")
    assert all(len(w.inputs) == protocol.seq_len + extra for w in windows[:-1])
    assert all(len(w.inputs) <= protocol.seq_len + extra for w in windows)


def test_strided_windows_have_context() -> None:
    protocol = Protocol(kind="strided", seq_len=6, stride=2, bos="none")
    windows = list(document_windows(np.arange(12), protocol, None))
    for window in windows[1:]:
        assert (window.targets[:4] == IGNORED).all()  # N - S tokens of context
    assert [int((w.targets != IGNORED).sum()) for w in windows] == [6, 2, 2, 1]


def test_a_limit_keeps_the_first_windows() -> None:
    protocol = Protocol(seq_len=4, max_windows=2, bos="none")
    windows = list(text_windows([np.arange(30)], protocol, None))
    assert [(i, w.inputs.tolist()) for i, w in windows] == [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7])]


def test_a_limit_counts_the_windows_of_all_documents() -> None:
    protocol = Protocol(seq_len=4, max_windows=3, bos="none")
    documents = [np.arange(6), np.arange(1), np.arange(10, 30), np.arange(5)]
    windows = list(text_windows(documents, protocol, None))
    assert [i for i, _ in windows] == [0, 0, 2]
    assert len(list(text_windows(documents, Protocol(seq_len=4, bos="none"), None))) == 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "sliding"}, "kind='sliding'"),
        ({"predict": "past"}, "predict='past'"),
        ({"seq_len": 0}, "seq_len=0"),
        ({"kind": "strided", "seq_len": 4, "stride": 5}, "stride=5"),
        ({"stride": 2}, "only the strided protocol"),
        ({"kind": "carried", "max_windows": 2}, "max_windows=2"),
        ({"kind": "carried", "bos": "window"}, "has no windows"),
    ],
)
def test_nonsense_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Protocol(**fields)


def test_bos_is_decided_by_the_tokenizer() -> None:
    tokenizer = ByteTokenizer()
    assert Protocol().resolve(tokenizer).bos == "document"
    tokenizer.bos_id = None
    assert Protocol().resolve(tokenizer).bos == "none"
    with pytest.raises(InputError, match="has no BOS token"):
        Protocol(bos="window").resolve(tokenizer)


def test_the_description_says_all_of_it() -> None:
    text = Protocol(kind="strided", seq_len=8, stride=3, bos="none").describe()
    for part in ("windows of 8 tokens every 3", "state reset", "no BOS", "not counted", "next"):
        assert part in text
    assert "carried through" in Protocol(kind="carried", bos="document").describe()
