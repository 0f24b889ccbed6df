"""The benchmark of the baselines runs, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import palimpsest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import baselines

    yield baselines
    for name in ("baselines", "common"):
        sys.modules.pop(name, None)


def test_the_models_are_of_one_size(baselines: ModuleType) -> None:
    sizes = {}
    for name, fields in baselines.MODELS.items():
        with torch.device("meta"):
            model = palimpsest.build(name, **{**baselines.SIZES, **fields})
        sizes[name] = model.num_parameters()
    wanted = sizes["transformerpp"]
    assert all(abs(size / wanted - 1) < 0.05 for size in sizes.values()), sizes


def test_rows_and_table(
    baselines: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(baselines, "SIZES", {"vocab_size": 37, "d_model": 16, "n_layers": 1})
    small = {
        "transformerpp": {"n_heads": 2, "d_ffn": 24},
        "gdn": {"n_heads": 2, "head_dim": 8, "d_ffn": 24},
    }
    monkeypatch.setattr(baselines, "MODELS", small)
    monkeypatch.setattr(baselines, "TARGETS", {9: 1e9})
    out = tmp_path / "baselines.json"
    words = ["baselines", "--lengths", "9", "--tokens", "18", "--rounds", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    baselines.main()
    printed = capsys.readouterr().out
    assert "| training | 9 | 2 |" in printed
    assert "gdn at 9:" in printed
    assert "met" in printed
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows] == ["forward", "training"]
    for row in rows:
        assert row["models"]["transformerpp"]["ratio"] == 1
        own = row["models"]["gdn"]
        assert own["ratio_low"] <= own["ratio_high"]
        assert own["us_per_token"] > 0
