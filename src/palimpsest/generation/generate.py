"""Continuing sequences of ids, one token at a time, with a state instead of a history.

The invariant that makes pauses and batches simple: **the state has read everything but the last id
of each row**, and that id is *pending*. So a prompt of T ids is read up to T - 1 in one pass, each
step reads the pending id and chooses the next one, and what is left at the end (state, pending ids)
is exactly what a continuation starts from.

Legend: B batch, T time, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.arguments import (
    require_model,
    require_tensor,
    require_type,
    require_whole,
)
from palimpsest.errors import InputError
from palimpsest.evaluation.inference import Precision, check_precision, inference
from palimpsest.generation.checks import check_causal, check_prompt, check_room
from palimpsest.generation.sampling import SamplingConfig, draw_uniforms, row_generators, sample
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import State

__all__ = [
    "STOPPED",
    "Generated",
    "TokenStream",
    "generate",
    "read",
    "stream",
]

STOPPED = -1  # stands where a row has ended; no model takes it for an id
PREFILL_TOKENS = 2048  # of one forward while a prompt is read, so that long prompts need no more


@dataclass(frozen=True)
class Generated:
    """New ids and what a continuation starts from.

    Attributes:
        tokens: (B,N) new ids; -1 after the end of a row that met a stop id (which is kept).
        state: has read everything but each row's last id.
        pending: (B,1) each row's last id: ``generate(model, g.pending, state=g.state, …)`` goes on.
        stopped: for each row, whether it met a stop id.
        seen: (B,V) bool, the ids that count as repeated; a continuation with a repetition penalty
            takes them with ``seen=g.seen``.
    """

    tokens: Tensor
    state: State
    pending: Tensor
    stopped: tuple[bool, ...]
    seen: Tensor

    def rows(self) -> list[list[int]]:
        """The new ids of each row, as lists of their own length."""
        return [[i for i in row if i != STOPPED] for row in self.tokens.tolist()]


def read(
    model: LanguageModel,
    input_ids: Tensor,
    state: State | None = None,
    *,
    attention_mask: Tensor | None = None,
    precision: Precision = "fp32",
) -> State:
    """The state after some ids, read in blocks of 2048 tokens.

    Args:
        model: any causal language model.
        input_ids: (B,T) ids; T may be 0.
        state: where to start; None starts from nothing.
        attention_mask: (B,T), 0 where a position is padding.
        precision: "fp32" or "bf16".
    """
    state = model.init_state(input_ids.shape[0]) if state is None else state
    for start in range(0, input_ids.shape[1], PREFILL_TOKENS):
        block = slice(start, start + PREFILL_TOKENS)
        mask = None if attention_mask is None else attention_mask[:, block]
        with inference(model, precision):
            state = model(input_ids[:, block], state, attention_mask=mask).state
    return state


class TokenStream(Iterator[Tensor]):
    """New ids as they come; see :func:`stream`.

    Attributes:
        state: has read everything but the pending ids.
        pending: (B,1) the last id of each row.
        running: for each row, whether it has met no stop id yet.
        seen: (B,V) bool, the ids each row has seen; updated as they come.
        generators: one per row, each at the number that comes next.
    """

    def __init__(
        self,
        model: LanguageModel,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        sampling: SamplingConfig,
        stop_ids: Sequence[int],
        forbidden_ids: Sequence[int],
        state: State | None,
        generators: Sequence[torch.Generator],
        seen: Tensor | None,
        precision: Precision,
    ) -> None:
        input_ids = input_ids.to(model.device)
        self._check(model, input_ids, attention_mask, max_new_tokens, state, generators)
        check_precision(precision)
        vocab_size = model.config.vocab_size
        if sampling.top_k is not None and sampling.top_k > vocab_size:
            raise InputError(f"top_k={sampling.top_k}: the model has {vocab_size} ids")
        for name, ids in (("stop_ids", stop_ids), ("forbidden_ids", forbidden_ids)):
            if any(not 0 <= i < vocab_size for i in ids):
                raise InputError(f"{name}={list(ids)!r}: ids are 0 … {vocab_size - 1}")
        self._model, self._sampling, self._precision = model, sampling, precision
        self.generators = list(generators)
        self._left = max_new_tokens
        self._stop = torch.tensor(sorted(set(stop_ids)), dtype=torch.long, device=model.device)
        self._forbidden: Tensor | None = None
        if forbidden_ids:
            self._forbidden = torch.zeros(vocab_size, dtype=torch.bool, device=model.device)
            self._forbidden[list(forbidden_ids)] = True
        batch = input_ids.shape[0]
        if attention_mask is not None:
            attention_mask = attention_mask.to(model.device).bool()
        self.seen = seen if seen is not None else _seen(input_ids, attention_mask, vocab_size)
        self.running = [True] * batch
        self.pending = input_ids[:, -1:].long()
        self.state = read(
            model,
            input_ids[:, :-1],
            state,
            attention_mask=None if attention_mask is None else attention_mask[:, :-1],
            precision=precision,
        )

    @staticmethod
    def _check(
        model: LanguageModel,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        state: State | None,
        generators: Sequence[torch.Generator],
    ) -> None:
        check_causal(model)
        check_prompt(input_ids, model.config.vocab_size)
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens={max_new_tokens}: must be at least 1")
        if len(generators) != input_ids.shape[0]:
            raise InputError(
                f"{len(generators)} generators for {input_ids.shape[0]} rows: give one per row"
            )
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape:
                raise InputError(
                    f"attention_mask of shape {tuple(attention_mask.shape)}: must have the shape "
                    f"of input_ids, {tuple(input_ids.shape)}"
                )
            if not bool(attention_mask[:, -1].bool().all()):
                raise InputError(
                    "attention_mask is 0 in the last column: pad prompts on the left, so that "
                    "each row ends with its last token"
                )
        if state is not None:
            model.check_state(state, input_ids.shape[0])
        check_room(model, input_ids, attention_mask, state, max_new_tokens)

    def __iter__(self) -> TokenStream:
        return self

    @torch.no_grad()
    def __next__(self) -> Tensor:
        """(B,) the next ids, -1 for rows that had stopped before."""
        if self._left == 0 or not any(self.running):
            raise StopIteration
        running_B = torch.tensor(self.running, device=self.pending.device)
        mask_B1 = None if all(self.running) else running_B[:, None]
        with inference(self._model, self._precision):
            out = self._model(self.pending, self.state, attention_mask=mask_B1)
            logits_BV = out.logits[:, -1]
        uniforms_B = None
        if self._sampling.temperature > 0:
            uniforms_B = draw_uniforms(self.generators, self.running)
        chosen_B = sample(
            logits_BV,
            self._sampling,
            uniforms_B,
            seen_BV=self.seen,
            forbidden_V=self._forbidden,
        )
        self.state = out.state
        self.pending = torch.where(running_B, chosen_B, self.pending[:, 0])[:, None]
        # for a stopped row the pending id was seen already, so this changes nothing there
        self.seen.scatter_(1, self.pending, True)
        if len(self._stop):
            met = torch.isin(chosen_B, self._stop).tolist()
            self.running = [r and not m for r, m in zip(self.running, met, strict=True)]
        self._left -= 1
        return chosen_B.masked_fill(~running_B, STOPPED)


def _seen(input_ids: Tensor, mask_BT: Tensor | None, vocab_size: int) -> Tensor:
    """(B,V) which ids each row holds, padding aside."""
    # one more column takes what is padding
    ids_BT = input_ids.long()
    if mask_BT is not None:
        ids_BT = ids_BT.masked_fill(~mask_BT, vocab_size)
    seen_BV = torch.zeros(
        ids_BT.shape[0], vocab_size + 1, dtype=torch.bool, device=input_ids.device
    )
    return seen_BV.scatter_(1, ids_BT, True)[:, :vocab_size].contiguous()


def stream(
    model: LanguageModel,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    stop_ids: Sequence[int] = (),
    forbidden_ids: Sequence[int] = (),
    state: State | None = None,
    seed: int = 0,
    generators: Sequence[torch.Generator] | None = None,
    seen: Tensor | None = None,
    precision: Precision = "fp32",
) -> TokenStream:
    """Read a prompt, then iterate over new ids, (B,) at a time.

    Memory does not grow with the number of tokens (beyond what the model's own state does).

    Args:
        model: any causal language model; it comes back in the mode it was in.
        input_ids: (B,T) prompts, T ≥ 1.
        attention_mask: (B,T), 0 where a position is padding; pad on the left. A row then gives
            what it gives alone.
        max_new_tokens: how many at most.
        sampling: how a token is chosen; None samples from the model's distribution as it is.
        stop_ids: a row ends with the first of these that it chooses.
        forbidden_ids: never chosen (padding, for example).
        state: continue from here: it must have read what comes before ``input_ids``.
        seed: row i draws from a generator seeded with ``seed + i``.
        generators: one per row, instead of a seed.
        seen: (B,V) bool, updated in place: what counts as repeated. None starts from the prompt.
        precision: "fp32" (the model's own dtype) or "bf16" (autocast).

    Raises:
        InputError: a model that is not causal, a text (what the state has read included) that
            becomes longer than the model holds, padding on the right, or other arguments that do
            not fit; before anything is read.
        StateError: a state of another model or batch size.
    """
    require_model(model)
    require_tensor(input_ids, "input_ids")
    if attention_mask is not None:
        require_tensor(attention_mask, "attention_mask")
    require_whole(max_new_tokens, "max_new_tokens")
    require_whole(seed, "seed")
    if sampling is not None:
        wanted = "pass a palimpsest.SamplingConfig, such as SamplingConfig(temperature=0.8)"
        require_type(sampling, "sampling", SamplingConfig, wanted)
    for name, ids in (("stop_ids", stop_ids), ("forbidden_ids", forbidden_ids)):
        require_type(ids, name, (list, tuple, set, range), "pass a list of token ids")
        for i in ids:
            require_whole(i, f"an id of {name}")
    if generators is None:
        generators = row_generators(seed, input_ids.shape[0])
    return TokenStream(
        model,
        input_ids,
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        sampling=sampling or SamplingConfig(),
        stop_ids=stop_ids,
        forbidden_ids=forbidden_ids,
        state=state,
        generators=generators,
        seen=seen,
        precision=precision,
    )


def generate(
    model: LanguageModel,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    stop_ids: Sequence[int] = (),
    forbidden_ids: Sequence[int] = (),
    state: State | None = None,
    seed: int = 0,
    generators: Sequence[torch.Generator] | None = None,
    seen: Tensor | None = None,
    precision: Precision = "fp32",
) -> Generated:
    """Read a prompt and collect what comes after it; arguments and errors as :func:`stream`.

    Example::

        out = generate(model, prompt_ids, max_new_tokens=100, sampling=SamplingConfig(top_p=0.9))
        more = generate(model, out.pending, state=out.state, max_new_tokens=100)
    """
    steps = stream(
        model,
        input_ids,
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_ids=stop_ids,
        forbidden_ids=forbidden_ids,
        state=state,
        seed=seed,
        generators=generators,
        seen=seen,
        precision=precision,
    )
    shape = input_ids.shape[0], max_new_tokens
    tokens_BN = torch.full(shape, STOPPED, dtype=torch.long, device="cpu")
    count = 0
    for ids_B in steps:
        tokens_BN[:, count] = ids_B.cpu()
        count += 1
    stopped = tuple(not running for running in steps.running)
    return Generated(tokens_BN[:, :count], steps.state, steps.pending, stopped, steps.seen)
