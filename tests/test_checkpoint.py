"""A model's folder: what is refused, and that nothing is re-initialised in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import palimpsest
from palimpsest.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = palimpsest.build("gpn", vocab_size=11, d_state=12, d_emb=5, decoder_bias=True)
    return model.save(tmp_path / "model")


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    meta = json.loads((folder / "config.json").read_text())
    del meta["sha256"], meta["weights_sha256"]  # as the message says that one may
    change(meta)
    (folder / "config.json").write_text(json.dumps(meta))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_tied_weights_are_written_once_and_stay_tied(folder: Path) -> None:
    names = set(load_file(folder / "model.safetensors"))
    loaded = palimpsest.load(folder)
    assert names == {name for name, _ in loaded.named_parameters()}
    assert loaded.head_weight() is loaded.embedding.weight


def test_default_dtype_does_not_matter(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        loaded = palimpsest.load(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    assert loaded.dtype == torch.float32
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(dict(loaded.named_parameters())[name], tensor)


def test_device(folder: Path) -> None:
    assert palimpsest.load(folder, device="cpu").device == torch.device("cpu")


BAD_CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another program's": (lambda m: m.update(format="other"), "is not a palimpsest model"),
    "a later version": (lambda m: m.update(version=2), r"version 2, this palimpsest reads"),
    "unknown model": (lambda m: m.update(model="gnp"), r"model='gnp': unknown"),
    "unknown field": (lambda m: m["config"].update(depth=3), r"depth=3.*no such field"),
    "missing field": (lambda m: m["config"].pop("d_state"), "needs d_state"),
    "no model": (lambda m: m.pop("model"), "lacks the key 'model'"),
    "no dtype": (lambda m: m.pop("dtype"), "lacks the key 'dtype'"),
    "a dtype that is none": (lambda m: m.update(dtype="load"), "dtype='load'"),
    "a config that is a list": (lambda m: m.update(config=[1]), "config.json"),
}


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_bad_config(folder: Path, what: str) -> None:
    change, message = BAD_CONFIGS[what]
    edit(folder, change)
    with pytest.raises(CheckpointError, match=message) as failure:
        palimpsest.load(folder)
    assert "config.json" in str(failure.value)


BAD_TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda t: t.pop("decode.bias"), r"missing decode\.bias"),
    "unknown": (lambda t: t.update(extra=torch.zeros(1)), "unknown extra"),
    "mis-shaped": (
        lambda t: t.update({"decode.weight": t["decode.weight"].T.contiguous()}),
        r"mis-shaped decode\.weight",
    ),
}


@pytest.mark.parametrize("what", BAD_TENSORS)
def test_tensors_that_do_not_fit(folder: Path, what: str) -> None:
    change, message = BAD_TENSORS[what]
    edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message):
        palimpsest.load(folder)


def test_all_mistakes_in_one_message(folder: Path) -> None:
    for change, _ in BAD_TENSORS.values():
        edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=r"missing .*; unknown .*; mis-shaped .*"):
        palimpsest.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_cut_short_or_missing(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for length in (0, len(whole) // 3, len(whole) - 3):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=rf"{name}.*cut short"):
            palimpsest.load(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: no such file"):
        palimpsest.load(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"absent: no such folder; name a run, a checkpoint or a model"
    ):
        palimpsest.load(tmp_path / "absent")


def test_loading_draws_no_numbers_and_leaves_the_parameters_trainable(folder: Path) -> None:
    before = torch.get_rng_state()
    loaded = palimpsest.load(folder)
    assert torch.equal(before, torch.get_rng_state())
    for name, parameter in loaded.named_parameters():
        assert isinstance(parameter, torch.nn.Parameter) and parameter.is_leaf
        assert parameter.requires_grad and not parameter.is_meta, name


def test_a_loaded_model_does_not_hang_on_its_file(folder: Path) -> None:
    loaded = palimpsest.load(folder)
    kept = {name: p.detach().clone() for name, p in loaded.named_parameters()}
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(b"\xff" * size)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, kept[name])


def without_lines(path: Path, *keys: str) -> None:
    """Delete the lines of some keys, as an editor does it."""
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split(":")[0].strip().strip('"') not in keys]
    assert len(lines) - len(kept) == len(keys)
    path.write_text("".join(kept))


def test_an_edited_config_is_refused_until_its_digest_is_deleted(tmp_path: Path) -> None:
    sizes = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "head_dim": 4}
    path = palimpsest.build("mamba2", **sizes).save(tmp_path / "model") / "config.json"
    before = path.read_text()
    edited = before.replace('"norm_eps": 1e-05', '"norm_eps": 0.5')
    assert edited != before
    path.write_text(edited)
    with pytest.raises(CheckpointError, match="was damaged or edited") as caught:
        palimpsest.load(path.parent)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert message.endswith('or, if the edit is yours, delete its "sha256" line')
    without_lines(path, "sha256")
    assert palimpsest.load(path.parent).config.norm_eps == 0.5
    path.write_text(before)
    assert palimpsest.load(path.parent).config.norm_eps == 1e-5


def test_edited_weights_are_refused_until_their_digest_is_deleted(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors["embedding.weight"].zero_())
    path = folder / "config.json"
    with pytest.raises(CheckpointError, match="are not those") as caught:
        palimpsest.load(folder)
    assert str(caught.value).endswith(f'delete the lines "weights_sha256" and "sha256" of {path}')
    without_lines(path, "weights_sha256", "sha256")
    assert not palimpsest.load(folder).embedding.weight.any()
