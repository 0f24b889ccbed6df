"""Each kind of experiment by itself."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.errors import ConfigError, InputError
from palimpsest.reproduce import (
    measure_flops,
    measure_recall,
    measure_recipe,
    measure_speed,
    measure_text,
)
from palimpsest.reproduce.code_version import code_version, modules_used
from palimpsest.reproduce.experiments import (
    FlopsExperiment,
    RecallExperiment,
    RecipeExperiment,
    TextExperiment,
    ThroughputExperiment,
)
from palimpsest.reproduce.jobs import Job, execute
from palimpsest.text import ByteTokenizer, load_corpus

from .conftest import TINY

GATED = {**TINY, "state_dim": 3, "assoc_dim": 4, "top_k": 2, "init": "published"}


def nothing(tokens: int) -> None:
    pass


def config(experiment: Any, model: str = "transformer", **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "fields": {**TINY, **fields},
        "experiment": experiment.to_dict(),
        "seed": 7,
    }


def paths_of(texts: dict[str, Path]) -> dict[str, str]:
    return {name: str(path) for name, path in texts.items()}


def test_text_measures_the_first_windows_and_the_split(texts: dict[str, Path]) -> None:
    experiment = TextExperiment(steps=1, batch=3, length=16, windows=4)
    found = measure_text.run(config(experiment), paths_of(texts), "", nothing)
    corpus = load_corpus(texts["valid"], ByteTokenizer(), prepare="wikitext")
    windows = (corpus.num_tokens - 1) // 16
    assert found["facts"]["windows_of_the_split"] == windows
    assert set(found["metrics"]) == {"bits_per_byte", "bits_per_byte_split"}

    torch.manual_seed(7)
    model = measure_text.build_row(config(experiment), 259)
    train = load_corpus(texts["train"], ByteTokenizer(), prepare="wikitext")
    measure_text.train_on_windows(model, train, experiment, 7)
    model.eval()
    tokens = torch.from_numpy(corpus.tokens.astype("int64"))
    losses = [
        float(model(tokens[None, i : i + 16], targets=tokens[None, i + 1 : i + 17]).loss.detach())
        for i in range(0, 16 * windows, 16)
    ]
    for name, count in (("bits_per_byte", 4), ("bits_per_byte_split", windows)):
        expected = sum(losses[:count]) / count / math.log(2)
        assert found["metrics"][name] == pytest.approx(expected, rel=1e-5)


def test_weight_decay_is_on_everything_but_a_rate_of_its_own() -> None:
    fields = {**GATED, "init": "stable"}
    model = palimpsest.build("gated-hybrid", vocab_size=20, **fields)
    groups = measure_text.optimizer_decaying_everything(model, 3e-4, 0.05).param_groups
    decayed = sum(p.numel() for g in groups if g["weight_decay"] == 0.05 for p in g["params"])
    assert decayed == model.num_parameters() - 1  # the temperature
    assert sum(p.numel() for g in groups for p in g["params"]) == model.num_parameters()


def test_a_text_without_a_window_is_named_before_training(
    texts: dict[str, Path], tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a page", encoding="utf-8")
    paths = {**paths_of(texts), "valid": str(short)}
    with pytest.raises(InputError, match=r"--valid .*short\.txt: has 8 tokens, .* takes 18"):
        measure_text.run(config(TextExperiment(steps=1, length=16)), paths, "", nothing)


def test_a_row_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="parameters, the paper's has 5"):
        measure_text.build_row({"model": "transformer", "fields": TINY, "parameters": 5}, 259)


def test_tokens_are_measured_in_nats(texts: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = ByteTokenizer().save(tmp_path / "tokenizer").parent
    experiment = TextExperiment(
        steps=1, batch=2, length=16, windows=2, whole=False, tokenizer="given", prepare="none",
        max_documents=1,
    )  # fmt: skip
    paths = {"train": str(texts["train"]), "tokenizer": str(tokenizer)}
    found = measure_text.run(config(experiment), paths, "", nothing)
    assert 4.0 < found["metrics"]["token_loss"] < 7.0  # ln 259 = 5.56 for a guess


def test_recall_follows_the_curriculum() -> None:
    experiment = RecallExperiment(
        steps=3, batch=2, length=24, eval_batches=1, warmup_steps=2, start_length=16,
        growth_steps=2, read_gate_bias=-2.0,
    )  # fmt: skip
    asked = config(experiment, "gated-hybrid", **{**GATED, "max_seq_len": 24})
    found = measure_recall.run(asked, {}, "", nothing)
    assert 0.0 <= found["metrics"]["recall"] <= 1.0
    assert found == measure_recall.run(asked, {}, "", nothing)
    assert [experiment.length_at(step) for step in range(4)] == [16, 20, 24, 24]
    with pytest.raises(ConfigError, match="no read gate"):
        measure_recall.run(config(experiment, max_seq_len=24), {}, "", nothing)


def test_the_read_gate_starts_where_it_is_told() -> None:
    model = palimpsest.build("gated-hybrid", vocab_size=20, **GATED)
    measure_recall.set_read_gate_bias(model, -2.0)
    assert model.layers[-1].retrieval.read_gate.bias.item() == -2.0


def test_speed_is_relative_to_the_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(model: palimpsest.models.LanguageModel, ids: Tensor) -> float:
        turns.append(model.registry_name)
        return ids.shape[1] * (2.0 if model.registry_name == "transformer" else 3.0)

    turns: list[str] = []
    monkeypatch.setattr(measure_speed, "_forward", seconds)
    experiment = ThroughputExperiment(
        batch=1, lengths=(8, 16), iterations=2, warmup=1, reference=TINY
    )
    asked = config(experiment, "triple-latent", state_dim=3)
    metrics = measure_speed.run(asked, {}, "", nothing)["metrics"]
    assert metrics["over_transformer_8"] == metrics["over_transformer_16"] == 1.5
    assert metrics["tokens_per_s_16"] == pytest.approx(1 / 3)
    assert turns[:4] == ["triple-latent", "transformer", "transformer", "triple-latent"]


def test_the_code_of_the_reference_counts_too() -> None:
    from palimpsest.reproduce import get_table
    from palimpsest.reproduce.run import jobs_of

    row, job = jobs_of(get_table("throughput"), {}, {})[-1]
    own = palimpsest.models.registry.model_class(row.model).__module__
    executor = job.executor.partition(":")[0]
    assert job.code == code_version(executor, own, "palimpsest.models.transformer")
    assert job.code != code_version(executor, own)


def test_flops_are_the_papers() -> None:
    """The three rows of the paper, to its digits."""
    from palimpsest.reproduce import get_table

    for row in get_table("flops").rows:
        asked = {
            "model": row.model,
            "fields": row.fields,
            "experiment": FlopsExperiment().to_dict(),
        }
        metrics = measure_flops.run(asked, {}, "", nothing)["metrics"]
        for name, figure in row.published.items():
            assert round(metrics[name], 1) == figure, (row.label, name)


def test_a_recipe_is_trained_resumed_and_measured(
    texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
    experiment = RecipeExperiment(
        recipe={
            "data": {"seq_len": 16},
            "optimizer": {"warmup_steps": 1, "lr": 1e-2},
            "train": {"steps": 4, "batch_size": 2, "eval_every": 2, "eval_batches": 1},
        }
    )
    asked, reports = config(experiment, dropout=0.0), []
    whole = measure_recipe.run(asked, paths_of(texts), str(tmp_path / "whole"), reports.append)
    assert sum(reports) == 4 * 2 * 16
    assert [point["tokens"] for point in whole["facts"]["curve"]] == [64, 128]
    assert whole["metrics"]["perplexity"] == pytest.approx(
        2 ** whole["metrics"]["bits_per_byte"], rel=1e-6
    )
    train = measure_recipe.train
    monkeypatch.setattr(measure_recipe, "train", lambda *a, **k: train(*a, **k, stop_after=2))
    cut = str(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        measure_recipe.run(asked, paths_of(texts), cut, nothing)
    resumed = measure_recipe.run(asked, paths_of(texts), cut, nothing)
    assert resumed["metrics"]["bits_per_byte"] == whole["metrics"]["bits_per_byte"]

    monkeypatch.setattr(measure_recipe, "train", train)
    monkeypatch.setattr(measure_recipe, "evaluate_text", None)
    with pytest.raises(TypeError):  # interrupted between training and evaluation
        measure_recipe.run(asked, paths_of(texts), str(tmp_path / "late"), nothing)
    monkeypatch.undo()
    monkeypatch.setattr(measure_recipe, "train", None)
    trained = measure_recipe.run(asked, paths_of(texts), str(tmp_path / "late"), nothing)
    assert trained["metrics"]["bits_per_byte"] == whole["metrics"]["bits_per_byte"]
    monkeypatch.setattr(measure_recipe, "train", train)
    for weights in (tmp_path / "late").rglob("model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-9])  # damaged: it begins again
    again = measure_recipe.run(asked, paths_of(texts), str(tmp_path / "late"), nothing)
    assert again["metrics"]["bits_per_byte"] == whole["metrics"]["bits_per_byte"]


@pytest.mark.parametrize(
    "experiment",
    [
        RecipeExperiment(
            recipe={
                "data": {"seq_len": 16},
                "optimizer": {},
                "train": {"steps": 4, "batch_size": 2},
            }
        ),
        TextExperiment(steps=4, batch=2, length=16, windows=4),
        RecallExperiment(steps=4, batch=2, length=16, eval_batches=1),
    ],
    ids=lambda experiment: experiment.kind,
)
def test_a_diverged_run_is_a_result(
    experiment: Any, texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(self: torch.nn.Module, input_ids: Tensor, *args: Any, **options: Any) -> Any:
        found = forward(self, input_ids, *args, **options)
        found.loss_sum *= math.nan
        return found

    forward = palimpsest.models.LanguageModel.forward
    monkeypatch.setattr(palimpsest.models.LanguageModel, "forward", spoilt)
    job = Job(
        key="row",
        label="row",
        executor=experiment.executor,
        config=config(experiment),
        paths=paths_of(texts),
    )
    found = execute(job, tmp_path, nothing)
    assert found["metrics"] == {} and "nan" in found["facts"]["diverged"]
    assert found["dtype"] is None


def test_the_code_version_follows_imports_only() -> None:
    used = modules_used("palimpsest.reproduce.measure_text", "palimpsest.models.transformer")
    assert {"palimpsest.models.trunk", "palimpsest.layers.attention"} <= used
    assert "palimpsest.models.gpn" not in used and "palimpsest.cli.main" not in used
    names = ("palimpsest.models.gpn", "palimpsest.models.transformer")
    assert code_version(names[0]) != code_version(names[1])
    assert code_version(*names) == code_version(*reversed(names))


def test_quick_forms_are_small() -> None:
    for kind in (TextExperiment(), RecallExperiment()):
        assert kind.as_quick().work * 50 < kind.work
        assert dataclasses.is_dataclass(kind.as_quick())
