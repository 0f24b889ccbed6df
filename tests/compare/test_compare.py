"""A comparison: sizes, the choice of the rate, gaps, crossings, and what is written."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palimpsest.compare import CompareSettings, crossings, parse_model, report, run_compare
from palimpsest.compare import run as run_module
from palimpsest.compare.curves import gap, mean_curve
from palimpsest.compare.report import short
from palimpsest.compare.sizes import fields_at
from palimpsest.errors import ConfigError, InputError
from palimpsest.reproduce.jobs import SCHEMA, SCHEMA_VERSION, Job

# what a model's runs end at, by learning rate; the seed adds a hundredth
FIGURES = {"gpn": {1e-3: 2.5, 2e-3: 2.0, 4e-3: 2.2}, "transformerpp": {1e-3: 3.0, 2e-3: 2.4}}


@pytest.fixture
def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def settings(tmp_path: Path) -> CompareSettings:
    paths = {}
    for name in ("train", "valid"):
        paths[name] = tmp_path / f"{name}.txt"
        paths[name].write_text(f"{name} " * 50)
    return CompareSettings(
        models=(parse_model("gpn"), parse_model("tpp@transformerpp")),
        sizes=(110_000, 200_000),
        **paths,
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Results without training; the keys of the jobs in the order in which they were asked."""
    asked: list[str] = []

    def run_jobs(jobs: list[Job], out: Path, **options: Any) -> list[dict[str, Any]]:
        asked.extend(job.key for job in jobs)
        return [result_of(job) for job in jobs]

    monkeypatch.setattr(run_module, "run_jobs", run_jobs)
    return asked


def result_of(job: Job) -> dict[str, Any]:
    lr, seed = job.config["experiment"]["recipe"]["optimizer"]["lr"], job.config["seed"]
    last = FIGURES[job.config["model"]].get(lr)
    value = None if last is None else last + 0.01 * seed
    steep = 1.0 if job.config["model"] == "gpn" else 0.2  # gpn starts above and ends below
    curve = [
        {"tokens": n, "loss": 1.0, "bits_per_byte": (value or 0.0) + steep * (4 - n) ** 2 / 4}
        for n in range(1, 5)
    ]
    facts = {"curve": curve, "state_bytes": 8, "training_seconds": 3.0, "protocol": "windows"}
    if value is None:
        facts["diverged"] = "step 3"
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "metrics": {} if value is None else {"bits_per_byte": value, "tokens_per_s": 1000.0},
        "facts": facts,
        "seed": seed,
        "dtype": "float32",
        "seconds": 1.0,
        "where": {"palimpsest": "0", "commit": None},
    }


def test_the_rate_is_chosen_per_model_and_run_with_every_seed(
    settings: CompareSettings, runs: list[str], tmp_path: Path, quiet: Console
) -> None:
    facts = run_compare(settings, tmp_path / "out", console=quiet)
    entries = {(e["model"], e["size"]): e for e in facts["entries"]}
    one = entries["gpn", 110_000]
    assert one["lr"] == 2e-3 and not one["lr_at_edge"] and one["seeds"] == [0, 1, 2]
    assert one["mean"] == pytest.approx(2.01) and one["std"] == pytest.approx(0.01)
    other = entries["tpp", 200_000]
    assert other["lr"] == 2e-3 and other["grid"]["0.004"] is None
    assert abs(other["parameters"] - 200_000) <= 2_000
    assert len(runs) == 4 * (3 + 2)  # the first seed of the chosen rate is the grid's
    assert runs[:3] == [f"gpn_110k_lr{lr:g}_seed0" for lr in settings.lrs]
    assert other["gap"]["difference"] == pytest.approx(0.4)
    assert other["gap"]["stderr"] == pytest.approx(math.sqrt(2 * 0.01**2 / 3))
    (crossing,) = other["crossings"]
    assert not crossing["first_is_lower_after"] and crossing["seeds"] == 3

    page = (tmp_path / "out" / "table.md").read_text()
    assert "| gpn | 2.010 ± 0.010 |" in page and "| tpp | +0.400 ± 0.008 |" in page
    assert "0.004: diverged" in page and "worse after" in page and "32.8M" not in page
    assert "8.19M tokens" in page and facts["data"]["valid"]["sha256"] in page
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == 1 + 4 * 3
    assert json.loads((tmp_path / "out" / "results.json").read_text())["baseline"] == "gpn"
    for name in ("curves-110k.png", "curves-200k.png", "gaps.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


def test_a_rate_at_the_edge_of_the_grid_is_said(
    settings: CompareSettings, runs: list[str], tmp_path: Path, quiet: Console
) -> None:
    import dataclasses

    narrow = dataclasses.replace(settings, lrs=(1e-3, 2e-3), sizes=(110_000,), seeds=(0,))
    facts = run_compare(narrow, tmp_path / "out", console=quiet)
    assert all(entry["lr_at_edge"] for entry in facts["entries"])
    page = (tmp_path / "out" / "table.md").read_text()
    assert "0.002 (edge of the grid)" in page
    assert facts["entries"][1]["gap"]["stderr"] is None and "| tpp | +0.400 |" in page


@pytest.mark.slow
def test_a_comparison_trains_and_resumes(settings: CompareSettings, tmp_path: Path) -> None:
    import dataclasses

    tiny = dataclasses.replace(
        settings,
        models=(
            parse_model("a@gpn:d_state=8,d_emb=4,d_ffn=8"),
            parse_model("b@transformer:d_model=8,n_layers=1,n_heads=2"),
        ),
        sizes=(3_000,),
        tolerance=0.9,
        steps=3,
        batch_size=2,
        seq_len=8,
        lrs=(1e-2,),
        seeds=(0, 1),
        eval_batches=1,
    )
    quiet = Console(file=io.StringIO())
    first = run_compare(tiny, tmp_path / "out", threads=2, jobs=2, console=quiet)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "jobs").iterdir()}
    again = run_compare(tiny, tmp_path / "out", threads=1, console=quiet)
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "jobs").iterdir()}
    assert again["entries"] == first["entries"] and len(before) == 4
    assert len(first["entries"][0]["curve"]) == 3


def test_a_model_that_is_not_causal_is_labelled() -> None:
    entry = {"causal": False, "mean": 1.0, "std": None, "diverged": 0}
    entry["gap"] = {"difference": -1.0, "stderr": None}
    for shown in (report._figure(entry), report._gap(entry)):
        assert shown.endswith(" **not causal**")
    entry["causal"] = True
    assert report._figure(entry) == "1.000"


def test_crossings_are_interpolated() -> None:
    found = crossings([0, 10, 20, 30], [3.0, 2.0, 1.0, 2.0], [2.0, 2.0, 2.0, 1.0])
    assert found == [
        {"tokens": pytest.approx(10.0), "first_is_lower_after": True},
        {"tokens": pytest.approx(25.0), "first_is_lower_after": False},
    ]
    assert crossings([0, 1], [1.0, 1.0], [2.0, 2.0]) == []


def test_crossings_of_a_seed_are_those_with_the_same_seed_of_the_baseline() -> None:
    def curve(*values: float) -> list[dict[str, float]]:
        return [{"tokens": float(i), "bits_per_byte": v} for i, v in enumerate(values)]

    def entry(runs: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
        return {
            "seeds": list(runs),
            "curves": [*runs.values()],
            "curve": mean_curve([*runs.values()]),
        }

    own = entry({0: curve(9, 9, 9), 1: curve(3, 1, 1), 2: curve(3, 3, 1)})
    base = entry({1: curve(2, 2, 2), 2: curve(2, 2, 2)})  # its run of seed 0 diverged
    own["curve"] = mean_curve(own["curves"][1:])
    (found,) = run_module._crossings(own, base)
    assert found["seeds"] == 2 and found["range"] == [0.5, 1.5]


def test_means_and_gaps() -> None:
    curves = [
        [{"tokens": t, "bits_per_byte": v + t} for t in range(length)]
        for v, length in ((1.0, 3), (3.0, 2))
    ]
    assert mean_curve(curves) == [
        {"tokens": 0, "mean": 2.0, "std": pytest.approx(math.sqrt(2))},
        {"tokens": 1, "mean": 3.0, "std": pytest.approx(math.sqrt(2))},
    ]
    assert mean_curve([]) == []
    assert gap([1.0], [0.5, 1.5]) == {"difference": 0.0, "stderr": None}


def test_models_are_parsed() -> None:
    two = parse_model("two@gpnm:n_layers=2,positions=none")
    assert (two.label, two.name) == ("two", "gpnm")
    assert two.fields == {"n_layers": 2, "positions": "none"}
    assert parse_model("gpnm:n_layers=2").label == "gpnm:n_layers=2"
    with pytest.raises(ConfigError, match="must be key=value"):
        parse_model("gpnm:n_layers")
    assert [short(n) for n in (999, 300_000, 1_000_000, 8_192_000)] == [
        "999",
        "300k",
        "1M",
        "8.19M",
    ]


@pytest.mark.parametrize("name", ["gpnm:n_layers=2", "transformer", "triple-latent", "mamba2"])
def test_sizes_are_within_a_percent(name: str, settings: CompareSettings) -> None:
    model, fields, parameters = fields_at(parse_model(name), 300_000, settings, 259)
    assert abs(parameters - 300_000) <= 3_000
    assert fields.get("n_layers") == 2 if "=2" in name else True
    assert fields.get("dropout", 0.0) == 0.0
    if model == "transformer":
        assert fields["max_seq_len"] == settings.seq_len


def test_mistakes_are_named(settings: CompareSettings, tmp_path: Path, quiet: Console) -> None:
    import dataclasses

    with pytest.raises(ConfigError, match="baseline='x'"):
        dataclasses.replace(settings, baseline="x")
    with pytest.raises(ConfigError, match=r"seeds=\[1, 1\]"):
        dataclasses.replace(settings, seeds=(1, 1))
    with pytest.raises(ConfigError, match="lrs is empty"):
        dataclasses.replace(settings, lrs=())
    with pytest.raises(ConfigError, match="'gpx': there is none"):
        fields_at(parse_model("gpx"), 300_000, settings, 259)
    with pytest.raises(ConfigError, match=r"has 83,840, which is more than 1 % away"):
        fields_at(parse_model("gpn:d_state=96,d_emb=16,d_ffn=200"), 300_000, settings, 259)
    with pytest.raises(ConfigError, match=r"optimizer\.lr=-0\.1: must be above 0"):
        dataclasses.replace(settings, lrs=(1e-3, -0.1))
    with pytest.raises(ConfigError, match=r"train\.seed=-1: must be from 0"):
        dataclasses.replace(settings, seeds=(0, -1))
    with pytest.raises(ConfigError, match=r"tolerance=0\.0"):
        dataclasses.replace(settings, tolerance=0.0)
    with pytest.raises(InputError, match=r"--valid .*is the text of --train"):
        run_compare(dataclasses.replace(settings, valid=settings.train), tmp_path, console=quiet)
    with pytest.raises(InputError, match=r"--out .*train\.txt is a file; name a folder"):
        run_compare(settings, settings.train / "out", console=quiet)
    alike = (parse_model("A@gpn"), parse_model("a@transformerpp"))
    with pytest.raises(ConfigError, match=r"'A, 110k.*'a, 110k.*would be one file, a_110k_lr"):
        run_compare(dataclasses.replace(settings, models=alike), tmp_path / "x", console=quiet)
    assert not (tmp_path / "x").exists()
    lost = dataclasses.replace(settings, train=tmp_path / "no.txt")
    with pytest.raises(InputError, match=r"--train .*no\.txt: no such file"):
        run_compare(lost, tmp_path / "out", console=quiet)
