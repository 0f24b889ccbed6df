"""A new architecture works in every command, or one line says what it has to declare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest import analysis
from palimpsest.analysis.parts import model_parts
from palimpsest.cli.main import main
from palimpsest.compare.settings import CompareSettings, parse_model
from palimpsest.compare.sizes import fields_at
from palimpsest.errors import InputError
from palimpsest.inspect import collect
from palimpsest.taps import Tap, tap
from palimpsest.text import ByteTokenizer
from tests.gru import GRU, registered

TEXT = "The state is rewritten at every token; nothing else is kept.\n" * 40


@pytest.fixture(autouse=True)
def gru() -> Iterator[None]:
    with registered():
        yield


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    return (code, *capsys.readouterr())


def test_match_and_compare_find_its_sizes(tmp_path: Path) -> None:
    (found,) = palimpsest.match(300_000, 259, ["gru"])
    assert abs(found.deviation) <= 0.01 and set(found.fields) == {"vocab_size", "width"}
    settings = CompareSettings(
        models=(parse_model("gru"), parse_model("gpnm")),
        train=tmp_path / "t",
        valid=tmp_path / "v",
        sizes=(300_000,),
    )
    name, fields, parameters = fields_at(settings.models[0], 300_000, settings, 259)
    assert name == "gru" and abs(parameters - 300_000) <= 3_000 and "width" in fields


def test_match_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"n_layers=2: 'gru' has no field n_layers"):
        palimpsest.match(300_000, 259, ["gru"], n_layers=2)
    monkeypatch.setattr(GRU, "scaling", None)
    with pytest.raises(InputError, match=r"'gru': declare `scaling = Scaling\(...\)`"):
        palimpsest.match(300_000, 259, ["gru"])
    monkeypatch.delattr(GRU, "body_flops")
    with pytest.raises(InputError, match="gru: define `body_flops"):
        palimpsest.build("gru", vocab_size=9, width=4).flops(3)


def test_viewer_names_the_tap_to_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = palimpsest.build("gru", vocab_size=259, width=8), ByteTokenizer()
    ids = [tokenizer.encode("one two three four")]
    with pytest.raises(InputError, match=r"gru: .*tap.*`state\.predicted`.*`residual`"):
        collect(model, tokenizer, ids)
    plain = GRU.encode

    def encode(self: GRU, *given: object) -> object:
        features, state = plain(self, *given)  # type: ignore[arg-type]
        return tap(self, "state.predicted", features), state

    monkeypatch.setattr(GRU, "encode", encode)
    described = {"state.predicted": Tap("(B,T,D)", "what the head reads")}
    monkeypatch.setattr(GRU, "describe_taps", lambda self: described, raising=False)
    found = collect(model, tokenizer, ids)
    assert found.trajectory == "state.predicted" and len(found.surprise_N) == len(ids[0])


def test_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(TEXT, encoding="utf-8")
    sizes = ("--set", "model.width=16", "--set", "model.vocab_size=259")
    small = ("--set", "data.seq_len=16", "--set", "train.batch_size=2")
    done = command(
        capsys,
        "train",
        "--model",
        "gru",
        "--data",
        text,
        "--out",
        run,
        "--steps",
        3,
        *sizes,
        *small,
    )
    assert done[0] == 0, done[2]
    for words in (
        ("info", "gru"),
        ("info", run),
        ("eval", run, "--text", text),
        ("generate", run, "--prompt", "The", "--max-new-tokens", 4),
        ("eval", run, "positions", "--text", text, "--seq-len", 16),
        ("eval", run, "throughput", "--lengths", 8, "--batches", 1),
        ("match", "--params", "300k", "--vocab", 259, "gru"),
    ):
        code, _, err = command(capsys, *words)
        assert code == 0, (words, err)
    for name in ("inspect", "study"):
        code, _, err = command(capsys, name, run, "--text", text, "--out", tmp_path / name)
        assert code == 2 and "declare `state.predicted`" in err.replace("\n", " "), err
        assert "Traceback" not in err


def test_analyses_say_what_to_declare() -> None:
    model = palimpsest.build("gru", vocab_size=259, width=8).eval()
    ids = torch.randint(0, 259, (4, 16))
    parts = model_parts(model)
    assert not parts.memories and not parts.ffns
    with pytest.raises(InputError, match="this model has no heads"):
        parts.check([(0, 0)])
    with analysis.record(model, ["logits"]) as tape:
        model(ids)
    assert tape["logits"].shape == (4, 16, 259)
