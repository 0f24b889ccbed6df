"""Throughput: what is run, that the model stays as it was, and how memory is weighed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from palimpsest.errors import InputError
from palimpsest.evaluation import (
    ThroughputResult,
    load_result,
    measure_throughput,
    throughput_table,
)
from palimpsest.evaluation.memory import peak_bytes
from palimpsest.evaluation.throughput import random_ids
from tests.evaluation.models import small_model


def test_every_cell_is_measured_and_the_models_stay(tmp_path: Path) -> None:
    """On models without compiled kernels, which would be most of the time."""
    models = {"a": small_model("transformer"), "b": small_model("transformer", positions="none")}
    before = {n: {k: v.clone() for k, v in m.state_dict().items()} for n, m in models.items()}
    results = measure_throughput(
        models, lengths=(5, 1), batches=(2,), decode_tokens=4, rounds=2, progress=False
    )
    for name, model in models.items():
        result = results[name]
        assert not model.training
        assert all(p.grad is None for p in model.parameters())
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[name][key])
        cells = [(r.phase, r.batch, r.length) for r in result.results]
        assert len(cells) == len(set(cells)) == 6
        for row in result.results:
            decode = row.phase == "decode"
            assert row.tokens == row.batch * (4 if decode else row.length)
            assert len(row.seconds) == 2
            assert row.tokens_per_s == pytest.approx(row.tokens / (sum(row.seconds) / 2))
            after = row.length + (4 if decode else 0)
            assert row.state_bytes == model.state_bytes(row.batch, after)
    assert results["a"].data_sha256 == results["b"].data_sha256
    path = results["a"].save(tmp_path / "r.json")
    assert ThroughputResult.load(path) == results["a"] == load_result(path)
    assert throughput_table(list(results.values())).row_count == 6


def test_bad_input() -> None:
    models = {"t": small_model("transformer")}
    for change, words in (
        ({"lengths": (0,)}, "lengths=0"),
        ({"batches": ()}, r"batches=\[\]"),
        ({"phases": ("fast",)}, "phase 'fast': choose from prefill, training, decode"),
        ({"rounds": 0}, "rounds=0"),
        ({"decode_tokens": 0}, "decode_tokens=0"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"lengths": (90,)}, r"t: .* holds at most 96 positions"),
    ):
        with pytest.raises(InputError, match=words):
            measure_throughput(models, **change)
    with pytest.raises(InputError, match="models="):
        measure_throughput({})


def test_ids_are_the_same_for_every_model() -> None:
    ids = [random_ids(small_model(family), 2, 7) for family in ("gpnm", "transformer")]
    assert ids[0].shape == (2, 8) and torch.equal(*ids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's high-water mark")
def test_memory_of_a_known_size_is_found() -> None:
    size = 64 << 20
    device = torch.device("cpu")

    def work() -> None:
        torch.ones(size // 8, dtype=torch.float64)

    measured = [peak_bytes(work, device) for _ in range(2)]
    if None in measured:
        pytest.skip("this kernel does not let a process set its high-water mark back")
    for found in measured:  # the second time too: the peak was set back
        assert found == pytest.approx(size, rel=0.1)
    small = peak_bytes(lambda: None, device)
    assert small is not None and small < size / 10


def test_memory_that_cannot_be_told_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.evaluation.memory._reset", lambda: False)
    ran = []
    assert peak_bytes(lambda: ran.append(1), torch.device("cpu")) is None
    assert ran == [1]
