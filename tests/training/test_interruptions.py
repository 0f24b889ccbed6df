"""One process at a run, a closed terminal, a second Ctrl-C: what each leaves and says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from palimpsest import CheckpointError, InputError
from palimpsest.cli import main as main_module
from palimpsest.errors import StorageError, WorkError, work_failed
from palimpsest.locks import LockedError, exclusive
from palimpsest.training import checkpoint_steps, read_metrics, resume, train
from palimpsest.training.loop import Trainer
from palimpsest.training.signals import StopSignals


def do_at(monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> None:
    """Run something before the step after so many."""
    inner = Trainer.train_step

    def train_step(self: Trainer) -> Any:
        if self.step == step:
            action(self)
        return inner(self)

    monkeypatch.setattr(Trainer, "train_step", train_step)


@pytest.mark.parametrize("entry", ["train", "resume"])
def test_a_run_that_is_being_trained_is_refused(entry, make_recipe, tmp_path, monkeypatch):
    """The second one would cut the first one's rows off, and report its validation as its own."""
    refused = []

    def second(trainer: Trainer) -> None:
        with pytest.raises(InputError, match="another process is training this run; wait"):
            resume(trainer.run, progress=False)
        refused.append(trainer.step)

    folder = tmp_path / "run"
    recipe = make_recipe(train__steps=8, train__save_every=2)
    if entry == "resume":
        train(recipe, folder, progress=False, stop_after=3)
    do_at(monkeypatch, 5, second)
    if entry == "resume":
        resume(folder, progress=False)
    else:
        train(recipe, folder, progress=False)
    assert refused == [5]
    assert [r["step"] for r in read_metrics(folder) if r["kind"] == "train"] == list(range(1, 9))
    resume(folder, steps=9, progress=False)  # released


def test_two_runs_begun_at_once_in_one_folder(make_recipe, tmp_path, monkeypatch):
    """Both have seen that there is no folder; one makes it, the other is told."""
    from palimpsest.training import run

    folder, make = tmp_path / "run", run.make_folder

    def made_meanwhile(*given: Any) -> None:
        make(*given)
        make(*given)

    monkeypatch.setattr(run, "make_folder", made_meanwhile)
    with pytest.raises(InputError, match="run: exists already, another process has made it"):
        train(make_recipe(train__steps=2), folder, progress=False)
    assert not list(tmp_path.glob(".run.*"))


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_lock_ends_with_its_process(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom palimpsest.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    lock = tmp_path / "run.lock"
    words = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            with pytest.raises(LockedError), exclusive(lock):
                pass
        finally:
            holder.kill()
    assert lock.exists()
    with exclusive(lock):
        pass
    with pytest.raises(FileNotFoundError), exclusive(tmp_path / "none" / "a.lock"):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the platform has no SIGHUP")
def test_a_closed_terminal_ends_a_run_with_a_checkpoint(make_recipe, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGHUP)
    do_at(monkeypatch, 3, lambda _: os.kill(os.getpid(), signal.SIGHUP))
    result = train(make_recipe(train__steps=8), tmp_path / "run", progress=False)
    assert result.stopped_by == signal.SIGHUP and result.step == 4
    assert checkpoint_steps(result.folder)[-1] == 4
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the platform has no SIGHUP")
def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("saved", [True, False])
def test_a_second_interruption_names_the_last_checkpoint(
    saved, make_recipe, tmp_path, monkeypatch, capsys
):
    def twice(_: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "a run"
    do_at(monkeypatch, 5, twice)
    with pytest.raises(KeyboardInterrupt):
        train(make_recipe(train__steps=8, train__save_every=2 if saved else 0), folder)
    shown = capsys.readouterr().err
    assert "interrupted in step 6" in shown
    if saved:
        assert f"the last checkpoint is {folder / 'checkpoints' / 'step-00000004'}" in shown
        assert f"palimpsest train --resume '{folder}'" in shown
    else:
        assert "no checkpoint was saved yet" in shown


def test_a_third_one_ends_the_process_without_a_traceback(monkeypatch, capsys):
    """Once the work is over, the interpreter shuts down with the system's own treatment."""

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_main", interrupted)
    monkeypatch.setattr(sys, "argv", ["palimpsest", "info"])
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main_module.main(["info"]) == 130
        assert signal.getsignal(signal.SIGINT) is before  # called from a program: left alone
        assert main_module.main() == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "palimpsest: interrupted\n" * 2


# -- exit codes ---------------------------------------------------------------------------------


def test_a_full_disk_is_a_failure_everywhere(make_recipe, tmp_path, monkeypatch):
    """Not the user's mistake, whichever file it hits: the command line ends with 1."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    recipe = make_recipe(train__steps=2)
    places = {
        "checkpoint": "palimpsest.training.checkpoint.torch.save",
        "weights": "safetensors.torch.save_file",
        "metrics": "palimpsest.training.log.os.fsync",
        "folder": "palimpsest.training.run_folder.write_json",
    }
    for name, place in places.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises((CheckpointError, InputError, StorageError)) as caught:
                train(recipe, tmp_path / name, progress=False)
        assert work_failed(caught.value), name
        assert "No space left on device" in str(caught.value)


def test_what_is_a_failure_and_what_a_mistake():
    def caused(error: Exception, cause: Exception) -> Exception:
        error.__cause__ = cause
        return error

    for failure in (
        WorkError("killed"),
        caused(InputError("a"), OSError(errno.EIO, "device")),
        caused(CheckpointError("a"), StorageError("full")),
        caused(CheckpointError("a"), MemoryError()),
        OSError(errno.ENOSPC, "full"),
    ):
        assert work_failed(failure)
    for mistake in (
        InputError("a"),
        FileNotFoundError(errno.ENOENT, "none"),
        caused(InputError("a"), PermissionError(errno.EACCES, "denied")),
        caused(InputError("a"), OSError("not a gzip file")),
    ):
        assert not work_failed(mistake)
