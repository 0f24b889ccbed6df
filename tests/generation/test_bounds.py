"""Generation at the longest text that a model holds: nothing is lost, nothing begins in vain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.errors import InputError
from palimpsest.generation import Session, generate, stream
from palimpsest.models import LanguageModel
from palimpsest.text import ByteTokenizer

BOUND = 24
SIZES = {"vocab_size": 259, "d_model": 12, "n_layers": 1, "n_heads": 2, "max_seq_len": BOUND}
FIELDS = {
    "transformer": {},
    "transformer-triple": {"state_dim": 3},
    "triple-latent": {"state_dim": 3},
    "triple-slot-hybrid": {"state_dim": 3},
    "gated-hybrid": {"state_dim": 3, "assoc_dim": 5},
}


@pytest.fixture(params=sorted(FIELDS))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(0)
    return palimpsest.build(request.param, **SIZES, **FIELDS[request.param]).eval()


def test_a_session_ends_at_the_bound_and_is_saved(model: LanguageModel, tmp_path: Path) -> None:
    def begin() -> Session:
        session = Session(model, ByteTokenizer(), seed=3)
        session.feed("ab cd")
        return session

    session, exact = begin(), begin()
    room = session.room
    assert room is not None and 0 < room < BOUND
    text = "".join(session.generate(1000))
    assert (session.finished, session.room) == ("length", 0)
    assert "".join(exact.generate(room)) == text
    loaded = Session.load(session.save(tmp_path / "s"), model, ByteTokenizer())
    for full in (session, loaded):
        with pytest.raises(InputError, match=f"as long as .* holds, {BOUND} tokens"):
            full.generate(1)
        with pytest.raises(InputError, match=f"{BOUND} tokens in the state.*at most {BOUND}"):
            full.feed("more")


def test_a_prompt_that_does_not_fit_leaves_the_session_as_it_was(model: LanguageModel) -> None:
    session, other = (Session(model, ByteTokenizer(), seed=1) for _ in range(2))
    session.feed("abc")
    other.feed("abc")
    with pytest.raises(InputError, match=f"at most {BOUND} positions"):
        session.feed("x" * BOUND)
    assert "".join(session.generate(9)) == "".join(other.generate(9))


def test_a_state_without_room_is_refused_before_anything_is_read(model: LanguageModel) -> None:
    prompt = torch.full((2, 10), 97)
    out = generate(model, prompt, max_new_tokens=5)
    rest = BOUND - 14
    with pytest.raises(InputError, match=f"14 tokens in the state, 1 prompt.*at most {BOUND}"):
        stream(model, out.pending, state=out.state, max_new_tokens=rest + 1)
    assert (
        generate(model, out.pending, state=out.state, max_new_tokens=rest).tokens.shape[1] == rest
    )


def test_padding_takes_no_position(model: LanguageModel) -> None:
    """Rows of unequal length: each row's own tokens count."""
    prompt = torch.full((2, BOUND), 97)
    mask = torch.ones_like(prompt)
    mask[0, :10], mask[1, :4] = 0, 0
    room = BOUND - (BOUND - 4) + 1
    out = generate(model, prompt, attention_mask=mask, max_new_tokens=room)
    assert out.tokens.shape == (2, room)
    with pytest.raises(InputError, match=f"row 1: {BOUND - 4} prompt tokens.*at most {BOUND}"):
        generate(model, prompt, attention_mask=mask, max_new_tokens=room + 1)
    # one row is full, the other is not
    with pytest.raises(InputError, match="row 1: "):
        generate(model, out.pending, state=out.state, max_new_tokens=1)
    generate(model, out.pending[:1], state=out.state.select(0), max_new_tokens=6)


def test_the_trained_length_is_the_bound(model: LanguageModel) -> None:
    model.trained_length = 12
    session = Session(model, ByteTokenizer())
    session.feed("ab")
    "".join(session.generate(1000))
    assert (session.finished, int(session.state.position)) == ("length", 12)
    with pytest.raises(InputError, match=f"12 positions .the length it was trained on; .* {BOUND}"):
        generate(model, torch.full((1, 13), 97), max_new_tokens=1)
    model.window = BOUND
    generate(model, torch.full((1, 13), 97), max_new_tokens=1)


def test_a_sliding_window_generates_on() -> None:
    torch.manual_seed(0)
    model = palimpsest.build("transformerpp", vocab_size=259, d_model=12, n_layers=1, n_heads=2)
    model.eval().trained_length = 16
    session = Session(model, ByteTokenizer(), seed=2)
    session.feed("a prompt")
    "".join(session.generate(60))
    assert (session.finished, session.room, session.window) == ("length", None, 16)
    assert session.state.nbytes == model.state_bytes(1, 16)


def test_rows_at_different_positions_each_have_their_own_room() -> None:
    """States that were joined: the row that has read most sets the bound."""
    torch.manual_seed(0)
    model = palimpsest.build("triple-latent", **SIZES, state_dim=3).eval()
    with torch.no_grad():
        parts = [model(torch.full((1, n), 97)).state for n in (5, 20)]
    joined = palimpsest.State.cat(parts)
    assert model.room(joined).tolist() == [BOUND - 5, BOUND - 20]
    pending = torch.full((2, 1), 98)
    with pytest.raises(InputError, match=r"row 1: 20 tokens in the state"):
        generate(model, pending, state=joined, max_new_tokens=5)
    assert generate(model, pending, state=joined, max_new_tokens=4).tokens.shape == (2, 4)
    alone = generate(model, pending[:1], state=joined.select(0), max_new_tokens=BOUND - 5)
    assert alone.tokens.shape == (1, BOUND - 5)
    # a document that starts anew has all of the room again
    reset = model(pending, joined, reset_mask=torch.ones_like(pending)).state
    assert model.room(reset).tolist() == [BOUND - 1, BOUND - 1]
