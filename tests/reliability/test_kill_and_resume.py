"""A run killed at random moments ends in the same bits as an undisturbed one.

Every segment is a process of its own; segments differ in hash seed, size of the environment and
content of the heap, because each of them moves arrays in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.training import checkpoint_steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

HOST = Path(__file__).with_name("kill_host.py")
GPNM = {"d_state": 32, "d_emb": 16, "d_ffn": 32, "n_heads": 2, "d_key": 8, "d_val": 8}
SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 2}
TRIPLE = {**SMALL, "state_dim": 8}
CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "gpnm, reference": ({"name": "gpnm", **GPNM}, "reference"),
    "gpnm, fused": ({"name": "gpnm", **GPNM}, "fused"),
    "gpnm, numba": ({"name": "gpnm", **GPNM}, "numba"),
    "gpnm-tiny, numba": ({"name": "gpnm-tiny"}, "numba"),
    "triple-latent, reference": ({"name": "triple-latent", **TRIPLE}, "reference"),
    "triple-latent": ({"name": "triple-latent", **TRIPLE}, None),
    "triple-slot": ({"name": "triple-slot", **TRIPLE}, None),
    "gated-hybrid": ({"name": "gated-hybrid", **TRIPLE}, None),
    "transformer": ({"name": "transformer", **SMALL}, None),
}
KILLS_PER_HOST = 3  # two hosts a case


def recipe(text: Path, model: dict[str, Any], steps: int) -> dict[str, Any]:
    """A recipe that validates, saves often and reads the text in a random order."""
    data = {"train": [str(text)], "validation_fraction": 0.2, "seq_len": 32}
    loop = {"steps": steps, "batch_size": 4, "save_every": 2, "eval_every": 6, "log_every": 1}
    return {
        "model": model,
        "data": data,
        "optimizer": {"warmup_steps": 2},
        "train": {**loop, "eval_batches": 1, "device": "cpu"},
    }


@pytest.fixture
def text(tmp_path: Path) -> Path:
    draw = random.Random(3)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(draw.choices(["state", "read", "write", "page", "loop"], k=800)))
    return path


def call_host(order: dict[str, Any]) -> dict[str, int]:
    """Run the host in a new process with a memory layout that follows from the seed."""
    draw = random.Random(order["seed"])
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(palimpsest.__file__).parents[1]),
        "PYTHONHASHSEED": str(draw.randrange(1, 4_000_000_000)),
        "PALIMPSEST_TEST_PADDING": "x" * draw.randrange(20_000),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(HOST)],
        input=json.dumps(order),
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def digest(run: Path, steps: int) -> str:
    """sha256 of the weights of the last step."""
    assert checkpoint_steps(run)[-1] == steps
    weights = run / "checkpoints" / f"step-{steps:08d}" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def kill_and_resume(
    folder: Path, table: dict[str, Any], backend: str | None, kills: int, seed: int
) -> dict[str, int]:
    """Kill a run in two hosts; compare each finished run with an undisturbed one."""
    total: dict[str, int] = {}
    for host, whole in enumerate((True, False)):
        order = {
            "recipe": table,
            "backend": backend,
            "folder": str(folder),
            "kills": kills,
            "whole": whole,
            "seed": seed + host,
        }
        for name, count in call_host(order).items():
            total[name] = total.get(name, 0) + count
    steps = table["train"]["steps"]
    parts = [run for run in sorted(folder.glob("parts*")) if run.is_dir()]
    runs = [*folder.glob("whole-*"), *folder.glob("timed-*"), *parts]
    assert len(runs) >= 3
    assert len({digest(run, steps) for run in runs}) == 1, [run.name for run in runs]
    assert total["kills"] == 2 * kills
    return total


def test_kills_over_backends_and_models(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba")
    total: dict[str, int] = {}
    for number, (case, (model, backend)) in enumerate(CASES.items()):
        folder = tmp_path / f"case{number}"
        table = recipe(text, model, steps=24)
        counts = kill_and_resume(folder, table, backend, KILLS_PER_HOST, seed=100 * number)
        with capsys.disabled():
            print(f"\n{case}: {counts}, weights equal", end="")
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    with capsys.disabled():
        print(f"\nall: {total}")
    assert total["kills"] >= 40 and total["resumes"] >= 40


def test_four_undisturbed_runs_are_equal(tmp_path: Path, text: Path) -> None:
    pytest.importorskip("numba")
    table = recipe(text, {"name": "gpnm-tiny"}, steps=100)
    table["train"]["save_every"] = 0
    for seed in range(4):
        call_host(
            {
                "recipe": table,
                "backend": "numba",
                "folder": str(tmp_path / "runs"),
                "kills": 0,
                "whole": True,
                "seed": seed,
            }
        )
    runs = sorted((tmp_path / "runs").glob("whole-*"))
    assert len(runs) == 4
    assert len({digest(run, 100) for run in runs}) == 1
