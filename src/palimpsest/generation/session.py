"""A text in progress: prompts go in, text comes out, and it can be put away and taken up again.

A session holds one row's state, the pending id (chosen or fed, not read yet), the generator of its
random numbers, the ids it has seen, and text that waits to be given out. After
``session.save(path)`` and ``Session.load(path, …)`` the continuation is, bit for bit, the one
without the pause.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from palimpsest.arguments import (
    require_model,
    require_path,
    require_tokenizer,
    require_type,
    require_whole,
)
from palimpsest.errors import InputError, StateError
from palimpsest.evaluation.inference import Precision, check_precision
from palimpsest.evaluation.perplexity import check_tokenizer
from palimpsest.generation.checks import check_causal, check_room
from palimpsest.generation.generate import TokenStream, read, stream
from palimpsest.generation.sampling import SamplingConfig, row_generators
from palimpsest.generation.text_stream import TextStream, Waiting, check_stop
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State
from palimpsest.text import Tokenizer

__all__ = ["Session", "model_identity"]

Finish = Literal["length", "stop", "end"]


@dataclass(frozen=True)
class SessionRecord(State):
    """A session as a tree of tensors, so that it is saved as states are (one atomic file)."""

    kind: ClassVar[str] = "session"

    state: State
    random: Tensor
    seen: Tensor
    pending: int
    partial: str
    held: str
    at_start: int
    model: str
    tokenizer: str
    precision: str


class Session:
    """One text in progress.

    Args:
        model: any causal language model.
        tokenizer: the one it was trained with.
        seed: of the random numbers that choose tokens.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).
        bos: begin with BOS where the tokenizer has one.
        trained_with: the fingerprint of the tokenizer saved with the model, where one was.

    Attributes:
        finished: why the last ``generate`` ended: "length" (``max_new_tokens``, or the longest
            text that the model holds: then ``room`` is 0), "stop" (a stop string), "end" (the
            tokenizer's EOS), or None while it runs or before it.

    Raises:
        InputError: a tokenizer that is not the model's, or a model that is not causal.

    Example::

        session = Session(model, tokenizer, seed=1)
        session.feed("Once upon a time")
        for piece in session.generate(200, SamplingConfig(top_p=0.9), stop=["\\n\\n"]):
            print(piece, end="", flush=True)
        print(session.flush())
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        seed: int = 0,
        *,
        precision: Precision = "fp32",
        bos: bool = True,
        trained_with: str | None = None,
    ) -> None:
        require_model(model)
        require_tokenizer(tokenizer)
        require_whole(seed, "seed")
        check_causal(model)
        check_tokenizer(model, tokenizer, trained_with)
        check_precision(precision)
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        self.finished: Finish | None = None
        self._state = model.init_state(1)
        self._generator = row_generators(seed, 1)[0]
        vocab_size = model.config.vocab_size
        self._seen = torch.zeros(1, vocab_size, dtype=torch.bool, device=model.device)
        self._pending: int | None = None
        self._waiting = Waiting()
        self._turn = 0
        if bos and tokenizer.bos_id is not None:
            self._pending = tokenizer.bos_id
        never = {tokenizer.pad_id, tokenizer.bos_id, *range(tokenizer.vocab_size, vocab_size)}
        self._forbidden = sorted(i for i in never if i is not None and i != tokenizer.eos_id)

    @property
    def state(self) -> State:
        """The model's state, which has read everything but the last id."""
        return self._state

    @property
    def room(self) -> int | None:
        """How many more tokens can be written, or None if there is no bound."""
        room_B = self.model.room(self._state)
        return None if room_B is None else int(room_B[0])

    @property
    def window(self) -> int:
        """Tokens that attention reads, as when the session began; 0 if there is no limit."""
        if self.model.context_limit != "window":
            return self.model.window
        window: int = getattr(self._state, "window", self.model.window)
        return window

    def feed(self, text: str) -> str:
        """Read text as if it had been written so far.

        Each call is tokenised by itself, so a word should not be cut between two calls.

        Returns:
            Text of an earlier ``generate`` that was still waiting (see :meth:`flush`).

        Raises:
            InputError: text that is not valid Unicode, or longer than the model holds; the session
                is then as it was.
        """
        require_type(text, "text", str, "pass text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as failure:
            raise InputError(f"text to feed is not valid Unicode ({failure})") from None
        ids = self.tokenizer.encode(text)
        line = ids if self._pending is None else [self._pending, *ids]
        ids_1T = torch.tensor([line], dtype=torch.long, device=self.model.device)
        if ids:
            check_room(self.model, ids_1T, None, self._state, 1)
        waited = self.flush()
        self._turn += 1
        if not ids:
            return waited
        self._state = read(self.model, ids_1T[:, :-1], self._state, precision=self.precision)
        self._seen[0, line] = True
        self._pending = line[-1]
        self._waiting = Waiting(at_start=False)
        return waited

    def generate(
        self,
        max_new_tokens: int,
        sampling: SamplingConfig | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Go on writing.

        Args:
            max_new_tokens: how many at most; a model with a longest text ends there, with the
                reason "length", and the session can still be saved.
            sampling: how a token is chosen; None samples from the model's distribution as it is.
            stop: strings that end the text, also where they span several tokens; they are not
                given out.

        Returns:
            An iterator over pieces of text, each of whole characters. The end of the text waits
            where it may begin a stop string or is an unfinished character: the next ``generate``
            decides, or :meth:`flush` gives it out. The session may be saved between two pieces;
            the iterator ends where another ``feed`` or ``generate`` begins.

        Raises:
            InputError: nothing to continue from, no room for another token, or arguments that do
                not fit; at once.
        """
        check_stop(stop)
        if self._pending is None:
            raise InputError(
                f"there is nothing to continue: feed a prompt first (tokenizer "
                f"{self.tokenizer.name!r} has no BOS token to begin with)"
            )
        room = self.room
        if room == 0:
            raise InputError(
                f"the text is as long as {self.model.registry_name} holds, "
                f"{self.model.max_length} tokens: nothing can follow it; start another session"
            )
        tokens = stream(
            self.model,
            torch.tensor([[self._pending]], dtype=torch.long, device="cpu"),
            max_new_tokens=max_new_tokens if room is None else min(max_new_tokens, room),
            sampling=sampling,
            stop_ids=() if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,),
            forbidden_ids=self._forbidden,
            state=self._state,
            generators=[self._generator],
            seen=self._seen,
            precision=self.precision,
        )
        self.finished = None
        self._turn += 1
        return self._pieces(tokens, stop, self._turn)

    def _pieces(self, tokens: TokenStream, stop: Sequence[str], turn: int) -> Iterator[str]:
        text = TextStream(self.tokenizer, stop, self._waiting)
        while self._turn == turn:  # a later feed or generate ends this iterator
            ids_B = next(tokens, None)
            if ids_B is None:
                self.finished = "length"
                return
            token = int(ids_B[0])
            self._state, self._pending = tokens.state, token
            piece = text.push(token)
            # the record is complete before the text is handed over: a pause may follow
            self._waiting = text.waiting
            if text.stopped:
                self.finished = "stop"
            elif not tokens.running[0]:
                self.finished = "end"
            if piece:
                yield piece
            if self.finished:
                return

    def flush(self) -> str:
        """Text that waits, when nothing of it is to follow; an unfinished character is U+FFFD."""
        text = TextStream(self.tokenizer, (), self._waiting)
        rest = text.flush()
        self._waiting = text.waiting
        return rest

    def fork(self, seed: int) -> Session:
        """Another session at the same place, with random numbers of its own."""
        other = Session(
            self.model,
            self.tokenizer,
            seed,
            precision=self.precision,
            bos=False,
            trained_with=self.tokenizer.fingerprint(),
        )
        other._state, other._pending, other._waiting = self._state, self._pending, self._waiting
        other._seen = self._seen.clone()
        return other

    def save(self, path: str | Path) -> Path:
        """Write everything to one file; an older one is replaced only when this is complete."""
        require_path(path, "path")
        record = SessionRecord(
            state=self._state.detach().clone(),
            random=self._generator.get_state(),
            seen=self._seen,
            pending=-1 if self._pending is None else self._pending,
            partial=self._waiting.partial.hex(),
            held=self._waiting.held,
            at_start=int(self._waiting.at_start),
            model=model_identity(self.model),
            tokenizer=f"{self.tokenizer.name}, fingerprint {self.tokenizer.fingerprint()}",
            precision=self.precision,
        )
        return record.save(path, owner=self.model.registry_name)

    @staticmethod
    def load(path: str | Path, model: LanguageModel, tokenizer: Tokenizer) -> Session:
        """Take up what :meth:`save` put away.

        Raises:
            StateError: not a session, or one of another model or tokenizer (both are named).
        """
        require_model(model)
        require_tokenizer(tokenizer)
        record = State.load(path)
        if not isinstance(record, SessionRecord):
            raise StateError(f"{path}: holds a state of kind {record.kind!r}, not a session")
        for what, saved, given in (
            ("model", record.model, model_identity(model)),
            (
                "tokenizer",
                record.tokenizer,
                f"{tokenizer.name}, fingerprint {tokenizer.fingerprint()}",
            ),
        ):
            if saved != given:
                raise StateError(
                    f"{path}: the session belongs to the {what} [{saved}], not to the one given, "
                    f"[{given}]"
                )
        session = Session(
            model,
            tokenizer,
            precision=cast(Precision, record.precision),
            bos=False,
            trained_with=tokenizer.fingerprint(),
        )
        model.check_state(record.state, 1)
        session._state = record.state.to(device=model.device)
        session._seen = record.seen.to(model.device)
        session._pending = None if record.pending < 0 else record.pending
        try:
            session._generator.set_state(record.random)
            partial = bytes.fromhex(record.partial)
        except (RuntimeError, TypeError, ValueError) as failure:
            raise StateError(f"{path}: the session is damaged ({failure})") from failure
        session._waiting = Waiting(partial, record.held, bool(record.at_start))
        return session


def model_identity(model: LanguageModel) -> str:
    """What tells one model from another: its name, configuration and a digest of its weights.

    The digest is over each parameter's name, shape and the sum of its bit patterns as integers,
    which any retraining changes, and which takes one pass over the memory.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = parameter.detach().contiguous().view(words[parameter.element_size()])
        line = f"{name} {tuple(parameter.shape)} {parameter.dtype} {int(bits.sum())}\n"
        digest.update(line.encode())
    settings = ", ".join(f"{k}={v}" for k, v in model.config.to_dict().items())
    return f"{model.registry_name}({settings}), weights {digest.hexdigest()[:16]}"
