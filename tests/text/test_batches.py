from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from palimpsest.text import (
    Batch,
    ByteTokenizer,
    Corpus,
    Document,
    RandomWindowSampler,
    StreamSampler,
    WindowError,
    WindowSampler,
    consecutive_windows,
    make_sampler,
    open_shards,
    write_shards,
)

TOKENS = np.arange(103, dtype=np.uint16)  # token = position


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def samplers() -> list[WindowSampler | RandomWindowSampler | StreamSampler]:
    return [
        WindowSampler(TOKENS, 5, 3, seed=4),
        RandomWindowSampler(TOKENS, 5, 3, seed=4),
        StreamSampler(TOKENS, 5, 3, document_starts=np.array([0, 7, 60])),
    ]


@pytest.mark.parametrize("index", range(3))
def test_a_batch_is_a_function_of_its_step(index: int) -> None:
    steps = list(range(40))
    forward = [samplers()[index].batch_at(s) for s in steps]
    sampler = samplers()[index]
    for step in [39, 0, 17, 17, 3, 4, *reversed(steps)]:
        assert same(sampler.batch_at(step), forward[step])
    with pytest.raises(ValueError, match="step=-1"):
        sampler.batch_at(-1)


@pytest.mark.parametrize("index", range(3))
def test_shapes_and_shift(index: int) -> None:
    for step in range(30):
        batch = samplers()[index].batch_at(step)
        assert batch.inputs.shape == batch.targets.shape == (3, 5)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert torch.equal(batch.targets, batch.inputs + 1)
        assert torch.equal(batch.inputs, batch.inputs[:, :1] + torch.arange(5))


def test_every_window_once_per_epoch() -> None:
    sampler = WindowSampler(TOKENS, 5, 3, seed=4)
    assert (sampler.windows_per_epoch, sampler.unused_tokens) == (20, 2)
    assert sampler.steps_per_epoch == 20 / 3
    starts = torch.cat([sampler.batch_at(s).inputs[:, 0] for s in range(20)]) // 5
    epochs = [starts[e * 20 : (e + 1) * 20].tolist() for e in range(3)]
    assert all(sorted(e) == list(range(20)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [sampler.epoch_at(s) for s in (0, 6, 7, 13, 14)] == [0, 0, 1, 1, 2]
    other = WindowSampler(TOKENS, 5, 3, seed=5)
    assert other.order(0).tolist() != sampler.order(0).tolist()


def test_the_order_never_changes() -> None:
    assert WindowSampler(TOKENS, 10, 2, seed=7).order(3).tolist() == ORDER_7_3


def test_more_rows_than_windows() -> None:
    sampler = WindowSampler(TOKENS[:11], 5, 7, seed=0)
    batch = sampler.batch_at(5)
    assert batch.inputs.shape == (7, 5)
    assert set(batch.inputs[:, 0].tolist()) == {0, 5}


def test_random_mode_is_the_protocol() -> None:
    sampler = RandomWindowSampler(TOKENS, 5, 16, seed=19)
    generator = torch.Generator().manual_seed(19)
    for step in range(10):
        starts = torch.randint(0, 103 - 5 - 1, (16,), generator=generator)
        assert torch.equal(sampler.batch_at(step).inputs[:, 0], starts)


def test_random_mode_resumes_from_a_saved_generator() -> None:
    first = RandomWindowSampler(TOKENS, 5, 3, seed=1)
    for step in range(9):
        first.batch_at(step)
    second = RandomWindowSampler(TOKENS, 5, 3, seed=1)
    second.load_state_dict(first.state_dict())
    for step in (9, 10, 2):
        assert same(second.batch_at(step), first.batch_at(step))


def test_stream_rows_read_on() -> None:
    sampler = StreamSampler(TOKENS, 5, 3, document_starts=np.array([0, 7, 60]))
    before = sampler.batch_at(0)
    assert before.inputs[:, 0].tolist() == [0, 30, 65]
    assert before.reset[:, 0].all() and before.reset.sum() == 3
    seen = [before.inputs]
    for step in range(1, 60):
        batch = sampler.batch_at(step)
        for row in range(3):
            if batch.inputs[row, 0] == 0:
                assert before.inputs[row, -1] == 99  # the end of the last window
            else:
                assert batch.inputs[row, 0] == before.targets[row, -1]
        expected = sum((batch.inputs == start) for start in (0, 7, 60))
        assert torch.equal(batch.reset, expected.bool())
        seen.append(batch.inputs)
        before = batch
    assert set(torch.cat(seen[:7]).flatten().tolist()) == set(range(100))


def test_stream_takes_the_documents_of_a_corpus(tmp_path: Path) -> None:
    documents = [Document("abc", "x"), Document("defgh", "y")]
    corpus = write_shards(tmp_path / "s", documents, ByteTokenizer())
    batch = StreamSampler(corpus, 11, 1).batch_at(4)
    assert torch.equal(batch.reset[0], batch.inputs[0] == 257)
    opened = make_sampler(open_shards(tmp_path / "s"), mode="epoch", seq_len=3, batch_size=2)
    assert opened.batch_at(0).inputs.shape == (2, 3)


def test_text_shorter_than_one_window() -> None:
    for make, longest in ((WindowSampler, 102), (StreamSampler, 102), (RandomWindowSampler, 101)):
        make(TOKENS, longest, 2).batch_at(1)
        with pytest.raises(WindowError, match=r"103 tokens, and one window .* takes"):
            make(TOKENS, longest + 1, 2)


def test_arguments_out_of_range() -> None:
    corpus = Corpus.from_text("some text", ByteTokenizer())
    with pytest.raises(ValueError, match="seq_len=0"):
        make_sampler(corpus, mode="epoch", seq_len=0, batch_size=1)
    with pytest.raises(ValueError, match="batch_size=0"):
        make_sampler(corpus, mode="random", seq_len=2, batch_size=0)
    with pytest.raises(ValueError, match="seed=-1"):
        make_sampler(corpus, mode="random", seq_len=2, batch_size=1, seed=-1)
    with pytest.raises(ValueError, match="mode='all'"):
        make_sampler(corpus, mode="all", seq_len=2, batch_size=1)
    with pytest.raises(ValueError, match=r"shape \(1, 103\)"):
        WindowSampler(TOKENS[None], 2, 1)


def test_consecutive_windows() -> None:
    batches = list(consecutive_windows(TOKENS, 5, 8))
    assert [len(b.inputs) for b in batches] == [8, 8, 4]
    assert torch.cat([b.inputs for b in batches]).flatten().tolist() == list(range(100))
    assert all(isinstance(b, Batch) and b.reset is None for b in batches)
    limited = list(consecutive_windows(TOKENS, 5, 8, limit=9))
    assert [len(b.inputs) for b in limited] == [8, 1]
    with pytest.raises(WindowError, match="limit=21 windows of seq_len=5; the text has 20"):
        consecutive_windows(TOKENS, 5, 8, limit=21)


ORDER_7_3 = [5, 0, 6, 9, 8, 7, 4, 2, 3, 1]
