"""The tables say what the papers say."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import ConfigError
from palimpsest.models import list_models, list_presets
from palimpsest.reproduce import Row, Table, get_table, list_tables
from palimpsest.reproduce.experiments import RecallExperiment, RecipeExperiment, TextExperiment
from palimpsest.reproduce.measure_recipe import recipe_of
from palimpsest.reproduce.measure_text import build_row

NAMES = list(list_tables())
EVERY = [(name, scale) for name in NAMES for scale in ("small", "full")]


def row(table: str, label: str, scale: str = "small") -> Row:
    return next(r for r in get_table(table, scale).rows if r.label == label)


@pytest.mark.parametrize(
    ("table", "label", "metric", "figure"),
    [
        ("generic", "Transformer", "bits_per_byte", 5.124),
        ("generic", "Transformer", "recall", 0.254),
        ("generic", "Triple-Hybrid, published convolution", "bits_per_byte", 4.766),
        ("generic", "Triple-Hybrid, causal", "bits_per_byte_1024", 5.034),
        ("parameter-matched", "Triple-Slot d60", "bits_per_byte", 5.126),
        ("budget", "Triple-Hybrid d64 S8, published convolution", "bits_per_byte", 4.806),
        ("recall-hybrid", "Gated Hybrid, published start and convolution", "recall", 0.419),
        ("recall-hybrid", "Triple-Hybrid, published convolution", "bits_per_byte", 4.843),
        ("stabilisation", "Gated Hybrid, published start and convolution", "recall", 0.127),
        ("minimind", "Transformer+Triple", "token_loss", 7.239),
        ("throughput", "Transformer", "tokens_per_s_64", 602_684),
        ("throughput", "Gated Hybrid", "over_transformer_512", 3.9),
        ("flops", "Triple-Hybrid", "mflop_paper_512", 174.0),
        ("grounded", "GPN 1L", "lambada_perplexity", 263.6),
        ("grounded", "GPN+M 2L", "perplexity", 16.95),
    ],
)
def test_published_figures(table: str, label: str, metric: str, figure: float) -> None:
    assert row(table, label).published[metric] == figure


def test_protocols() -> None:
    text = next(e for e in get_table("generic").experiments if isinstance(e, TextExperiment))
    assert (text.steps, text.batch, text.length, text.windows) == (80, 16, 128, 2048)
    assert (text.lr, text.weight_decay, text.clip_norm) == (3e-4, 0.05, 1.0)
    (attempt,) = get_table("stabilisation").experiments
    assert isinstance(attempt, RecallExperiment)
    assert attempt.warmup_steps == 50 and attempt.read_gate_bias == -2.0
    assert [attempt.length_at(step) for step in (0, 75, 150, 400)] == [32, 80, 128, 128]
    assert get_table("recall-hybrid").seeds == (7, 19, 29)
    (two,) = row("grounded", "GPN+M 2L", "full").experiments or ()
    assert isinstance(two, RecipeExperiment)
    assert two.recipe["train"]["bptt"] == 512 and two.recipe["train"]["steps"] == 10_000


@pytest.mark.parametrize("name", NAMES)
def test_every_row_builds_with_its_published_size(name: str) -> None:
    for entry in get_table(name).rows:
        assert entry.model in list_models()
        with torch.device("meta"):
            config = {"model": entry.model, "fields": entry.fields, "parameters": entry.parameters}
            model = build_row(config, 259)
        assert model.causal is entry.causal
        assert ("not causal" in entry.remark) is not entry.causal


def test_the_small_scale_has_equal_parameters() -> None:
    counts = []
    for entry in get_table("grounded").rows:
        with torch.device("meta"):
            counts.append(
                build_row({"model": entry.model, "fields": entry.fields}, 259).num_parameters()
            )
    assert max(counts) < 1.01 * min(counts) and max(counts) <= 300_000


def test_the_full_scale_names_presets() -> None:
    models = [entry.model for entry in get_table("grounded", "full").rows]
    assert set(models) <= set(list_presets()) and len(models) == 5


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_labels_are_unique_and_quick_is_labelled(name: str, scale: str) -> None:
    table = get_table(name, scale)
    assert len({entry.label for entry in table.rows}) == len(table.rows)
    quick = table.as_quick()
    assert quick.quick and "quick" in quick.title and len(quick.seeds) == 1
    steps = [getattr(e, "steps", 2) for e in quick.experiments]
    assert max(steps) <= 2


def test_unknown_tables_and_scales_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'genric'.*did you mean 'generic'.*stabilisation"):
        get_table("genric")
    with pytest.raises(ConfigError, match="scale='big'"):
        get_table("generic", "big")  # type: ignore[arg-type]


def test_quick_recipes_of_the_full_scale_are_valid() -> None:
    table = get_table("grounded", "full").as_quick()
    for row in table.rows:
        for experiment in table.experiments_of(row):
            assert isinstance(experiment, RecipeExperiment)
            recipe = recipe_of(experiment, {"model": row.model, "fields": {}, "seed": 0}, {})
            assert recipe.train.steps == 2 and recipe.train.bptt <= recipe.data.seq_len == 32


def test_a_table_is_a_value() -> None:
    assert isinstance(get_table("flops"), Table)
    with pytest.raises(AttributeError):
        get_table("flops").name = "other"  # type: ignore[misc]
