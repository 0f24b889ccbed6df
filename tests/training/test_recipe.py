"""Recipes: every key checked, values changed by dotted name, written back equal."""

from __future__ import annotations

import os
import threading

import pytest

from palimpsest import ConfigError, list_presets
from palimpsest.models.registry import resolve
from palimpsest.training import dump_recipe, list_recipes, load_recipe
from palimpsest.training.recipe_file import parse_assignment

BYTES = ("gpnm-tiny", "gpnm-1m", "gpn-1m")
PUBLISHED = ("gpnm-130m", "gpnm-130m-2l", "gpn-130m")


@pytest.mark.parametrize("name", list_recipes())
def test_every_built_in_recipe_is_complete_and_survives_writing(name, tmp_path):
    recipe = load_recipe(name)
    assert list_recipes()[name]
    # a task brings the vocabulary of an architecture that is named without one
    vocabulary = {"vocab_size": 64} if recipe.data.task == "recall" else {}
    resolve(recipe.model.name, {**vocabulary, **recipe.model.fields})
    path = tmp_path / "recipe.toml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path) == recipe


def test_the_recipes_that_the_documentation_names_are_there():
    assert set(list_recipes()) == {*BYTES, *PUBLISHED, "recall", "recall-published", "mqar"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_have_the_published_values(name):
    """Source: arXiv 2605.10643, training set-up."""
    recipe = load_recipe(name)
    assert list_presets()[recipe.model.name].fields["vocab_size"] == 32000
    assert (recipe.data.seq_len, recipe.train.batch_size, recipe.train.steps) == (2048, 128, 10_000)
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.min_lr_ratio) == (6e-4, 100, 0.1)
    assert (optimizer.schedule, optimizer.weight_decay) == ("cosine", 0.1)
    assert (recipe.train.precision, recipe.train.predict) == ("bf16", "current")
    assert recipe.train.bptt == (512 if name == "gpnm-130m-2l" else 0)


def test_published_recall_has_the_published_values():
    """Source: arXiv 2606.05175, associative recall."""
    recipe = load_recipe("recall-published")
    assert (recipe.data.seq_len, recipe.train.batch_size, recipe.train.eval_batches) == (
        128,
        32,
        64,
    )
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (3e-4, 0.01)
    assert recipe.data.task_fields == {"pairs": [4]}


def test_overrides_and_another_model():
    changes = {"train.steps": 7, "optimizer.lr": 1, "data.train": "a.txt", "model.d_state": 40}
    recipe = load_recipe("gpnm-tiny", changes)
    assert (recipe.train.steps, recipe.optimizer.lr) == (7, 1.0)
    assert recipe.data.train == ("a.txt",)
    assert recipe.model.fields == {"d_state": 40}
    other = load_recipe("gpnm-tiny", {"model.d_state": 40, "model.name": "gpn-1m"})
    assert other.model.name == "gpn-1m" and other.model.fields == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.stepz": 3}, r"no such key 'stepz'; did you mean 'steps'"),
        ({"optimiser.lr": 3.0}, r"no such section 'optimiser'; did you mean 'optimizer'"),
        ({"steps": 3}, r"name the section too, such as train\.steps"),
        ({"train.steps": 0}, r"train\.steps=0: must be at least 1"),
        ({"train.steps": 2.5}, r"train\.steps=2\.5: must be a whole number"),
        ({"train.steps": True}, r"must be a whole number"),
        ({"train.device": 3}, r"must be text"),
        ({"data.reset_at_documents": 1}, r"must be true or false"),
        ({"train.precision": "fp16"}, r"must be one of 'fp32', 'bf16'"),
        ({"optimizer.betas": [0.9]}, r"must be a list of 2"),
        ({"optimizer.betas": [0.9, 1.0]}, r"from 0 to below 1"),
        ({"optimizer.lr": 0.0}, r"must be above 0"),
        ({"optimizer.lr": float("nan")}, r"must be above 0"),
        ({"optimizer.clip_norm": -1}, r"must be at least 0"),
        ({"data.validation_fraction": 1.0}, r"from 0 to below 1"),
        ({"train.seed": -1}, r"2\^63"),
        ({"train.grad_accumulation": 3}, r"must divide train\.batch_size=16"),
        ({"train.bptt": 999}, r"more than data\.seq_len"),
        ({"data.task": "recall", "data.train": "a.txt"}, r"give one of the two"),
        ({"data.task": "recall", "data.order": "stream"}, r"do not go on"),
        ({"data.task": "recall", "train.predict": "current"}, r"use 'next'"),
        ({"data.task_fields": {"pairs": 2}}, r"without data\.task"),
        ({"train": 3}, r"name the section too"),
        ({"train.steps.more": 3}, r"'steps' is a value, not a section|no such key"),
    ],
)
def test_wrong_values_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("gpnm-tiny", changes)


def test_recipes_that_are_not_there_or_not_toml(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'gpnm-1m'"):
        load_recipe("gpnm-1n")
    path = tmp_path / "broken.toml"
    path.write_text("[model\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_recipe(path)
    path.write_text("[train]\nsteps = 3\n")
    with pytest.raises(ConfigError, match=r"needs a section \[model\]"):
        load_recipe(path)


def test_assignments_of_the_command_line():
    assert parse_assignment("optimizer.lr=3e-4") == ("optimizer.lr", 3e-4)
    assert parse_assignment("data.task_fields.pairs=[4, 8]") == ("data.task_fields.pairs", [4, 8])
    assert parse_assignment("model.name=gpn-1m") == ("model.name", "gpn-1m")
    assert parse_assignment("data.train=C:\\texts\\a=b.txt") == ("data.train", "C:\\texts\\a=b.txt")
    with pytest.raises(ConfigError, match="must be key=value"):
        parse_assignment("train.steps")


def test_strings_survive_toml(tmp_path):
    odd = 'a "quoted" \\ path\twith é 文 and \x7f'
    recipe = load_recipe("gpnm-tiny", {"data.train": [odd, "b"], "data.task_fields": {}})
    path = tmp_path / "recipe.toml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path).data.train == (odd, "b")


def test_a_byte_order_mark_and_a_pipe(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b'\xef\xbb\xbf[model]\nname = "gpnm-tiny"\n')
    assert load_recipe(path).model.name == "gpnm-tiny"
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(path.read_bytes(),))
    writer.start()
    assert load_recipe(pipe).model.name == "gpnm-tiny"
    writer.join()


@pytest.mark.parametrize("value", ["[" * 100_000, "1" * 5000], ids=["deep", "long"])
def test_what_toml_cannot_read_is_one_line(tmp_path, value):
    path = tmp_path / "a.toml"
    path.write_text(f"a = {value}")
    with pytest.raises(ConfigError, match=r"a\.toml: is (nested too deeply|not valid TOML)"):
        load_recipe(path)
    assert parse_assignment(f"a={value}") == ("a", value)
