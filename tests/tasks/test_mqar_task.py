from __future__ import annotations

import pytest
import torch

from palimpsest.tasks import MQARTask, RecallScore, Task


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("random_filler", [True, False])
@pytest.mark.parametrize(
    ("length", "pairs", "vocab_size"), [(64, 4, 8192), (64, 16, 67), (1024, 256, 8192), (4, 1, 4)]
)
def test_every_key_is_asked_once(
    length: int, pairs: int, vocab_size: int, random_filler: bool
) -> None:
    task = MQARTask(length=length, pairs=pairs, vocab_size=vocab_size, random_filler=random_filler)
    batch = task.batch(5, generator())
    assert batch.inputs.shape == batch.labels.shape == (5, length)
    assert batch.inputs.dtype == batch.labels.dtype == torch.int64
    for inputs, labels in zip(batch.inputs, batch.labels, strict=True):
        shown = inputs[: 2 * pairs].reshape(pairs, 2)
        memory = dict(shown.tolist())
        assert len(memory) == pairs == len(set(memory.values()))
        assert ((shown[:, 0] >= 1) & (shown[:, 0] < vocab_size // 2)).all()
        assert ((shown[:, 1] >= vocab_size // 2) & (shown[:, 1] < vocab_size)).all()
        asked = torch.nonzero(labels != -100).flatten()
        assert sorted(inputs[asked].tolist()) == sorted(memory)
        assert [memory[k] for k in inputs[asked].tolist()] == labels[asked].tolist()
        assert (asked >= 2 * pairs).all() and (asked % 2 == 0).all()
        filler = inputs[2 * pairs :][labels[2 * pairs :] == -100]
        if not random_filler:
            assert (filler == 0).all()
        elif length > 100:
            assert (filler == 0).float().mean() < 0.1


def test_gaps_follow_the_power_law() -> None:
    counts = {}
    for power_a in (0.01, 1.0):
        task = MQARTask(length=66, pairs=1, vocab_size=64, power_a=power_a)
        labels = task.batch(4000, generator(1)).labels
        places = (labels != -100).float().mean(0)[2::2]
        counts[power_a] = places
    weights = torch.arange(1, 33, dtype=torch.float64) ** (0.01 - 1.0)
    assert torch.allclose(counts[0.01].double(), weights / weights.sum(), atol=0.03)
    assert torch.allclose(counts[1.0], torch.full((32,), 1 / 32), atol=0.015)


def test_same_seed_same_batch() -> None:
    one, other = (MQARTask().batch(3, generator(7)) for _ in range(2))
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.labels, other.labels)
    assert not torch.equal(one.inputs, MQARTask().batch(3, generator(8)).inputs)


def test_accuracy_and_chance() -> None:
    task: Task = MQARTask(pairs=4, vocab_size=64)
    assert task.chance == 1 / 32 and task.name == "mqar-4pairs-64"
    batch = task.batch(2, generator())
    logits = torch.nn.functional.one_hot(batch.labels.clamp(min=0), 64).float()
    assert task.accuracy(logits, batch.labels) == RecallScore(4, 8, 8)
    with pytest.raises(ValueError, match="batch_size=0"):
        task.batch(0, generator())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pairs": 17}, "pairs=17 take 4 positions each .* at least 68, and length=64"),
        ({"pairs": 16, "vocab_size": 32}, "pairs=16 need .* vocab_size=32 has 15"),
        ({"pairs": 0}, "pairs=0"),
        ({"length": 65}, "length=65: must be even"),
        ({"power_a": 0.0}, "power_a=0.0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        MQARTask(**changes)  # type: ignore[arg-type]
