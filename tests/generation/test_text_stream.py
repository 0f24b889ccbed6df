"""Text as it may be shown: whole characters, stop strings never given out, however ids are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.errors import InputError
from palimpsest.generation.text_stream import TextStream, Waiting, check_stop
from palimpsest.text import ByteTokenizer, Tokenizer

letters = st.text(alphabet="abé😀\n", max_size=20)
stops = st.lists(st.text(alphabet="abé😀\n", min_size=1, max_size=4), max_size=3)


class Pieces(Tokenizer):
    """Ids that stand for the byte strings given, so that a test chooses how a text is cut."""

    kind = "pieces"

    def __init__(self, table: list[bytes], prefix_space: bool = False) -> None:
        super().__init__(
            name="pieces",
            table=[*table, b""],
            special_ids=(len(table),),
            pad_id=None,
            bos_id=None,
            eos_id=len(table),
            prefix_space=prefix_space,
        )

    def _encode_text(self, text: str) -> list[int]:
        raise NotImplementedError

    def _definition(self) -> dict:
        return {"table": [entry.hex() for entry in self._table]}

    @classmethod
    def from_definition(cls, name: str, definition: dict) -> Pieces:
        raise NotImplementedError


def expected(text: str, stop: list[str]) -> tuple[str, bool]:
    """The definition: the text ends where a stop string is first complete."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(letters, stops, st.data())
def test_the_cut_into_ids_does_not_matter(text: str, stop: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8).map(sorted))
    edges = [0, *cuts, len(raw)]
    table = [raw[a:b] for a, b in itertools.pairwise(edges)]
    stream = TextStream(Pieces(table), stop)
    given_out = ""
    for token in range(len(table)):
        given_out += stream.push(token)
        # whatever has been given out stays right, whatever follows
        assert expected(text, stop)[0].startswith(given_out)
        stream_again = TextStream(Pieces(table), stop, stream.waiting)  # a pause
        stream_again.stopped = stream.stopped
        stream = stream_again
    given_out += stream.flush()
    assert (given_out, stream.stopped) == expected(text, stop)


def test_text_is_held_only_while_it_may_begin_a_stop() -> None:
    stream = TextStream(ByteTokenizer(), ["END"])
    assert [stream.push(b) for b in b"xENENDy"] == ["x", "", "", "EN", "", "", ""]
    assert stream.stopped and stream.flush() == ""


def test_characters_wait_for_their_last_byte() -> None:
    stream = TextStream(ByteTokenizer())
    assert [stream.push(b) for b in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    stream.push(0xF0)
    assert stream.waiting == Waiting(b"\xf0", "", False)
    assert stream.flush() == "\ufffd"
    assert stream.waiting == Waiting(b"", "", False)


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    stream = TextStream(ByteTokenizer())
    assert "".join(stream.push(b) for b in b"a\xff\xc3b") == "a\ufffd\ufffdb"


def test_the_dummy_space_of_a_beginning_is_left_out() -> None:
    tokenizer = Pieces([b" a", b" b"], prefix_space=True)
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in (0, 1, 2, 0)] == ["a", " b", "", "a"]
    continued = TextStream(tokenizer, (), Waiting(at_start=False))
    assert continued.push(0) == " a"


@pytest.mark.parametrize("stop", ["END", [""], [3]])
def test_nonsense_is_refused(stop: object) -> None:
    with pytest.raises(InputError, match="stop"):
        check_stop(stop)  # type: ignore[arg-type]
