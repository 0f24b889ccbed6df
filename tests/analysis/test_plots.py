"""The pictures: each is written, and draws what the result says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.analysis import plots
from palimpsest.analysis.context import measure_context, measure_influence
from palimpsest.analysis.default_token import measure_default_token
from palimpsest.analysis.geometry import measure_geometry
from palimpsest.analysis.horizons import measure_retention, measure_state_cosines
from palimpsest.analysis.pools import split_pools
from tests.contract.configs import CONFIGS

pytest.importorskip("matplotlib")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, kept as they are finished."""
    kept: list[Any] = []
    finish = plots._finish

    def keep(figure: Any, path: str | Path) -> Path:
        kept.append(figure)
        return finish(figure, path)

    monkeypatch.setattr(plots, "_finish", keep)
    return kept


def test_every_result_has_its_picture(tmp_path: Path, drawn: list[Any]) -> None:
    model = palimpsest.build("triple-latent", **CONFIGS["triple-latent"]["unbounded"])
    ids_WT = torch.randint(0, 37, (3, 40))
    retention = measure_retention(model, ids_WT)
    pools = split_pools(retention.half_lives(), longest=retention.longest)
    pictures = [
        plots.plot_geometry(measure_geometry(model, ids_WT), tmp_path / "geometry.png"),
        plots.plot_default_token(measure_default_token(model, ids_WT), tmp_path / "default.png"),
        plots.plot_state_cosines(measure_state_cosines(model, ids_WT), tmp_path / "cosines.png"),
        plots.plot_retention(retention, tmp_path / "retention.png", pools),
        plots.plot_context(measure_context(model, ids_WT), tmp_path / "context.png"),
        plots.plot_influence(measure_influence(model, ids_WT[:1]), tmp_path / "influence.png"),
    ]
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert [len(figure.axes) for figure in drawn] == [2, 2, 1, 1, 2, 1]
    for figure in drawn[2:]:  # axes of lags are logarithmic
        assert all(axes.get_xscale() == "log" for axes in figure.axes)
    labels = [text.get_text() for text in drawn[3].axes[0].get_legend().get_texts()]
    assert labels == ["layers.0.decay.state", "layers.0.decay.pair"]


def test_pools_have_their_colours(tmp_path: Path, drawn: list[Any]) -> None:
    model = palimpsest.build("gpnm", **CONFIGS["gpnm"]["1l"])
    retention = measure_retention(model, torch.randint(0, 37, (2, 20)))
    pools = split_pools([1.0, 500.0, 505.0], longest=900)
    assert pools.split
    plots.plot_retention(retention, tmp_path / "pools.png", pools)
    labels = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert labels == ["fast", "slow"]
    assert "1 fast and 2 slow heads" in drawn[0].axes[0].get_title()


def test_tokens_can_be_seen() -> None:
    assert plots._visible(" a\n") == "␣a↵"
    assert plots._visible("$x") == r"\$x"
    assert plots._visible("\x00") == "·"
    assert plots._visible("") == "(none)"
