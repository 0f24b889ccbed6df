"""Every public function with an argument of a likely wrong type: one clear line, or it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest import PalimpsestError, SamplingConfig, Session, State
from palimpsest.evaluation import Protocol
from palimpsest.text import ByteTokenizer

IDS = torch.tensor([[1, 2, 3]])
TOKENIZER = ByteTokenizer()
NOT_FUNCTIONS = {
    "CheckpointError", "ConfigError", "GradientError", "InputError", "PalimpsestError",
    "StateError", "StorageError", "__version__",
    "ModelOutput",  # returned by a model, not constructed by a user
    "backend_calls", "list_models", "list_presets",  # without arguments
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return palimpsest.build("transformerpp", vocab_size=259, d_model=16, n_layers=1, n_heads=2,
                            d_ffn=16).eval()  # fmt: skip


def generate(model: Any, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"model": model, "input_ids": IDS, "max_new_tokens": 2}
    return palimpsest.generate(**{**arguments, **changes})


def evaluate(model: Any, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "model": model, "tokenizer": TOKENIZER, "path": "absent.txt",
        "progress": False,
    }  # fmt: skip
    return palimpsest.evaluate_text(**{**arguments, **changes})


def train(**changes: Any) -> Any:
    return palimpsest.train(**{"recipe": "gpnm-tiny", "run_folder": "run", **changes})


def match(**changes: Any) -> Any:
    return palimpsest.match(
        **{"params": 300_000, "vocab_size": 259, "names": ["transformerpp"], **changes}
    )


def force(*names: Any, **by_op: Any) -> None:
    with palimpsest.force_backend(*names, **by_op):
        pass


# (public name, what is called with a model, what the message names)
WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("LanguageModel", lambda m: m("text"), r"input_ids='text' .* encode"),
    ("LanguageModel", lambda m: m([[1, 2]]), r"input_ids=\[\[1, 2\]\] .*torch\.tensor\("),
    ("LanguageModel", lambda m: m(np.ones((1, 2), int)), r"torch\.from_numpy\(input_ids\)"),
    ("LanguageModel", lambda m: m(7), r"input_ids=7 .* pass a tensor"),
    ("LanguageModel", lambda m: m(IDS.float()), r"input_ids of dtype torch\.float32"),
    ("LanguageModel", lambda m: m(IDS, targets=[[1, 2, 3]]), r"torch\.tensor\(targets\)"),
    ("LanguageModel", lambda m: m(IDS, attention_mask=[[1, 1, 1]]), "attention_mask"),
    ("LanguageModel", lambda m: m(IDS, reset_mask=np.ones((1, 3))), "reset_mask"),
    ("LanguageModel", lambda m: m(IDS, "tour.state"), "state of kind 'str'"),
    ("LanguageModel", lambda m: m(IDS, predict=1), "predict=1"),
    ("SamplingConfig", lambda m: SamplingConfig(temperature="0.8"), "temperature='0.8'"),
    ("SamplingConfig", lambda m: SamplingConfig(top_k=5.0), "top_k=5.0"),
    ("SamplingConfig", lambda m: SamplingConfig(top_p=None), "top_p=None"),
    ("Session", lambda m: Session("runs/x", TOKENIZER), r"model='runs/x' .*palimpsest\.load"),
    ("Session", lambda m: Session(m, "bytes"), r"tokenizer='bytes' .*load_tokenizer\('bytes'\)"),
    ("Session", lambda m: Session(m, None), r"tokenizer=None .*load_tokenizer\(FILE\)"),
    ("Session", lambda m: Session(m, TOKENIZER, "1"), "seed='1'"),
    ("Session", lambda m: Session(m, TOKENIZER, precision=32), "precision=32"),
    ("Session", lambda m: Session(m, TOKENIZER).feed(IDS), "text=a tensor .* pass text"),
    ("Session", lambda m: Session(m, TOKENIZER).feed(b"abc"), "text=b'abc'"),
    ("Session", lambda m: Session(m, TOKENIZER).generate("40"), "max_new_tokens='40'"),
    ("Session", lambda m: Session(m, TOKENIZER).generate(4, {"top_p": 0.9}), "sampling="),
    ("Session", lambda m: Session(m, TOKENIZER).generate(4, 0.8), "sampling=0.8"),
    ("Session", lambda m: Session(m, TOKENIZER).generate(4, stop="\n"), "stop="),
    ("Session", lambda m: Session(m, TOKENIZER).save(None), "path=None"),
    ("Session", lambda m: Session.load(3, m, TOKENIZER), "path=3"),
    ("Session", lambda m: Session.load("a", "runs/x", TOKENIZER), "model='runs/x'"),
    ("Session", lambda m: Session.load("a", m, "bytes"), "tokenizer='bytes'"),
    ("State", lambda m: State.load(None), "path=None"),
    ("State", lambda m: m(IDS).state.save(None), "path=None"),
    ("State", lambda m: State.cat(m(IDS).state), "states=.* pass a list"),
    ("State", lambda m: State.cat([1]), r"states\[0\]=1"),
    ("State", lambda m: m(IDS).state.select("0"), "rows='0'"),
    ("State", lambda m: m(IDS).state.select(0.5), "rows=0.5"),
    ("build", lambda m: palimpsest.build(3), "model=3"),
    ("build", lambda m: palimpsest.build(m), "model=.* pass the name"),
    ("build", lambda m: palimpsest.build("gpnm-tiny", d_state="64"), "d_state='64'"),
    ("build", lambda m: palimpsest.build("gpnm-tiny", d_state=64.0), "d_state=64.0"),
    ("evaluate_text", lambda m: evaluate("runs/x"), "model='runs/x'"),
    ("evaluate_text", lambda m: evaluate(Path("runs/x")), "model=.*runs/x.*palimpsest.load"),
    ("evaluate_text", lambda m: evaluate(m, tokenizer="bytes"), "tokenizer='bytes'"),
    ("evaluate_text", lambda m: evaluate(m, path=3), "path=3"),
    ("evaluate_text", lambda m: evaluate(m, path=None), "path=None"),
    ("evaluate_text", lambda m: evaluate(m, protocol="carried"), "protocol='carried' .*Protocol"),
    ("evaluate_text", lambda m: evaluate(m, batch_size="8"), "batch_size='8'"),
    ("evaluate_text", lambda m: evaluate(m, batch_size=8.0), "batch_size=8.0"),
    ("evaluate_text", lambda m: evaluate(m, precision=16), "precision=16"),
    ("force_backend", lambda m: force(3), "backend=3"),
    ("force_backend", lambda m: force(grounded_loop=3), "backend=3"),
    ("force_backend", lambda m: force("numbas"), "backend 'numbas'"),
    ("generate", lambda m: generate("gpnm-tiny"), "model='gpnm-tiny' .*palimpsest.build"),
    ("generate", lambda m: generate(m, input_ids="text"), r"input_ids='text' .*Session"),
    ("generate", lambda m: generate(m, input_ids=[[1, 2]]), r"torch\.tensor\(input_ids\)"),
    ("generate", lambda m: generate(m, input_ids=np.ones((1, 2), int)), "from_numpy"),
    ("generate", lambda m: generate(m, input_ids=IDS[0]), "input_ids of shape"),
    ("generate", lambda m: generate(m, attention_mask=[[1, 1, 1]]), "attention_mask"),
    ("generate", lambda m: generate(m, max_new_tokens="40"), "max_new_tokens='40'"),
    ("generate", lambda m: generate(m, max_new_tokens=40.0), "max_new_tokens=40.0"),
    ("generate", lambda m: generate(m, sampling={"top_p": 0.9}), "sampling=.*SamplingConfig"),
    ("generate", lambda m: generate(m, stop_ids=3), "stop_ids=3"),
    ("generate", lambda m: generate(m, stop_ids="end"), "stop_ids='end'"),
    ("generate", lambda m: generate(m, seed="1"), "seed='1'"),
    ("generate", lambda m: generate(m, state="tour.state"), "state of kind 'str'"),
    ("generate", lambda m: generate(m, precision=16), "precision=16"),
    ("load", lambda m: palimpsest.load(None), "folder=None"),
    ("load", lambda m: palimpsest.load(m), "folder=.* pass a path"),
    ("load", lambda m: palimpsest.load("gpnm-tiny"), "gpnm-tiny"),
    ("load_recipe", lambda m: palimpsest.load_recipe(None), "recipe=None"),
    ("load_recipe", lambda m: palimpsest.load_recipe(m), "recipe="),
    ("load_recipe", lambda m: palimpsest.load_recipe("gpnm-tiny", [1]), r"overrides=\[1\]"),
    ("load_recipe", lambda m: palimpsest.load_recipe("gpnm-tiny", {3: 4}), "a key of overrides=3"),
    ("load_recipe", lambda m: palimpsest.load_recipe("gpnm-tiny", {"train.steps": "4"}), "steps"),
    ("load_recipe", lambda m: palimpsest.load_recipe("gpnm-tiny", {"data.train": 3}), "a list"),
    ("match", lambda m: match(params="0.3M"), "params='0.3M'"),
    ("match", lambda m: match(params=3e5), "params=300000.0"),
    ("match", lambda m: match(vocab_size="256"), "vocab_size='256'"),
    ("match", lambda m: match(names=3), "names=3"),
    ("match", lambda m: match(names=[3]), "3: no such architecture"),
    ("match", lambda m: match(names="gpnn"), "'gpnn': no such architecture; did you mean 'gpn'"),
    ("match", lambda m: match(tolerance="1%"), "tolerance='1%'"),
    ("resume", lambda m: palimpsest.resume(None), "run_folder=None"),
    ("resume", lambda m: palimpsest.resume(m), "run_folder="),
    ("resume", lambda m: palimpsest.resume("run", steps="40"), "steps='40'"),
    ("resume", lambda m: palimpsest.resume("run", device=0), "device=0"),
    ("train", lambda m: train(recipe="gpnm-tinny"), "did you mean 'gpnm-tiny'"),
    ("train", lambda m: train(recipe=m), "recipe=.*load_recipe"),
    ("train", lambda m: train(recipe={"train.steps": 3}), "recipe=.*load_recipe"),
    ("train", lambda m: train(run_folder=None), "run_folder=None"),
    ("train", lambda m: train(stop_after="3"), "stop_after='3'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(call, message, id=f"{name}-{i}")
        for i, (name, call, message) in enumerate(WRONG)
    ],
)
def test_a_wrong_type_is_one_clear_line(
    model: Any, call: Callable[[Any], Any], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PalimpsestError, match=message) as caught:
        call(model)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 800
    assert list(tmp_path.iterdir()) == []


def test_every_public_function_is_among_them() -> None:
    assert {name for name, _, _ in WRONG} == set(palimpsest.__all__) - NOT_FUNCTIONS


def test_what_is_meant_clearly_works(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("Text to read, again and again. " * 40, encoding="utf-8")
    made = generate(
        model, max_new_tokens=np.int64(2), stop_ids=(3,), sampling=SamplingConfig(temperature=1)
    )
    assert made.tokens.shape == (1, 2)
    changes = {"data.train": text, "train.steps": 1, "optimizer.lr": 1, "data.validation": [text]}
    recipe = palimpsest.load_recipe("gpnm-tiny", changes)
    assert recipe.data.train == (str(text),) and recipe.data.validation == (str(text),)
    by_name = palimpsest.match(300_000, 259, "transformerpp")
    assert by_name == match()
    found = evaluate(model, path=text, protocol=Protocol(seq_len=32))
    assert found.bits_per_byte > 0
    assert Path(model(IDS).state.save(tmp_path / "a.state")).exists()


def test_train_takes_a_recipe_by_its_name_or_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palimpsest.training import dump_recipe

    monkeypatch.chdir(tmp_path)
    with pytest.raises(PalimpsestError, match=r"data\.train is empty"):
        palimpsest.train("gpnm-tiny", "run")
    (tmp_path / "text.txt").write_text("Text to read, again. " * 40, encoding="utf-8")
    changes = {
        "data.train": "text.txt", "train.steps": 1, "train.batch_size": 1, "data.seq_len": 8,
        "train.eval_every": 0,
    }  # fmt: skip
    recipe = palimpsest.load_recipe("gpnm-tiny", changes)
    Path("mine.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    for i, given in enumerate(("mine.toml", Path("mine.toml"))):
        assert palimpsest.train(given, f"run{i}", progress=False).step == 1
