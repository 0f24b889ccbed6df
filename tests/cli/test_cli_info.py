"""``palimpsest info`` and ``palimpsest bench``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import palimpsest
from palimpsest.cli import info
from palimpsest.ops.dispatch import Dispatcher, dispatchers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_everything(cli: Callable) -> None:
    code, out, _ = cli("info")
    assert code == 0
    for name in (*palimpsest.list_models(), *palimpsest.list_presets(), *dispatchers()):
        assert name in out
    facts = json.loads(cli("info", "--json").out)
    assert facts["presets"]["gpnm-130m"]["parameters"] == 129_151_902
    assert facts["versions"]["palimpsest"] == palimpsest.__version__


def test_extras_are_those_of_pyproject(cli: Callable) -> None:
    about = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    declared = about["project"]["optional-dependencies"]
    wanted = {
        extra: sorted(re.match(r"[\w.-]+", package)[0] for package in packages)
        for extra, packages in declared.items()
        if extra != "dev"
    }
    found = {extra: sorted(packages) for extra, packages in info.optional_packages().items()}
    assert found == wanted
    assert json.loads(cli("info", "--json").out)["extras"].keys() == wanted.keys()


def test_a_run_is_loaded_as_the_command_line_loads_it(
    cli: Callable, run_folder: Path, tmp_path: Path
) -> None:
    model = palimpsest.load(run_folder)
    newest = max((run_folder / "checkpoints").iterdir())
    assert model.num_parameters() == json.loads(cli("info", run_folder, "--json").out)["parameters"]
    wanted = dict(palimpsest.load(newest).named_parameters())
    assert all(torch.equal(p, wanted[n]) for n, p in model.named_parameters())
    assert palimpsest.load(run_folder, device="meta").device.type == "meta"
    for given in (tmp_path, tmp_path / "absent", "gpnm-tiny"):
        with pytest.raises(palimpsest.CheckpointError) as failure:
            palimpsest.load(given)
        shown = cli("info", given) if given != "gpnm-tiny" else cli("generate", given)
        assert str(failure.value).split(":")[0] in shown.err.replace("\n", "")


def test_numba_that_does_not_compile_is_not_called_usable(
    cli: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    reason = "NUMBA_DISABLE_JIT is set"
    monkeypatch.setattr("palimpsest.cli.info.numba_missing", lambda: reason)
    assert json.loads(cli("info", "--json").out)["numba_unusable"] == reason
    shown = cli("info").out.replace("│", " ")
    assert "not used" in " ".join(shown.split()) and reason in " ".join(shown.split())


def test_a_missing_backend_says_why(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    op = Dispatcher("toy_op")
    monkeypatch.delitem(dispatchers.__globals__["_dispatchers"], "toy_op")
    monkeypatch.setitem(dispatchers.__globals__["_dispatchers"], "toy_op", op)
    op.register("reference", lambda: None)
    op.register("gpu", lambda: None, missing=lambda: "needs a GPU")
    facts = json.loads(cli("info", "--json").out)
    assert facts["backends"]["toy_op"] == {
        "available": ["reference"],
        "missing": {"gpu": "needs a GPU"},
    }


@pytest.mark.parametrize("name", palimpsest.list_presets())
def test_presets(cli: Callable, name: str) -> None:
    facts = json.loads(cli("info", name, "--json").out)
    sizes = [torch_size(shape) for shape in facts["tensors"].values()]
    assert sum(sizes) == facts["parameters"]
    assert cli("info", name).code == 0


def torch_size(shape: list[int]) -> int:
    number = 1
    for axis in shape:
        number *= axis
    return number


def test_an_architecture_shows_its_fields(cli: Callable) -> None:
    code, out, _ = cli("info", "gpnm")
    assert code == 0 and "n_heads" in out and "required" in out and "gpnm-tiny" in out


def test_a_run_shows_where_it_comes_from(cli: Callable, run_folder: Path, text: Path) -> None:
    code, out, _ = cli("info", run_folder)
    assert code == 0
    for part in ("2 of 2", "seed", "sha256", "70,916", "state", "tokenizer", "[optimizer]"):
        assert part in out
    facts = json.loads(cli("info", run_folder, "--json").out)
    assert facts["training"]["seed"] == 5 and facts["training"]["step"] == 2
    assert facts["training"]["data"]["train"]["paths"] == [str(text)]


def test_a_bare_model(cli: Callable, model_folder: Path) -> None:
    code, out, _ = cli("info", model_folder)
    assert code == 0 and f"palimpsest {palimpsest.__version__}" in out and "any length" in out


def test_nothing_of_that_name(cli: Callable) -> None:
    code, _, err = cli("info", "gpnm-2m")
    assert code == 2 and "gpnm-1m" in err


def test_bench_compares_the_backends(cli: Callable, tmp_path: Path, run_folder: Path) -> None:
    out = tmp_path / "b.json"
    words = ("--batch", 2, "--length", 9, "--rounds", 1, "--threads", 1, "--out", out)
    code, shown, _ = cli("bench", "gpnm-tiny", *words)
    assert code == 0 and "70,916 parameters" in shown and "float32" in shown
    facts = json.loads(out.read_text())
    rows = {(row["op"], row["backend"]): row for row in facts["rows"]}
    assert rows["all", "automatic"]["training_tokens_per_s"] > 0
    for name in dispatchers()["grounded_loop"].available():
        assert rows["grounded_loop", name]["forward_over_reference"] > 0
    assert rows["grounded_loop", "reference"]["training_over_reference"] == 1.0
    assert cli("bench", run_folder, *words[:6], "--precision", "bf16").code == 0


def test_bench_mistakes(cli: Callable, tmp_path: Path) -> None:
    for words, message in (
        (("gpnm-2m",), "model='gpnm-2m'"),
        (("gpnm-tiny", "--rounds", 0), "--rounds 0"),
        (("gpnm-tiny", "--threads", 0), "--threads 0"),
        (("gpnm-tiny", "--out", tmp_path), "is a folder"),
        ((tmp_path,), "neither a run"),
    ):
        code, out, err = cli("bench", *words)
        assert (code, out) == (2, "") and message in err, err


def test_presets_have_the_state_of_one_text_as_the_readme_and_fit_a_narrow_terminal(
    cli: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets = json.loads(cli("info", "--json").out)["presets"]
    assert presets["gpnm-tiny"]["state_bytes"] == 4608
    assert presets["gpnm-tiny"]["state_tokens"] is None
    grown = presets["transformerpp-1m"]
    assert (grown["state_bytes"], grown["state_tokens"]) == (5_243_921, 1024)
    assert presets["transformer-175k"]["state_tokens"] == 128  # its longest text
    for columns in ("60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = cli("info").out.partition("presets (")[2].splitlines()
        assert max(map(len, lines)) <= int(columns)
        assert "  gpnm-tiny" in [line.rstrip() for line in lines]
        joined = " ".join(" ".join(lines).split())
        assert "gpnm, 70,916 parameters, state 4,608 B bytes in seconds" in joined
        assert "state 5,243,921 B after 1,024 tokens" in joined
