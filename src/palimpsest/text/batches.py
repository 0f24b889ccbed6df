"""Windows of a token array, one batch per training step, each a pure function of the step.

Nothing has to be saved to resume: ``batch_at(step)`` gives the same batch in any process. Shapes:
N tokens, B rows, T tokens of a window; ``inputs`` (B, T) and ``targets`` (B, T) are int64, and a
target is the token after its input. A window therefore reads T + 1 tokens.

Three orders:

- :class:`WindowSampler`: every window of a fixed grid once per epoch, in a permutation.
- :class:`RandomWindowSampler`: uniformly random starts (the byte protocol of arXiv 2606.05175).
- :class:`StreamSampler`: every row reads on where it stopped, for state carried between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.errors import counted
from palimpsest.text.corpus import Corpus
from palimpsest.text.errors import WindowError

__all__ = [
    "Batch",
    "RandomWindowSampler",
    "Sampler",
    "StreamBatch",
    "StreamSampler",
    "WindowSampler",
    "consecutive_windows",
    "make_sampler",
]

MODES = ("epoch", "random", "stream")
SEED_LIMIT = 1 << 63


class Batch(NamedTuple):
    """Independent windows: inputs (B, T) and targets (B, T), int64."""

    inputs: Tensor
    targets: Tensor

    @property
    def reset(self) -> Tensor | None:
        """None: every row starts from the zero state, and nothing restarts inside it."""
        return None


class StreamBatch(NamedTuple):
    """Windows that go on: inputs (B, T), targets (B, T), int64, and reset (B, T), bool.

    Where ``reset`` is True, the state is the zero state before that input is read.
    """

    inputs: Tensor
    targets: Tensor
    reset: Tensor


class Sampler(Protocol):
    """What a training loop needs of a sampler."""

    @property
    def seq_len(self) -> int:
        """T, the tokens of a window."""

    @property
    def batch_size(self) -> int:
        """B, the rows of a batch."""

    def batch_at(self, step: int) -> Batch | StreamBatch:
        """The batch of a step, counted from 0; the same in any process and any order."""


class _Windows:
    """Checks and cuts; the samplers differ in the starts they choose."""

    def __init__(
        self, tokens: Corpus | NDArray[Any], seq_len: int, batch_size: int, seed: int, least: int
    ) -> None:
        for name, value in (("seq_len", seq_len), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if not 0 <= seed < SEED_LIMIT:
            raise ValueError(f"seed={seed}: must be from 0 to 2^63 - 1")
        array = tokens.tokens if isinstance(tokens, Corpus) else np.asarray(tokens)
        if array.ndim != 1:
            raise ValueError(f"tokens has shape {array.shape}: must be one-dimensional")
        if len(array) < seq_len + least:
            raise WindowError(
                None,
                f"the text has {counted(len(array), 'token')}, and one window of "
                f"seq_len={seq_len} takes {seq_len + least}",
                "pass more text or a smaller seq_len",
            )
        self.tokens = array
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed

    def cut(self, starts: NDArray[np.int64]) -> Batch:
        """The windows that start at (B,) positions."""
        rows = [self.tokens[start : start + self.seq_len + 1] for start in starts.tolist()]
        block = torch.from_numpy(np.stack(rows).astype(np.int64))
        return Batch(block[:, :-1].contiguous(), block[:, 1:].contiguous())


class WindowSampler(_Windows):
    """Each window of the grid 0, T, 2T … once per epoch, in an order of (seed, epoch).

    The epochs' orders follow one another without a gap: batch s holds the places s·B … s·B+B-1 of
    that sequence, so no window is left out where B does not divide the number of windows, and B
    may be larger than it. The last (N - 1) mod T tokens are in no window (:attr:`unused_tokens`).

    Args:
        tokens: a corpus or a (N,) array of ids.
        seq_len: T, in tokens.
        batch_size: B, in rows.
        seed: 0 … 2^63 - 1.

    Raises:
        WindowError: fewer than T + 1 tokens.
        ValueError: another argument is out of range.
    """

    def __init__(
        self, tokens: Corpus | NDArray[Any], seq_len: int, batch_size: int, seed: int = 0
    ) -> None:
        super().__init__(tokens, seq_len, batch_size, seed, least=1)
        self.windows_per_epoch = (len(self.tokens) - 1) // seq_len
        self.unused_tokens = (len(self.tokens) - 1) % seq_len
        self._orders: dict[int, NDArray[np.int64]] = {}

    @property
    def steps_per_epoch(self) -> float:
        """How many steps read every window once; a fraction where B does not divide them."""
        return self.windows_per_epoch / self.batch_size

    def epoch_at(self, step: int) -> int:
        """The epoch that the first row of a step belongs to."""
        return _step(step) * self.batch_size // self.windows_per_epoch

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The windows in the order of an epoch: a permutation of 0 … windows_per_epoch - 1.

        It sorts the raw 64-bit output of Philox keyed with (seed, epoch): numpy keeps these
        streams the same in all its versions, which it does not promise of ``permutation``.
        """
        found = self._orders.get(epoch)
        if found is None:
            raw = np.random.Philox(key=(self.seed << 64) | epoch).random_raw(self.windows_per_epoch)
            found = np.argsort(raw, kind="stable").astype(np.int64)
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = found
        return found

    def batch_at(self, step: int) -> Batch:
        """The batch of a step (from 0), a pure function of it: inputs (B, T), targets (B, T)."""
        count = self.windows_per_epoch
        places = _step(step) * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        windows = [self.order(int(place // count))[place % count] for place in places]
        return self.cut(np.array(windows, dtype=np.int64) * self.seq_len)


class RandomWindowSampler(_Windows):
    """Uniformly random windows: per step ``torch.randint(0, N - T - 1, (B,))``.

    One CPU generator, seeded once with ``seed``, is drawn from once per step. An earlier step
    starts it again and a later one draws past the steps between, so ``batch_at`` is a pure function
    of the step; going on step by step costs nothing extra, and :meth:`state_dict` saves the
    generator for a resume without drawing the past again.

    Args:
        tokens: a corpus or a (N,) array of ids.
        seq_len: T, in tokens.
        batch_size: B, in rows.
        seed: 0 … 2^63 - 1.

    Raises:
        WindowError: fewer than T + 2 tokens.
        ValueError: another argument is out of range.

    Source: Xiao, arXiv 2606.05175 (the WikiText-2 byte protocol).
    """

    def __init__(
        self, tokens: Corpus | NDArray[Any], seq_len: int, batch_size: int, seed: int = 0
    ) -> None:
        super().__init__(tokens, seq_len, batch_size, seed, least=2)
        self._generator = torch.Generator().manual_seed(seed)
        self._next = 0

    def _draw(self) -> Tensor:
        self._next += 1
        high = len(self.tokens) - self.seq_len - 1
        return torch.randint(0, high, (self.batch_size,), generator=self._generator)

    def batch_at(self, step: int) -> Batch:
        """The batch of a step (from 0), a pure function of it: inputs (B, T), targets (B, T)."""
        if _step(step) < self._next:
            self._generator.manual_seed(self.seed)
            self._next = 0
        while self._next < step:
            self._draw()
        return self.cut(self._draw().numpy())

    def state_dict(self) -> dict[str, Any]:
        """The next step and the generator's state before it."""
        return {"next_step": self._next, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._generator.set_state(state["generator"])
        self._next = state["next_step"]


class StreamSampler(_Windows):
    """Every row reads the text on from where it stopped, for state carried between steps.

    Of the n = (N - 1) // T windows, row b starts at window ⌊b·n / B⌋ (its lane), and step s gives
    it the window s further on. At the end of the text a row goes on at its beginning. So after
    n / B steps the rows together have read the text once, and no lane has a rest that nobody reads;
    only the last (N - 1) mod T tokens are in no window (:attr:`unused_tokens`).

    ``reset`` is True at the first token of step 0, at the first token of the text (a row that
    wrapped around), and at every document start.

    Args:
        tokens: a corpus or a (N,) array of ids.
        seq_len: T, in tokens.
        batch_size: B, in rows.
        document_starts: (D,) positions; None takes the corpus's own, and none for an array.

    Raises:
        WindowError: fewer than T + 1 tokens.
        ValueError: another argument is out of range.
    """

    def __init__(
        self,
        tokens: Corpus | NDArray[Any],
        seq_len: int,
        batch_size: int,
        *,
        document_starts: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(tokens, seq_len, batch_size, 0, least=1)
        if document_starts is None:
            document_starts = tokens.document_starts if isinstance(tokens, Corpus) else np.array([])
        self.document_starts = np.sort(np.asarray(document_starts, dtype=np.int64))
        self.num_windows = (len(self.tokens) - 1) // seq_len
        self.unused_tokens = (len(self.tokens) - 1) % seq_len

    @property
    def steps_per_epoch(self) -> float:
        """How many steps read the text once; a fraction where B does not divide the windows."""
        return self.num_windows / self.batch_size

    def batch_at(self, step: int) -> StreamBatch:
        """The batch of a step (from 0), a pure function of it: inputs, targets, reset (B, T)."""
        lanes = np.arange(self.batch_size, dtype=np.int64) * self.num_windows // self.batch_size
        starts = (lanes + _step(step)) % self.num_windows * self.seq_len
        reset = torch.zeros(self.batch_size, self.seq_len, dtype=torch.bool)
        for row, start in enumerate(starts.tolist()):
            low, high = np.searchsorted(self.document_starts, [start, start + self.seq_len])
            reset[row, torch.from_numpy(self.document_starts[low:high] - start)] = True
            if step == 0 or start == 0:
                reset[row, 0] = True
        return StreamBatch(*self.cut(starts), reset)


def make_sampler(
    corpus: Corpus, *, mode: str, seq_len: int, batch_size: int, seed: int = 0
) -> WindowSampler | RandomWindowSampler | StreamSampler:
    """The sampler of a recipe.

    Args:
        corpus: what to read.
        mode: ``"epoch"``, ``"random"`` or ``"stream"`` (which has no chance in it, so no use for
            the seed).
        seq_len: T, in tokens.
        batch_size: B, in rows.
        seed: 0 … 2^63 - 1.

    Raises:
        WindowError: the text is shorter than one window.
        ValueError: another argument is out of range.
    """
    if mode == "epoch":
        return WindowSampler(corpus, seq_len, batch_size, seed)
    if mode == "random":
        return RandomWindowSampler(corpus, seq_len, batch_size, seed)
    if mode == "stream":
        return StreamSampler(corpus, seq_len, batch_size)
    raise ValueError(f"mode={mode!r}: choose one of {', '.join(MODES)}")


def consecutive_windows(
    tokens: Corpus | NDArray[Any], seq_len: int, batch_size: int, *, limit: int | None = None
) -> Iterator[Batch]:
    """The windows 0, T, 2T … in order, for validation; the last batch may have fewer rows.

    Args:
        tokens: a corpus or a (N,) array of ids.
        seq_len: T, in tokens.
        batch_size: B, the most rows of a batch.
        limit: how many windows at most; None for all (N - 1) // T.

    Raises:
        WindowError: fewer than T + 1 tokens, or fewer windows than ``limit``.
        ValueError: another argument is out of range.
    """
    windows = _Windows(tokens, seq_len, batch_size, 0, least=1)
    count = (len(windows.tokens) - 1) // seq_len
    if limit is not None and not 1 <= limit <= count:
        raise WindowError(
            None,
            f"limit={limit} windows of seq_len={seq_len}; the text has {count}",
            f"choose 1 … {count}, or None for all",
        )
    starts = np.arange(count if limit is None else limit, dtype=np.int64) * seq_len
    return (windows.cut(starts[i : i + batch_size]) for i in range(0, len(starts), batch_size))


def _step(step: int) -> int:
    if step < 0:
        raise ValueError(f"step={step}: steps count from 0")
    return step
