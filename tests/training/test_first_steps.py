"""What a first run prints: chance and trials, whether its text is readable, its vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from palimpsest import ConfigError, load_recipe, train
from palimpsest.cli.train import TrainArgs, describe_result, run
from palimpsest.training.batch import TrainingData
from palimpsest.training.prepare import prepare_model
from palimpsest.training.readability import READABLE_BYTES, readability_note

CPU = torch.device("cpu")


def data_of(vocab_size: int) -> TrainingData:
    return cast(TrainingData, SimpleNamespace(vocab_size=vocab_size))


def test_a_preset_takes_the_vocabulary_of_a_larger_tokenizer() -> None:
    """What ``--tokenizer FILE`` with a preset for bytes failed with: the number was known."""
    recipe = load_recipe("gpnm-tiny", {"data.train": "a.txt"})
    for ids, rows in ((6400, 6400), (300, 300), (259, 259), (100, 259)):
        model, resolved = prepare_model(recipe, data_of(ids), CPU)
        assert model.config.vocab_size == rows == resolved.model.fields["vocab_size"]
    large = load_recipe("gpnm-tiny", {"data.train": "a.txt", "model.vocab_size": 7000})
    assert prepare_model(large, data_of(6400), CPU)[0].config.vocab_size == 7000
    small = load_recipe("gpnm-tiny", {"data.train": "a.txt", "model.vocab_size": 300})
    message = r"model\.vocab_size=300: the data has 6400 ids; set model\.vocab_size=6400, or leave"
    with pytest.raises(ConfigError, match=message):
        prepare_model(small, data_of(6400), CPU)


def test_the_result_of_a_task_has_its_trials_and_chance(tmp_path: Any, capsys: Any) -> None:
    words = ("train.eval_batches=2", "data.task_fields.pairs=[1, 2]", "train.batch_size=4")
    args = TrainArgs(task="recall", out=tmp_path / "run", steps=1, set=words)
    assert run(args) == 0
    out = capsys.readouterr().out
    assert "% (16 trials, chance 12.5%)" in out and "note:" not in out


def test_an_older_row_without_trials_is_described() -> None:
    assert (
        describe_result({"loss": 1.0, "accuracy": 0.5}) == "validation: loss 1.0000, accuracy 50.0%"
    )
    text = describe_result({"loss": 1.0, "bits_per_byte": 2.0})
    assert text == "validation: loss 1.0000, bits_per_byte 2.0000"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_recall_recipe_learns_with_every_seed(tmp_path: Any, seed: int) -> None:
    """The first thing a reader tries; at 128 tokens and 3e-4 gpnm-tiny ended at chance."""
    recipe = load_recipe("recall", {"train.seed": seed})
    result = train(recipe, tmp_path / "run", progress=False)
    assert result.validation is not None and result.validation["accuracy"] > 0.97


def test_a_short_training_says_that_its_text_is_not_readable(
    make_recipe: Any, tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(train__steps=2)
    monkeypatch.setattr("palimpsest.cli.train.recipe_of", lambda _: recipe)
    assert run(TrainArgs(out=tmp_path / "run")) == 0
    read = 2 * recipe.train.batch_size * recipe.data.seq_len
    read -= 1  # the text has one byte less than tokens for each document end
    assert f"note: this model has read {read:,} bytes in training" in capsys.readouterr().out


def test_no_note_for_enough_text_or_for_what_is_not_known() -> None:
    text = {"tokens": 10, "bytes": 40}
    sizes = {"train": {"batch_size": 10}, "data": {"seq_len": 100}}
    run_of_text = {"recipe": sizes, "data": {"train": text}}
    steps = READABLE_BYTES // 4000
    assert readability_note(run_of_text, steps) is None
    assert "996,000 bytes in training" in (readability_note(run_of_text, steps - 1) or "")
    assert readability_note(run_of_text, None) is None
    assert readability_note({}, 3) is None
    assert readability_note({"recipe": sizes, "data": {}}, 3) is None
