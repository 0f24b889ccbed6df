"""Recording what comes out of a model's taps.

Legend: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palimpsest.analysis.catalogue import INPUT_IDS, LOGITS, check_model, places, resolve, taps
from palimpsest.analysis.reducers import Reducer
from palimpsest.analysis.select import Call, Chosen, Selection, Where
from palimpsest.analysis.storage import Folder, Kept, Reduced, Sink
from palimpsest.analysis.tape import PLACES, Tape
from palimpsest.errors import InputError
from palimpsest.models.language_model import LanguageModel, ModelOutput
from palimpsest.taps import Tap, hears, listen

__all__ = ["record"]


@contextmanager
def record(
    model: LanguageModel,
    taps: Sequence[str] | None = None,
    *,
    every: int = 1,
    where: Where = None,
    reduce: Mapping[str, Reducer] | None = None,
    dtype: torch.dtype | None = None,
    to: str | Path | None = None,
) -> Iterator[Tape]:
    """Record a model's taps while the block runs.

    In training, evaluation and generation alike, and however the text is cut into calls: positions
    are counted over all calls in the block. A call that fails leaves nothing on the tape. Other
    models, and other threads, are not recorded. What is recorded is a detached copy.

    Args:
        model: the model.
        taps: names or patterns (``layers.*.decay.*``) of ``palimpsest.analysis.taps(model)``; None
            records the cheap ones, or with ``reduce`` only what is reduced.
        every: record the positions that this number divides.
        where: :class:`~palimpsest.analysis.At` rows and positions; or a boolean mask (B, positions
            over all calls), or a function of a :class:`~palimpsest.analysis.Call` that returns one
            for the call (B,T).
        reduce: tap or pattern → a reducer that takes its values, which are then not kept. Where a
            pattern fits several taps, each has a copy of the reducer.
        dtype: convert floating-point values to this.
        to: a folder to write to in chunks; read it with ``palimpsest.analysis.open_tape``.

    Yields:
        A :class:`Tape`, which can be read inside the block already.

    Raises:
        InputError: not a model, unknown taps, a mask that does not fit, a folder in use.
        StorageError: the folder cannot be written.

    Example::

        with palimpsest.analysis.record(model, ["state.*"]) as tape:
            model(ids)
        tape["state.predicted"]  # (B,T,D)
    """
    recorder = _Recorder(check_model(model), taps, Selection(every, where), reduce, dtype, to)
    handles = [
        model.register_forward_pre_hook(recorder.call_starts, with_kwargs=True),
        model.register_forward_hook(recorder.call_ends),
    ]
    try:
        with listen(recorder):
            yield recorder.tape
    finally:
        for handle in handles:
            handle.remove()
        recorder.close()


class _Recorder:
    """The listener behind a tape."""

    def __init__(
        self,
        model: LanguageModel,
        names: Sequence[str] | None,
        selection: Selection,
        reduce: Mapping[str, Reducer] | None,
        dtype: torch.dtype | None,
        to: str | Path | None,
    ) -> None:
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"dtype={dtype}: must be a floating-point type")
        known = taps(model)
        reducers: dict[str, Reducer] = {}
        for pattern, reducer in (reduce or {}).items():
            if not isinstance(reducer, Reducer):
                raise InputError(f"reduce[{pattern!r}]={reducer!r}: must be a reducer, as Mean()")
            fits = resolve(model, [pattern], "reduce")
            for name in fits:
                reducers[name] = reducer if len(fits) == 1 else deepcopy(reducer)
        if names is not None:
            wanted = resolve(model, names)
        else:
            wanted = [] if reduce else [name for name, tap in known.items() if tap.cheap]
        about = {name: known[name] for name in known if name in wanted or name in reducers}
        kept: dict[str, Tap] = {name: tap for name, tap in about.items() if name not in reducers}
        kept[PLACES] = Tap("(N,2)", "row and position of what is recorded", "int64")
        self._selection, self._dtype = selection, dtype
        self._folder = None if to is None else Folder(Path(to), kept, selection.masked)
        sources: Mapping[str, Any] = (
            {name: Kept() for name in kept} if self._folder is None else self._folder.sinks
        )
        self._sinks: dict[str, Sink] = dict(sources)
        for name, reducer in reducers.items():
            self._sinks[name] = Reduced(reducer, selection.masked)
        self.tape = Tape(about, sources, reducers, masked=selection.masked)
        self._model = model
        names_of = places(model)
        self._names = {  # (module, short name) → full name, for the wanted ones only
            (id(module), full.removeprefix(names_of[id(module)])): full
            for module in model.modules()
            for full in about
            if full.startswith(names_of[id(module)])
        }
        self._start = self._piece = 0
        self._call: Call | None = None
        self._chosen: Chosen | None = None
        self._pending: dict[str, list[Tensor]] = {}

    # -- calls of the model -------------------------------------------------------------------

    def call_starts(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not hears(self):
            return
        self._call, self._piece, self._pending = None, 0, {}
        ids = args[0] if args else kwargs.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return  # the model itself refuses such ids
        masks = (kwargs.get("attention_mask"), kwargs.get("reset_mask"))
        self._call = Call(ids, self._start, *masks)
        self._chosen = self._selection.choose(self._call)
        if INPUT_IDS in self.tape.taps:
            self._keep(INPUT_IDS, ids.long(), 0, None, fresh=ids.dtype != torch.long)

    def call_ends(self, module: nn.Module, args: tuple[Any, ...], output: ModelOutput) -> None:
        if not hears(self) or self._call is None or self._chosen is None:
            return
        self._piece = 0
        if LOGITS in self.tape.taps:
            # with gradients, as the caller will read the very same tensor
            self._keep(LOGITS, output.logits.detach(), 0, None)
        rows, length = self._call.input_ids.shape
        places = self._places(self._chosen, rows)
        axis = 0 if self._selection.masked else 1
        for name, pieces in self._pending.items():
            self._sinks[name].add(torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0], places)
        if len(places):
            flat = places if self._selection.masked else places[None]
            self._sinks[PLACES].add(flat, places)
        self._start += length
        self._call, self._pending = None, {}

    def _places(self, chosen: Chosen, batch: int) -> Tensor:
        """(N,2) row and position of what a call gives, as time runs."""
        if chosen.mask is not None:
            step_N, row_N = chosen.mask.t().nonzero().unbind(1)
        else:
            rows = torch.arange(batch) if chosen.rows is None else chosen.rows
            step_N = chosen.steps.repeat_interleave(len(rows))
            row_N = rows.repeat(len(chosen.steps))
        return torch.stack([row_N, self._start + step_N], 1)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    # -- what it hears (palimpsest.taps.Listener) ---------------------------------------------

    def wants(self, module: nn.Module, name: str) -> bool:
        return self._call is not None and (id(module), name) in self._names

    def steps(self, module: nn.Module, name: str, length: int, first: int) -> Tensor:
        assert self._chosen is not None
        here = self._chosen.steps - (self._piece + first)
        return here[(here >= 0) & (here < length)]

    def take(self, module: nn.Module, name: str, tensor: Tensor, first: int) -> Tensor:
        self._keep(self._names[id(module), name], tensor.detach(), first, None)
        return tensor

    def made(
        self, module: nn.Module, name: str, tensor: Tensor, first: int, steps: Tensor | None
    ) -> None:
        self._keep(self._names[id(module), name], tensor.detach(), first, steps, fresh=True)

    def moved(self, module: nn.Module, first: int) -> None:
        if module is self._model:
            self._piece = first

    def _keep(
        self, name: str, x: Tensor, first: int, steps: Tensor | None, fresh: bool = False
    ) -> None:
        """Choose from a tensor that starts at a step, or that holds some steps from there on."""
        chosen, origin = self._chosen, self._piece + first
        assert chosen is not None
        have = torch.arange(x.shape[1]) if steps is None else steps
        if chosen.mask is not None:
            mask = chosen.mask[:, origin + have].t().to(x.device)
            found, fresh = x.transpose(0, 1)[mask], True
        else:
            index = torch.isin(origin + have, chosen.steps).nonzero().flatten()
            found = x
            if len(index) < len(have):
                found, fresh = found.index_select(1, index.to(x.device)), True
            if chosen.rows is not None:
                found, fresh = found.index_select(0, chosen.rows.to(x.device)), True
        if found.numel() == 0:
            return
        dtype = self._dtype if self._dtype and found.is_floating_point() else found.dtype
        if dtype == found.dtype and not fresh:
            found = found.clone(memory_format=torch.contiguous_format)
        self._pending.setdefault(name, []).append(found.to(dtype).contiguous())
