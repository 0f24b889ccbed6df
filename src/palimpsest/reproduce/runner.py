"""Carrying out jobs: those without a valid result, one after another or side by side.

Each result is written as soon as it is there, so an interruption costs the jobs in hand only. Side
by side, every job is a process of its own with its share of the threads; a program that asks for
this needs the usual guard, ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from palimpsest.errors import (
    ConfigError,
    InputError,
    PalimpsestError,
    WorkError,
    out_of_memory,
    work_failed,
)
from palimpsest.evaluation.progress import track
from palimpsest.reproduce.jobs import Job, execute, read_result, stale, write_result
from palimpsest.reproduce.work import discard
from palimpsest.streams import plain, safe_stderr

__all__ = ["JobError", "run_jobs"]

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0  # for a run to save its checkpoint when it is told to stop
# Ctrl-C, a scheduler, a closed terminal (a signal that Windows lacks)
STOPPED_BY = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
JOBS, WORK = "jobs", "unfinished"  # folders of results, and of what is under way


class JobError(PalimpsestError):
    """A job that failed in a process of its own; the message is that of its own error."""


class JobFailedError(JobError, WorkError):
    """A job that failed because of the machine: a full disk, too little memory."""


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    console: Console | None = None,
    label: str = "measuring",
) -> list[dict[str, Any]]:
    """Make sure that every job has its result.

    Args:
        jobs: with different keys.
        out: results are in its folder ``jobs``.
        workers: how many jobs run side by side.
        threads: CPU threads of all together; None takes torch's number, which OMP_NUM_THREADS sets.
        console: for progress; standard error by default.
        label: what the progress bar calls the whole.

    Returns:
        The results, in the order of the jobs.

    Raises:
        PalimpsestError: a job's own mistake (:class:`JobError` where it ran in another process);
            the results that were ready are kept.
        ConfigError: two jobs would have the same file.
    """
    labels: dict[str, str] = {}
    for job in jobs:
        if job.key in labels:
            raise ConfigError(
                f"{labels[job.key]!r} and {job.label!r}: their results would be one file, "
                f"{job.key}.json; give them labels, sizes or seeds that differ more"
            )
        labels[job.key] = job.label
    if workers < 1 or (threads is not None and threads < 1):
        raise InputError(f"jobs={workers}, threads={threads}: must both be at least 1")
    console = console or Console(file=safe_stderr())
    folder, work_folder = out / JOBS, out / WORK
    results: dict[str, dict[str, Any]] = {}
    pending: list[Job] = []
    for job in jobs:
        found = read_result(folder, job)
        reason = None if found is None else stale(job, found)
        if found is not None and not reason:
            results[job.key] = found
            discard(work_folder, job.key)  # what an interruption right after writing it has left
            continue
        if reason:
            _say(console, f"{job.label}: {reason} changed since it was measured; measured again")
        pending.append(job)
    if results:
        _say(console, f"{len(results)} of {len(jobs)} results are there already")

    def done(job: Job, result: dict[str, Any]) -> None:
        write_result(folder, job, result)
        discard(work_folder, job.key)
        results[job.key] = result
        _say(console, f"[{len(results)}/{len(jobs)}] {_summary(job, result)}")

    total = threads or torch.get_num_threads()  # respects OMP_NUM_THREADS
    apart = [job for job in pending if not (job.exclusive or workers == 1)]
    alone = [job for job in pending if job.exclusive or workers == 1]
    if pending:
        with track(label, sum(job.work for job in pending), console=console) as advance:
            _side_by_side(apart, work_folder, workers, max(1, total // workers), advance, done)
            _one_by_one(alone, work_folder, total, advance, done)
    with suppress(OSError):  # only where nothing is left in it
        work_folder.rmdir()
    return [results[job.key] for job in jobs]


def _one_by_one(
    jobs: Sequence[Job],
    folder: Path,
    threads: int,
    advance: Callable[[int], None],
    done: Callable[[Job, dict[str, Any]], None],
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for job in jobs:
            account = _Account(job.work, advance)
            done(job, execute(job, folder, account.add))
            account.close()
    finally:
        torch.set_num_threads(before)


class _Account:
    """Keeps a job's reports within the work that it was announced with."""

    def __init__(self, work: int, advance: Callable[[int], None]) -> None:
        self._left = work
        self._advance = advance

    def add(self, tokens: int) -> None:
        step = min(tokens, self._left)
        self._left -= step
        self._advance(step)

    def close(self) -> None:
        self.add(self._left)


# -- side by side -------------------------------------------------------------------------------


def _side_by_side(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    threads: int,
    advance: Callable[[int], None],
    done: Callable[[Job, dict[str, Any]], None],
) -> None:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    waiting = list(reversed(jobs))
    running: dict[Connection, tuple[Job, BaseProcess, _Account]] = {}
    with _terminated_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop()
                    ours, theirs = context.Pipe(duplex=False)
                    process: BaseProcess = context.Process(
                        target=_child, args=(job, folder, threads, theirs)
                    )
                    process.start()
                    theirs.close()
                    running[ours] = (job, process, _Account(job.work, advance))
                for ready in wait(list(running), timeout=POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    job, process, account = running[ready]
                    kind, value = _receive(ready)
                    if kind == "progress":
                        account.add(value)
                        continue
                    del running[ready]
                    process.join()
                    if kind != "done":
                        _fail(job, kind, value, process.exitcode)
                    done(job, value)
                    account.close()
        finally:
            _stop([process for _, process, _ in running.values()])


def _receive(connection: Connection) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = connection.recv()
    except EOFError:
        return "ended", None
    return message


def _fail(job: Job, kind: str, text: Any, code: int | None) -> None:
    if kind == "mistake":
        raise JobError(f"{job.label}: {text}")
    if kind == "failure":
        raise JobFailedError(f"{job.label}: {text}")
    if kind == "interrupted" or code in [-number for number in STOPPED_BY]:
        raise KeyboardInterrupt
    if kind == "ended":
        raise JobFailedError(
            f"{job.label}: its process ended with exit code {code} and no result (too little "
            "memory is a common cause); use fewer --jobs"
        )
    raise RuntimeError(f"{job.label} failed:\n{text}")


def _child(job: Job, folder: Path, threads: int, connection: Connection) -> None:
    """The process of one job: sends progress now and then, and one last message."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lock, waiting, last = threading.Lock(), 0, time.monotonic()

    def advance(tokens: int) -> None:
        nonlocal waiting, last
        with lock:
            waiting += tokens
            if time.monotonic() - last > POLL_SECONDS:
                connection.send(("progress", waiting))
                waiting, last = 0, time.monotonic()

    try:
        result = execute(job, folder, advance)
    except PalimpsestError as failure:
        connection.send(("failure" if work_failed(failure) else "mistake", str(failure)))
    except OSError as failure:
        where = f"{failure.filename}: " if failure.filename else ""
        kind = "failure" if work_failed(failure) else "mistake"
        connection.send((kind, f"{where}{failure.strerror or failure}"))
    except KeyboardInterrupt:
        connection.send(("interrupted", None))
    except Exception as failure:
        if out_of_memory(failure):
            connection.send(("failure", "out of memory; use fewer --jobs, or a smaller batch"))
        else:
            connection.send(("failed", traceback.format_exc()))
    else:
        connection.send(("done", result))


def _end_with_parent() -> None:
    """Stop this process, as a signal would, once the one that has started it is gone: even where
    that was killed, and could tell nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Tell processes to stop; runs save a checkpoint first."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise KeyboardInterrupt, so that no process is left
    behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in STOPPED_BY[1:] if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- words --------------------------------------------------------------------------------------


def _say(console: Console, text: str) -> None:
    console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


def _summary(job: Job, result: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in result["metrics"].items())
    if "diverged" in result["facts"]:
        shown = "diverged"
    return f"{job.label}: {shown} ({result['seconds']:.0f} s)"
