"""A table from its name to its files; resuming, and what is measured again."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palimpsest.errors import ConfigError, InputError
from palimpsest.reproduce import Table, run_table, write_recipes
from palimpsest.reproduce import run as run_module
from palimpsest.reproduce.data import hash_path
from palimpsest.reproduce.jobs import read_result, stale
from palimpsest.reproduce.tables import get_table

from .conftest import FIGURE


@pytest.fixture
def measure(
    tiny_table: Table, texts: dict[str, Path], quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr(run_module, "get_table", lambda name, scale: tiny_table)

    def run(out: Path, **options: Any) -> dict[str, Any]:
        return run_table("tiny", out, **texts, threads=1, console=quiet, **options)

    return run


@pytest.fixture
def no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "plot_table", lambda facts, path: path)


def words_of(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_output_is_written_and_labelled(measure: Any, tmp_path: Path) -> None:
    facts = measure(tmp_path)
    first, hybrid, missing = facts["rows"]
    cell = first["cells"]["bits_per_byte"]
    assert cell["published"] == FIGURE and cell["seeds"] == [7, 19] and 5.0 < cell["mean"] < 9.0
    assert cell["std"] > 0.0
    assert first["causal"] and not hybrid["causal"] and not missing["available"]
    page = (tmp_path / "table.md").read_text()
    assert "5.124" in page and "BPB: published" in page and "BPB: measured" in page
    assert "| not causal; as published |" in page and "not available" in page
    for name in ("train", "valid"):
        assert facts["data"][name]["sha256"] in page
    assert "Seeds: 7, 19; mean ± standard deviation" in page and "float32" in page
    assert "commit" in page and "torch" in page
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [line["causal"] for line in lines] == ["causal", "not causal", "causal"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert len(written.pop("sha256")) == 64
    assert written == json.loads(json.dumps(facts))
    assert (tmp_path / "table.png").stat().st_size > 10_000


def test_quick_is_labelled_everywhere(measure: Any, tmp_path: Path, no_plot: None) -> None:
    facts = measure(tmp_path, quick=True)
    assert facts["quick"] and facts["seeds"] == [7]
    names = sorted(path.name for path in (tmp_path / "jobs").iterdir())
    assert names == ["hybrid_text_seed7_quick.json", "transformer_text_seed7_quick.json"]
    assert "**Quick run" in (tmp_path / "table.md").read_text()
    assert ",quick," in (tmp_path / "table.csv").read_text()


@pytest.mark.usefixtures("no_plot")
class TestResuming:
    def test_finished_rows_are_not_measured_again(
        self, measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = measure(tmp_path)
        before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "jobs").iterdir()}
        lost = tmp_path / "jobs" / "hybrid_text_seed19.json"
        lost.unlink()
        again = measure(tmp_path)
        after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "jobs").iterdir()}
        assert [name for name in before if before[name] != after[name]] == [lost.name]
        assert [r["cells"] for r in again["rows"]] == [r["cells"] for r in first["rows"]]

    @pytest.mark.parametrize("part", ["config", "data", "code"])
    def test_a_result_of_something_else_is_measured_again(
        self, part: str, measure: Any, tmp_path: Path, quiet: Console
    ) -> None:
        first = measure(tmp_path, seeds=(7,))
        path = tmp_path / "jobs" / "transformer_text_seed7.json"
        kept = json.loads(path.read_text())
        changed = dict(kept, fingerprint="0", metrics={"bits_per_byte": 1.0})
        changed[part] = "another" if part == "code" else {**kept[part], "train": "another"}
        del changed["sha256"]  # the edit is meant
        path.write_text(json.dumps(changed))
        again = measure(tmp_path, seeds=(7,))
        assert f"{part} changed since it was measured" in words_of(quiet)
        assert again["rows"][0]["cells"] == first["rows"][0]["cells"]

    def test_another_text_is_another_job(
        self, measure: Any, tmp_path: Path, texts: dict[str, Path], quiet: Console
    ) -> None:
        folder = tmp_path / "text"
        folder.mkdir()
        moved = {name: shutil.copy(path, folder / path.name) for name, path in texts.items()}
        options = {"threads": 1, "console": quiet, "seeds": (7,)}
        run_table("tiny", tmp_path, **moved, **options)
        run_table("tiny", tmp_path, **texts, **options)  # the same text in another place
        assert "changed" not in words_of(quiet)
        Path(moved["valid"]).write_text("another page\n" * 30)
        run_table("tiny", tmp_path, **moved, **options)
        assert words_of(quiet).count("data changed since it was measured") == 2

    def test_another_schema_is_refused_by_name(self, measure: Any, tmp_path: Path) -> None:
        path = tmp_path / "jobs" / "transformer_text_seed7.json"
        path.parent.mkdir()
        path.write_text('{"schema": "palimpsest-job", "schema_version": 99}')
        with pytest.raises(
            InputError, match=r"transformer_text_seed7\.json.*version 99.*version 1"
        ):
            measure(tmp_path)
        path.write_text("[]")
        with pytest.raises(InputError, match="is not a result of a job"):
            measure(tmp_path)

    @pytest.mark.slow
    def test_side_by_side_equals_one_by_one(self, measure: Any, tmp_path: Path) -> None:
        alone = measure(tmp_path / "alone", seeds=(7,))
        together = measure(tmp_path / "together", seeds=(7,), jobs=2)
        for a, b in zip(alone["rows"], together["rows"], strict=True):
            assert a["cells"]["bits_per_byte"]["mean"] == pytest.approx(
                b["cells"]["bits_per_byte"]["mean"], abs=1e-6
            ) or (not a["available"] and not b["available"])


def test_fingerprints(tiny_table: Table, texts: dict[str, Path], tmp_path: Path) -> None:
    data = {name: {"sha256": hash_path(path)[0]} for name, path in texts.items()}
    jobs = [job for _, job in run_module.jobs_of(tiny_table, texts, data)]
    assert len({job.fingerprint for job in jobs}) == len({job.key for job in jobs}) == 4
    assert read_result(tmp_path, jobs[0]) is None
    assert stale(jobs[0], {"fingerprint": jobs[0].fingerprint}) == ""
    assert stale(jobs[0], {**jobs[0].identity, "code": ""}) == "code"


def test_what_is_missing_says_where_to_get_it(
    tmp_path: Path, texts: dict[str, Path], quiet: Console
) -> None:
    with pytest.raises(InputError, match=r"--train is not given.*wikitext-2-raw-v1.*6707892f"):
        run_table("generic", tmp_path, console=quiet)
    with pytest.raises(InputError, match=r"--valid .*no such file.*4cd0f6876d07"):
        run_table("generic", tmp_path, train=texts["train"], valid=tmp_path / "no", console=quiet)
    with pytest.raises(InputError, match=r"--tokenizer is not given.*jingyaogong/minimind"):
        run_table("minimind", tmp_path, train=texts["train"], console=quiet)
    with pytest.raises(ConfigError, match=r"--rows 'Mamba'.*Triple-Slot"):
        run_table("generic", tmp_path, rows=["Mamba"], console=quiet)
    assert not (tmp_path / "table.md").exists()


def test_mistakes_are_named_before_anything_is_measured(
    tmp_path: Path, texts: dict[str, Path], quiet: Console
) -> None:
    with pytest.raises(ConfigError, match=r"seeds=\[7, 7\]: one of them is given twice"):
        run_table("flops", tmp_path / "a", seeds=[7, 7], console=quiet)
    with pytest.raises(ConfigError, match=r"seeds=\[-1\]: -1 is out of range"):
        run_table("flops", tmp_path / "a", seeds=[-1], console=quiet)
    with pytest.raises(InputError, match=r"--out .*train\.txt is a file; name a folder"):
        run_table("flops", texts["train"], console=quiet)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(texts["train"].read_bytes())
    with pytest.raises(InputError, match=r"--valid .*copy\.txt: is the text of --train"):
        run_table("generic", tmp_path / "a", train=texts["train"], valid=copy, console=quiet)
    assert not (tmp_path / "a").exists()


def test_what_a_mean_leaves_out_is_said(measure: Any, tmp_path: Path, no_plot: None) -> None:
    measure(tmp_path)
    for path in (tmp_path / "jobs").glob("transformer_*_seed19.json"):
        result = json.loads(path.read_text())
        result |= {"metrics": {}, "facts": {"diverged": "step 1"}}
        del result["sha256"]
        path.write_text(json.dumps(result))
    for path in (tmp_path / "jobs").glob("hybrid_*_seed7.json"):
        result = json.loads(path.read_text())
        result["facts"]["windows_measured"] = 3
        del result["sha256"]
        path.write_text(json.dumps(result))
    measure(tmp_path)
    page = (tmp_path / "table.md").read_text()
    assert "1 of 2 runs diverged (seed 19), left out" in page
    assert "the validation text has 3 windows, not 4" in page


def test_recipes_of_the_full_scale_load(tmp_path: Path) -> None:
    from palimpsest.training import load_recipe

    written = write_recipes(get_table("grounded", "full"), tmp_path)
    assert len(written) == 5
    recipes = {path.stem: load_recipe(path) for path in written}
    assert recipes["gpn-m-2l"].train.bptt == 512
    assert recipes["transformer-12l"].model.name == "transformerpp-130m"
    assert all(r.train.precision == "bf16" and r.data.seq_len == 2048 for r in recipes.values())
    (only,) = write_recipes(get_table("grounded", "full"), tmp_path / "one", rows=["M 2L"])
    assert only.name == "gpn-m-2l.toml" and only.read_text().startswith("# GPN+M 2L: ")
    with pytest.raises(InputError, match="has no recipes"):
        write_recipes(get_table("flops"), tmp_path)
