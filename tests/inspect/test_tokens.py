"""What is shown of tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from palimpsest.inspect.tokens import cut_cells, token_label, visible
from palimpsest.text import ByteTokenizer

BYTES = ByteTokenizer()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <b>&amp;", "plain <b>&amp;"),
        ("a\nb", "a↵\nb"),
        ("a\tb", "a⇥\tb"),
        ("\x00\x07\x1b\x7f", "␀␇␛␡"),
        ("\r\n", "␍↵\n"),
        ("\u202eabc", "⟨202E⟩abc"),
        ("\x85\u2028\ufeff", "⟨0085⟩⟨2028⟩⟨FEFF⟩"),
        ("é🙂", "é🙂"),
    ],
)
def test_everything_can_be_seen(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_labels() -> None:
    names = {32: "␣", 10: "↵", 9: "⇥", 0: "␀", 65: "A", 0xC3: "0xC3", 60: "<"}
    assert {i: token_label(BYTES, i) for i in names} == names
    assert token_label(BYTES, 257) == "⟨begin⟩"
    assert token_label(BYTES, 258) == "⟨end⟩"
    assert token_label(BYTES, 300) == "⟨unused id 300⟩"


def shown_cells(text: str, ids: list[int], starts: tuple[int, ...] = (0,)) -> list[tuple[str, int]]:
    cells = cut_cells(BYTES, ids, starts)
    units = cells.text.encode("utf-16-le")
    ends = [0, *cells.ends_C.tolist()]
    parts = [units[2 * low : 2 * high].decode("utf-16-le") for low, high in pairwise(ends)]
    assert "".join(parts) == cells.text == visible(text)
    assert cells.n_bytes == len(ids)
    assert cells.byte_starts_N.tolist() == list(range(len(ids)))
    return list(zip(parts, cells.first_token_C.tolist(), strict=True))


def test_the_bytes_of_a_character_are_one_cell() -> None:
    text = "aé🙂\nb"
    assert shown_cells(text, BYTES.encode(text)) == [
        ("a", 0),
        ("é", 1),
        ("🙂", 3),
        ("↵\n", 7),
        ("b", 8),
    ]


def test_bytes_that_are_no_text_and_a_cut_character_at_the_end() -> None:
    ids = [0x61, 0xFF, 0x62, 0xE2, 0x82]
    assert shown_cells("a�b�", ids) == [("a", 0), ("�", 1), ("b", 2), ("�", 3)]


def test_a_character_ends_with_its_document() -> None:
    ids = [0x61, 0xC3, 0x62, 0x63]
    assert shown_cells("a�bc", ids, (0, 2)) == [("a", 0), ("�", 1), ("b", 2), ("c", 3)]
