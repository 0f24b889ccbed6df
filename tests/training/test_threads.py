"""Training takes one thread for a small model, and the user's number if there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palimpsest import build
from palimpsest.reproduce import runner
from palimpsest.training import Recipe, resume, threads, train


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_step_of_a_sequential_model_is_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpnm-tiny")
    assert threads.work_per_step(model, 16, 256) == 32 * model.num_parameters()
    other = build("transformer-175k")
    assert threads.work_per_step(other, 16, 256) == 32 * 256 * other.num_parameters()
    monkeypatch.setattr(threads, "_at_import", 4)
    assert threads.choose_threads(threads.work_per_step(model, 16, 256), 4)[0] == 1
    assert threads.choose_threads(threads.work_per_step(other, 16, 256), 4) == (4, None)


@pytest.mark.parametrize("name", threads.VARIABLES)
def test_the_users_setting_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(threads, "_at_import", 4)
    assert threads.choose_threads(1000, 4)[0] == 1
    assert threads.choose_threads(1000, 3) == (3, None)  # torch.set_num_threads(3)
    monkeypatch.setenv(name, "4")
    assert threads.choose_threads(1000, 4) == (4, None)


def test_a_run_reports_and_records_its_threads_and_restores_the_setting(
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "_at_import", 2)
    try:
        train(make_recipe(), tmp_path / "run", stop_after=2)
        assert torch.get_num_threads() == 2
        assert "1 thread instead of 2" in capsys.readouterr().err
        resume(tmp_path / "run", stop_after=4)
        assert torch.get_num_threads() == 2
        assert "threads: 1, as in the run's last session" in capsys.readouterr().err
    finally:
        torch.set_num_threads(before)
    sessions = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]
    assert [session["threads"] for session in sessions] == [1, 1]


def test_jobs_share_the_number_that_the_user_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(runner, "read_result", lambda *_: None)
    monkeypatch.setattr(runner, "_side_by_side", lambda *_: None)
    monkeypatch.setattr(runner, "_one_by_one", lambda _, __, total, *___: shares.append(total))

    class Alone:
        key, label, work, exclusive = "job", "job", 1, True

    with pytest.raises(KeyError):  # the replaced function leaves no result
        runner.run_jobs([Alone()], tmp_path, workers=1)  # type: ignore[list-item]
    assert shares == [3]


def test_omp_num_threads_in_a_new_process() -> None:
    code = "import palimpsest.training.threads as t; print(*t.choose_threads(1, 2)[:1])"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "2", done.stderr
