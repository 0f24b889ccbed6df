"""A checkpoint is whole or not there; what is damaged or foreign is named."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil

import pytest
import torch

import palimpsest
from palimpsest import CheckpointError, PalimpsestError, force_backend
from palimpsest.training import checkpoint_steps, latest_checkpoint, model_folder, resume, train


@pytest.fixture(scope="module")
def trained(make_recipe, tmp_path_factory):
    """A run stopped after step 10, with checkpoints of steps 5 and 10."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch, force_backend("reference"):
        patch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
        recipe = make_recipe(data__order="stream", train__steps=12)
        return train(recipe, folder, progress=False, stop_after=10).folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, to damage."""
    return shutil.copytree(trained, tmp_path / "run")


def step(run, number):
    return run / "checkpoints" / f"step-{number:08d}"


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["torch.save", "safetensors.torch.save_file", "os.fsync"])
def test_a_full_disk_leaves_the_checkpoint_before(where, run, monkeypatch):
    before = snapshot(step(run, 10))
    if where != "os.fsync":
        monkeypatch.setattr(where, full_disk)
    else:
        monkeypatch.setattr("palimpsest.training.checkpoint._sync", full_disk)
    with pytest.raises(CheckpointError) as caught:
        resume(run, progress=False)
    message = str(caught.value)
    assert "No space left on device" in message and "step-00000010, is whole" in message
    assert "\n" not in message
    assert checkpoint_steps(run) == [5, 10]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "step-00000005",
        "step-00000010",
    ]
    assert snapshot(step(run, 10)) == before
    monkeypatch.undo()
    monkeypatch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
    assert resume(run, progress=False).finished


def test_a_full_disk_at_the_metrics_is_one_message(run, monkeypatch):
    class Full:
        def write(self, text):
            full_disk()

        def flush(self):
            full_disk()

        def fileno(self):
            return 0

        def close(self):
            full_disk()

    from palimpsest.training.log import MetricsLog

    plain = MetricsLog.__init__

    def init(self, *args):
        plain(self, *args)
        self._file.close()
        self._file = Full()

    monkeypatch.setattr(MetricsLog, "__init__", init)
    with pytest.raises(PalimpsestError, match=r"metrics\.jsonl: could not be written \(No space"):
        resume(run, progress=False)
    assert checkpoint_steps(run) == [5, 10]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "training.pt", "state.safetensors", "config.json"]
)
def test_a_truncated_file_names_the_checkpoint_before(name, run):
    file = step(run, 10) / name
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(CheckpointError) as caught:
        resume(run, progress=False)
    message = str(caught.value)
    assert f"{file}: has" in message and "cut short" in message
    assert f"{step(run, 5)}, remove {step(run, 10)}" in message
    shutil.rmtree(step(run, 10))
    assert resume(run, progress=False).finished


def test_missing_files_and_foreign_headers(run):
    (step(run, 10) / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer\.pt: is missing"):
        resume(run, progress=False)
    header = step(run, 10) / "checkpoint.json"
    meta = json.loads(header.read_text())
    for changed, message in (
        ({**meta, "format": "other"}, "is not a palimpsest checkpoint"),
        ({**meta, "version": 99}, "version 99"),
        ({**meta, "step": "ten"}, "step='ten'"),
        ([], "is not a palimpsest checkpoint"),
    ):
        if isinstance(changed, dict):
            changed.pop("sha256")  # an edit by hand; the digest is not what this tests
        header.write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match=message):
            resume(run, progress=False)
    header.write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        resume(run, progress=False)


def replace_file(run, name, content):
    file = step(run, 10) / name
    file.write_bytes(content)
    header = step(run, 10) / "checkpoint.json"
    meta = json.loads(header.read_text())
    meta["files"][name] = len(content)
    for key in ("sha256", "digests"):  # without them the file itself must be refused
        meta.pop(key, None)
    header.write_text(json.dumps(meta))


def test_a_malicious_pickle_runs_nothing(run, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    replace_file(run, "optimizer.pt", pickle.dumps(Evil(), protocol=2))
    with pytest.raises(CheckpointError, match="is not a file that a save wrote"):
        resume(run, progress=False)
    torch.save(Evil(), tmp_path / "evil.pt")
    replace_file(run, "optimizer.pt", (tmp_path / "evil.pt").read_bytes())
    with pytest.raises(CheckpointError, match="is not a file that a save wrote"):
        resume(run, progress=False)
    assert not (tmp_path / "owned").exists()


def test_an_optimizer_of_another_model_is_refused(run, tmp_path):
    torch.save({"state": {}, "param_groups": []}, tmp_path / "other.pt")
    replace_file(run, "optimizer.pt", (tmp_path / "other.pt").read_bytes())
    with pytest.raises(CheckpointError, match="does not fit the run's recipe"):
        resume(run, progress=False)


def test_leftovers_of_an_interrupted_save_are_no_checkpoint(run):
    partial = run / "checkpoints" / ".step-00000015.77.partial"
    shutil.copytree(step(run, 10), partial)
    assert checkpoint_steps(run) == [5, 10]
    resume(run, progress=False)
    assert not partial.exists()


def test_only_the_last_ones_are_kept_and_the_latest_is_found(make_recipe, tmp_path):
    recipe = make_recipe(train__save_every=2, train__keep_checkpoints=2, train__steps=7)
    run = train(recipe, tmp_path / "run", progress=False).folder
    assert checkpoint_steps(run) == [6, 7]
    assert latest_checkpoint(run) == step(run, 7) == model_folder(run)
    assert model_folder(step(run, 6)) == step(run, 6)
    shutil.rmtree(run / "checkpoints")
    assert latest_checkpoint(run) is None
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        model_folder(run)
    with pytest.raises(CheckpointError, match="no such folder"):
        model_folder(run / "nothing")


def test_an_edited_recipe_is_refused_until_its_digest_is_deleted(run):
    recipe, meta = run / "recipe.toml", run / "run.json"
    recipe.write_text(recipe.read_text().replace("log_every = 1", "log_every = 2"))
    with pytest.raises(CheckpointError, match=r'delete "files" and "sha256" from run\.json'):
        resume(run, progress=False)
    content = json.loads(meta.read_text())
    assert content.pop("files") and content.pop("sha256")
    meta.write_text(json.dumps(content))
    assert resume(run, progress=False).finished


def test_a_checkpoint_whose_config_was_edited_is_refused_with_the_remedy(run, tmp_path):
    path = step(run, 10) / "config.json"
    path.write_text(path.read_text().replace('"palimpsest": "', '"palimpsest": "x'))
    os.truncate(path, path.stat().st_size - 1)  # the same size, still JSON
    with pytest.raises(CheckpointError, match=r"to edit it, copy it with model\.safetensors"):
        model_folder(run)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "own").mkdir(exist_ok=True)
        shutil.copy(step(run, 10) / name, tmp_path / "own")
    with pytest.raises(CheckpointError, match='delete its "sha256" line'):
        palimpsest.load(tmp_path / "own")
