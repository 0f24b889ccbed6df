"""Evaluations on a GPU: the same figures, and memory as the allocator counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from palimpsest.evaluation import evaluate_lambada, evaluate_recall, measure_throughput
from palimpsest.evaluation.memory import peak_bytes
from palimpsest.tasks import MQARTask
from palimpsest.text import ByteTokenizer
from tests.evaluation.models import small_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_figures_of_a_cpu(tmp_path: Path) -> None:
    data = tmp_path / "e.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("a b c", "the old man ran")))
    for family in ("gpnm", "transformer"):
        nats = []
        for device in ("cpu", "cuda"):
            model = small_model(family).to(device)
            result = evaluate_lambada(model, ByteTokenizer(), data, progress=False)
            nats.append(result.word_nats.value)
            tasks = [MQARTask(length=24, pairs=3, vocab_size=48)]
            model = small_model(family, 48).to(device)
            recall = evaluate_recall(model, tasks, examples=8, progress=False)
            nats.append(recall.results[0].loss)
        assert nats[:2] == pytest.approx(nats[2:], rel=1e-9)


def test_memory_is_the_allocators() -> None:
    device = torch.device("cuda")
    size = 64 << 20
    found = peak_bytes(lambda: torch.ones(size // 8, dtype=torch.float64, device=device), device)
    assert found == size
    models = {"t": small_model("transformer").to(device)}
    results = measure_throughput(models, lengths=(16,), batches=(2,), rounds=1, progress=False)
    rows = {row.phase: row for row in results["t"].results}
    assert rows["training"].peak_bytes is not None and rows["prefill"].peak_bytes is not None
    assert rows["training"].peak_bytes > rows["prefill"].peak_bytes > 0
