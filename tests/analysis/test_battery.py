"""The battery: everything on one model, into a folder, and on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import palimpsest
from palimpsest.analysis.battery import (
    Battery,
    BatterySettings,
    head_half_lives,
    name_pools,
    run_battery,
)
from palimpsest.analysis.horizons import measure_retention
from palimpsest.analysis.intervention_plots import plot_interventions
from palimpsest.analysis.pools import split_pools
from palimpsest.cli.main import main
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel
from palimpsest.text import ByteTokenizer
from tests.contract.configs import CONFIGS
from tests.contract.harness import random_ids

SMALL = BatterySettings(length=16, windows=6, blocks=4, targets=6, draws=1, batch_size=4)
FIGURES = {
    "geometry.png",
    "default-token.png",
    "state-cosines.png",
    "context.png",
    "influence.png",
    "interventions-text.png",
    "interventions-repeat.png",
}


@pytest.fixture(scope="module")
def bytes_model() -> LanguageModel:
    torch.manual_seed(4)
    model = palimpsest.build(
        "gpnm", vocab_size=259, d_state=13, d_emb=6, d_ffn=17, n_heads=3, d_key=5, d_val=7
    )
    return model.eval()


@pytest.fixture(scope="module")
def text_ids() -> Tensor:
    text = "The quick brown fox jumps over the lazy dog, and then it écrit une lettre. " * 3
    return torch.tensor(ByteTokenizer().encode(text))


@pytest.fixture(scope="module")
def found(
    bytes_model: LanguageModel, text_ids: Tensor, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Battery, Path, list[str]]:
    folder, said = tmp_path_factory.mktemp("battery") / "new" / "folder", []
    battery = run_battery(
        bytes_model,
        text_ids,
        tokenizer=ByteTokenizer(),
        unigram=torch.bincount(text_ids, minlength=259),
        settings=SMALL,
        source="a model",
        data="a text",
        out=folder,
        say=said.append,
    )
    return battery, folder, said


def test_the_folder_has_everything(found: tuple[Battery, Path, list[str]]) -> None:
    battery, folder, said = found
    assert {p.name for p in folder.iterdir()} == {*FIGURES, "retention.png", "battery.json"}
    for figure in folder.glob("*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 5000
    kept = json.loads((folder / "battery.json").read_text())
    assert len(kept.pop("sha256")) == 64
    assert kept == json.loads(json.dumps(battery.to_dict()))
    assert kept["source"] == "a model" and kept["model"] == "gpnm"
    assert kept["tokens"] == battery.geometry.vectors
    assert len(kept["retention"]["heads"]) == 3
    assert [part for part, _ in battery.seconds] == said[:-1]
    assert said[-1] == "figures"


def test_the_parts_agree(
    found: tuple[Battery, Path, list[str]], bytes_model: LanguageModel, text_ids: Tensor
) -> None:
    battery = found[0]
    assert battery.default_token.norm == pytest.approx(battery.geometry.mean_norm, rel=1e-5)
    blocks = palimpsest.analysis.passes.cut_windows(text_ids, 16, most=4)
    with torch.no_grad():
        loss = bytes_model(blocks[:, :-1], targets=blocks[:, 1:]).loss
    assert battery.interventions.bases[0] == pytest.approx(float(loss) / 0.6931471805599453)
    names = {effect.name for effect in battery.interventions.effects}
    assert {"FFN cut", "head 2 cut", "read cut"} <= names
    quick, slow = (name for name, _ in battery.interventions.pools)
    assert {f"{quick} pool cut", f"{slow} pool frozen", f"{slow} pool shuffled"} <= names


def test_the_tables_show_the_figures(found: tuple[Battery, Path, list[str]]) -> None:
    from rich.console import Console

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(found[0].table())
    console.print(found[0].interventions.table())
    text = console.export_text()
    assert f"{found[0].interventions.bases[0]:.4f}" in text
    assert "mean state subtracted at every grounding" in text
    assert "half-lives" in text


@pytest.mark.parametrize("name", ["gpn", "transformerpp"])
def test_models_without_decays(name: str) -> None:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).eval()
    ids = random_ids(model, 1, 90)[0]
    battery = run_battery(model, ids, settings=SMALL)
    assert battery.retention is None and battery.pools is None
    assert battery.interventions.pools == ()
    assert battery.to_dict()["retention"] is None


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"gpn", "transformerpp", "transformer"}))
def test_half_lives_belong_to_heads(name: str) -> None:
    model = palimpsest.build(name, **next(iter(CONFIGS[name].values()))).eval()
    retention = measure_retention(model, random_ids(model, 2, 12))
    lives = head_half_lives(model, retention)
    parts = palimpsest.analysis.parts.model_parts(model)
    assert [head for head, _ in lives] == parts.held_heads
    for (memory, head), life in lives:
        place = parts.memories[memory].name
        own = [
            h
            for h in retention.heads
            if h.head == head and "decay.state" not in h.tap and h.tap.startswith(place)
        ]
        assert [h.half_life for h in own] == [life]


def test_pools_by_the_rule_or_halves() -> None:
    lives = [((0, i), v) for i, v in enumerate([1.0, 200.0, 1.1, 1.2, 220.0, 240.0, 1.05, 210.0])]
    rule = split_pools([v for _, v in lives], longest=256)
    assert rule.split
    pools = name_pools(lives, rule)
    assert pools == {
        "fast": [(0, 0), (0, 2), (0, 3), (0, 6)],
        "slow": [(0, 1), (0, 4), (0, 5), (0, 7)],
    }
    few = [((0, 0), None), ((0, 1), 2.0), ((0, 2), 3.0)]
    rule = split_pools([v for _, v in few], longest=64)
    assert name_pools(few, rule) == {"faster": [(0, 1)], "slower": [(0, 2), (0, 0)]}
    assert name_pools(few[:1], rule) == {}


def test_mistakes_are_named(
    bytes_model: LanguageModel,
    text_ids: Tensor,
    found: tuple[Battery, Path, list[str]],
    tmp_path: Path,
) -> None:
    with pytest.raises(
        InputError, match="a text of 31 tokens: the battery needs two windows of 16"
    ):
        run_battery(bytes_model, text_ids[:31], settings=SMALL)
    with pytest.raises(InputError, match="draws=0: must be at least 1"):
        BatterySettings(draws=0)
    with pytest.raises(InputError, match="probe=2: must be from 0 to 1"):
        plot_interventions(found[0].interventions, tmp_path / "x.png", probe=2)
    with pytest.raises(InputError, match="seed=-1: must be from 0"):
        BatterySettings(seed=-1)
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(InputError, match="file is a file; name a new folder"):
        run_battery(bytes_model, text_ids, settings=SMALL, out=taken / "folder")
    with pytest.raises(InputError, match="holds something else than a battery"):
        run_battery(bytes_model, text_ids, settings=SMALL, out=tmp_path)
    with pytest.raises(InputError, match="two windows"):
        run_battery(bytes_model, text_ids[:31], settings=SMALL, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_on_the_command_line(
    bytes_model: LanguageModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(palimpsest.analysis.battery, "_draw", lambda *given: None)  # tested above
    bytes_model.save(tmp_path / "model")
    (tmp_path / "text.txt").write_text("All work and no play makes Jack a dull boy. " * 4)
    words = ["study", str(tmp_path / "model"), "--text", str(tmp_path / "text.txt")]
    small = ["--length", "16", "--blocks", "3", "--draws", "1", "--tokenizer", "bytes"]
    out = tmp_path / "study"
    assert main([*words, *small, "--out", str(out), "--train-text", words[3]]) == 0
    printed = capsys.readouterr()
    assert "written:" in printed.out and "interventions …" in printed.err
    kept = json.loads((out / "battery.json").read_text())
    assert kept["interventions"]["blocks"] == 3
    assert kept["default_token"]["spearman"] is not None
    assert main([*words, "--out", str(out), "--tokenizer", "bytes"]) == 2
    assert "a text of 176 tokens: the battery needs two windows of 256" in capsys.readouterr().err
