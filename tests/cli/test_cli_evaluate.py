"""``palimpsest eval`` on runs, checkpoints and bare models, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.evaluation import EvaluationResult
from palimpsest.text import ByteTokenizer


def test_a_run_a_checkpoint_and_a_model_give_the_same(
    cli: Callable, run_folder: Path, text: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    checkpoint = run_folder / "checkpoints" / "step-00000002"
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, bare / name)
    sources = [(run_folder,), (checkpoint,), (bare, "--tokenizer", tokenizer_folder)]
    results = []
    for i, words in enumerate(sources):
        out = tmp_path / f"{i}.json"
        code, shown, _ = cli("eval", *words, "--text", text, "--seq-len", 64, "--out", out)
        assert code == 0 and "bits per byte" in shown and "windows of 64 tokens" in shown
        results.append(EvaluationResult.load(out))
    assert len({r.loss for r in results}) == 1
    assert [r.seed for r in results] == [5, 5, None]
    assert results[0].bytes == len(text.read_bytes())
    assert results[0].tokenizer_fingerprint == ByteTokenizer().fingerprint()


@pytest.mark.parametrize("protocol", ["strided", "carried"])
def test_protocols_are_labelled(
    cli: Callable, run_folder: Path, text: Path, tmp_path: Path, protocol: str
) -> None:
    out = tmp_path / "r.json"
    words = ("--protocol", protocol, "--seq-len", 200, "--predict", "current", "--bos", "none")
    assert cli("eval", run_folder, "--text", text, *words, "--out", out).code == 0
    result = EvaluationResult.load(out)
    assert result.settings["kind"] == protocol and "predict=current" in result.protocol
    assert result.tokens == len(text.read_bytes())


def test_bad_texts(cli: Callable, run_folder: Path, tmp_path: Path) -> None:
    empty, latin = tmp_path / "empty.txt", tmp_path / "latin.txt"
    empty.write_bytes(b"")
    latin.write_bytes(b"caf\xe9")
    cases = ((empty, "empty"), (latin, "byte 0xe9"), (tmp_path / "none.txt", "no such file"))
    for path, words in cases:
        code, out, err = cli("eval", run_folder, "--text", path)
        assert (code, out) == (2, "") and words in err and err.count("\n") == 1


def test_bad_models(
    cli: Callable, run_folder: Path, model_folder: Path, text: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(run_folder / "checkpoints" / "step-00000002", cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["Llama"]}')
    cases = (
        (tmp_path / "none", "no such folder"),
        (text.parent, "holds neither a run, a checkpoint nor a model"),
        (text, "no such folder"),
        (cut, "cut short"),
        (tmp_path / "other", "is not a palimpsest model"),
        ("gpnm-1m", "palimpsest train --model gpnm-1m"),
        (model_folder, "no tokenizer is saved with this model"),
    )
    for model, words in cases:
        code, out, err = cli("eval", model, "--text", text)
        assert (code, out) == (2, "") and words in err and err.count("\n") == 1, err


def test_bad_options(cli: Callable, run_folder: Path, text: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    tokenizer = tmp_path / "none.json"
    cases = (
        (("--out", tmp_path), "is a folder"),
        (("--out", blocked / "r.json"), "cannot be written"),
        (("--stride", 3), "--stride 3"),
        (("--batch-size", 0), "--batch-size 0"),
        (("--tokenizer", tokenizer), "no such tokenizer"),
        (("--device", "warp"), "--device warp"),
    )
    for words, message in cases:
        code, out, err = cli("eval", run_folder, "--text", text, *words)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1, err
    assert not list(tmp_path.glob(".*"))
