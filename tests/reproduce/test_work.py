"""What a job leaves on the way: whose it is, and that one process is at it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import InputError
from palimpsest.reproduce.jobs import Job, read_result, write_result
from palimpsest.reproduce.work import claimed, discard

JOB: dict[str, Any] = {
    "key": "row", "label": "row", "executor": "a:b", "config": {"seed": 1}, "data": {"train": "a"},
    "code": "a", "paths": {"train": "a"},
}  # fmt: skip


@pytest.mark.parametrize("changed", ["nothing", "fingerprint", "paths"])
def test_only_its_own_work_is_gone_on_with(changed: str, tmp_path: Path) -> None:
    """Half a run of other code, data or settings is not finished under a new name."""
    owner: dict[str, Any] = {"fingerprint": "a", "paths": {"train": "a"}}
    with claimed(tmp_path, "row", owner) as work:
        work.mkdir()
        (work / "half").touch()
    with claimed(tmp_path, "row", {**owner, changed: "b"} if changed in owner else owner) as again:
        assert again == work
        assert (work / "half").exists() == (changed == "nothing")
    discard(tmp_path, "row")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["config", "data", "code"])
def test_the_fingerprint_covers_code_data_and_settings(part: str) -> None:
    other = {**JOB, part: "b" if part == "code" else {"seed": 2}}
    assert Job(**JOB).fingerprint != Job(**other).fingerprint


def test_two_processes_are_not_at_one_job(tmp_path: Path) -> None:
    with claimed(tmp_path, "row", {}):
        with (
            pytest.raises(InputError, match="another process is at this"),
            claimed(tmp_path, "row", {}),
        ):
            pass
        with claimed(tmp_path, "other", {}):
            pass
        discard(tmp_path, "row")  # leaves it alone
        assert (tmp_path / "row.owner.json").exists()
    with claimed(tmp_path, "row", {}):  # let go of
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_the_process_of_a_job_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Even where that was killed, and could tell nobody."""
    script = tmp_path / "start.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, sys, time

            def child(path):
                import threading
                from palimpsest.reproduce.runner import _end_with_parent
                threading.Thread(target=_end_with_parent, daemon=True).start()
                with open(path + ".part", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(path + ".part", path)
                time.sleep(60)

            if __name__ == "__main__":
                context = multiprocessing.get_context("spawn")
                context.Process(target=child, args=(sys.argv[1],)).start()
                time.sleep(60)
            """
        )
    )
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, str(script), str(told)])
    try:
        deadline = time.monotonic() + 60
        while not told.exists():
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.05)
        child = int(told.read_text())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        while _alive(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        parent.kill()
    assert multiprocessing.parent_process() is None  # here nothing waits for anybody


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc/self").exists()
    return state != "Z"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": None}, "'metrics' is missing or damaged"),
        ({"metrics": []}, "'metrics' is missing or damaged"),
        ({"metrics": {"recall": "abc"}}, "metric 'recall' is no number"),
        ({"facts": 1}, "'facts' is missing or damaged"),
        ({"seconds": "long"}, "'seconds' is missing or damaged"),
        ({"schema_version": 0}, "version 0"),
    ],
)
def test_a_damaged_result_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    job = Job(**JOB)
    good = {
        "schema": "palimpsest-job", "schema_version": 1, "metrics": {"recall": 1}, "facts": {},
        "config": {}, "where": {}, "parameters": 3, "seconds": 1.5,
    }  # fmt: skip
    write_result(tmp_path, job, good)
    assert read_result(tmp_path, job) == good
    write_result(tmp_path, job, {**good, **change})
    with pytest.raises(InputError, match=f"{words}.*remove it, or name another --out"):
        read_result(tmp_path, job)
    (tmp_path / "row.json").write_text("{")
    with pytest.raises(InputError, match="remove it, or name another --out"):
        read_result(tmp_path, job)
