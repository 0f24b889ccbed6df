"""Which positions a tape holds, where it is kept, and what is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import palimpsest
from palimpsest import analysis, taps
from palimpsest.analysis import At, Call, Mean, TopK
from palimpsest.errors import InputError, StorageError
from palimpsest.models.language_model import LanguageModel
from tests.contract.harness import run_pieces

PIECES = [4, 1, 1, 3, 2]
PREDICTED = "state.predicted"


def whole(model: LanguageModel, ids: Tensor, name: str = PREDICTED) -> Tensor:
    with torch.no_grad(), analysis.record(model, [name]) as tape:
        model(ids)
    return tape[name]


def test_catalogue(model: LanguageModel) -> None:
    known = analysis.taps(model)
    assert {"state.predicted", "state.grounded", "gate.ground", "memory.norm"} <= known.keys()
    assert {"layers.0.query", "layers.0.gate.predict", "input_ids", "logits"} <= known.keys()
    assert known["memory.matrix"].shape == "(B,T,H,K,U)" and not known["memory.matrix"].cheap
    with analysis.record(model) as tape:
        pass
    assert tape.names == [name for name, tap in known.items() if tap.cheap]
    with analysis.record(model, ["state.*", "layers.*.gate.*"]) as tape:
        pass
    assert tape.names == ["state.predicted", "state.grounded", "layers.0.gate.predict"]


def test_unknown_taps_are_refused_with_the_list(model: LanguageModel) -> None:
    with (
        pytest.raises(InputError, match=r"did you mean 'state.predicted'.*memory.norm"),
        analysis.record(model, ["state.predictd"]),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"gpnm has no 'layers.0.decay.pair'"),
        analysis.record(model, reduce={"layers.0.decay.pair": Mean()}),
    ):
        pass
    with pytest.raises(InputError, match="model of type Linear: must be a palimpsest model"):
        analysis.taps(nn.Linear(2, 3))
    with pytest.raises(InputError, match="must be a palimpsest model"), analysis.record("gpnm-1m"):
        pass


@pytest.mark.parametrize("pieces", [[11], PIECES, [1] * 11], ids=str)
def test_every_and_rows(model: LanguageModel, ids: Tensor, pieces: list[int]) -> None:
    want = whole(model, ids)
    with torch.no_grad():
        with analysis.record(model, ["state.*"], every=3) as tape:
            run_pieces(model, ids, pieces)
        assert torch.allclose(tape[PREDICTED], want[:, ::3], atol=1e-13)
        assert tape.positions.tolist() == [0, 3, 6, 9]
        at = At(rows=[2, 0], positions=range(5, 9))
        with analysis.record(model, [PREDICTED, "memory.matrix"], where=at) as tape:
            run_pieces(model, ids, pieces)
        assert torch.allclose(tape[PREDICTED], want[[2, 0], 5:9], atol=1e-13)
        assert tape["memory.matrix"].shape == (2, 4, 3, 5, 7)
        assert tape.rows.tolist() == [0, 2]


@pytest.mark.parametrize("pieces", [[11], PIECES], ids=str)
def test_masks(model: LanguageModel, ids: Tensor, pieces: list[int]) -> None:
    """By position, then by row, however the text is cut; a function sees each call."""
    want = whole(model, ids)
    mask = ids % 3 == 0

    def where(call: Call) -> Tensor:
        assert call.start == seen[-1]
        seen.append(call.start + call.input_ids.shape[1])
        return call.input_ids % 3 == 0

    seen = [0]
    with torch.no_grad():
        for chosen in (mask, where):
            with analysis.record(model, [PREDICTED, "memory.matrix"], where=chosen) as tape:
                run_pieces(model, ids, pieces)
            position, row = mask.t().nonzero().unbind(1)
            assert torch.equal(tape.positions, position)
            assert torch.equal(tape.rows, row)
            assert torch.allclose(tape[PREDICTED], want[row, position], atol=1e-13)
            matrix = whole(model, ids, "memory.matrix")
            assert torch.allclose(tape["memory.matrix"], matrix[row, position], atol=1e-13)
    assert seen[-1] == 11


def test_selections_that_do_not_fit(model: LanguageModel, ids: Tensor) -> None:
    cases = [
        (torch.ones(4, 5, dtype=torch.bool), r"where of shape \(4, 5\).*11 positions"),
        (lambda call: torch.ones(3, 2, dtype=torch.bool), r"where returned.*\(4, 11\)"),
        (lambda call: [True], "where returned"),
        (At(rows=[4]), "row 4 of a batch of 4"),
    ]
    for where, message in cases:
        with pytest.raises(InputError, match=message), analysis.record(model, where=where):
            model(ids)
    for options, message in (
        ({"where": torch.ones(4, 11)}, "must be boolean"),
        ({"where": 3}, "where=3"),
        ({"every": 0}, "every=0"),
        ({"dtype": torch.int32}, "floating-point"),
        ({"reduce": {PREDICTED: "mean"}}, "must be a reducer"),
    ):
        with pytest.raises(InputError, match=message), analysis.record(model, **options):
            pass


def test_what_is_recorded_is_a_copy(model: LanguageModel, ids: Tensor) -> None:
    with analysis.record(model, ["*"], dtype=torch.float32) as tape:
        out = model(ids)
    want = tape["logits"].clone()
    out.logits.detach().zero_()
    assert torch.equal(tape["logits"], want)
    assert {tape[name].dtype for name in tape} == {torch.float32, torch.int64}
    assert all(not tape[name].requires_grad for name in tape)
    one = tape["layers.0.read"]
    one.zero_()
    assert tape["layers.0.read"].abs().max() > 0


def test_a_call_that_fails_leaves_nothing(model: LanguageModel, ids: Tensor) -> None:
    with analysis.record(model, ["input_ids", PREDICTED]) as tape:
        model(ids[:, :3])
        with pytest.raises(InputError, match="targets"):
            model(ids[:, 3:6], targets=ids[:, 3:5])
        with pytest.raises(InputError, match="input_ids"):
            model(ids[0])
        model(ids[:, 3:])
    assert torch.equal(tape["input_ids"], ids)
    assert tape[PREDICTED].shape[1] == 11


def test_only_this_model_this_thread_and_this_block(model: LanguageModel, ids: Tensor) -> None:
    other = palimpsest.build("gpnm-tiny")
    with analysis.record(model, [PREDICTED]) as outer:
        with analysis.record(model, [PREDICTED]) as inner:
            model(ids)
            other(ids)
            thread = threading.Thread(target=model, args=(ids,))
            thread.start()
            thread.join()
        model(ids)
    model(ids)
    assert inner[PREDICTED].shape[1] == 11 and outer[PREDICTED].shape[1] == 22
    assert not taps.listening()
    assert not model._forward_hooks and not model._forward_pre_hooks
    with pytest.raises(ZeroDivisionError), analysis.record(model):
        raise ZeroDivisionError
    assert not taps.listening()


def test_calls_of_other_sizes(model: LanguageModel, ids: Tensor) -> None:
    with analysis.record(model, [PREDICTED]) as tape:
        model(ids)
        model(ids[:2])
    with pytest.raises(InputError, match="batches of 2 and 4 rows"):
        tape[PREDICTED]
    assert [len(piece) for piece in tape.chunks(PREDICTED)] == [4, 2]
    with pytest.raises(InputError, match=r"'logits'.*not recorded"):
        tape["logits"]
    with analysis.record(model, [PREDICTED]) as tape:
        pass
    with pytest.raises(InputError, match="no position has been recorded"):
        tape[PREDICTED]


def test_reducing(model: LanguageModel, ids: Tensor) -> None:
    """Only what is reduced, unless more is named; the order does not depend on the calls."""
    want = whole(model, ids)
    found = []
    for pieces in ([11], PIECES):
        reduce = {PREDICTED: Mean(), "gate.*": TopK(3)}
        with torch.no_grad(), analysis.record(model, reduce=reduce) as tape:
            run_pieces(model, ids, pieces)
        assert tape.names == [PREDICTED, "gate.ground"]
        assert torch.allclose(tape.result(PREDICTED), want.mean((0, 1)), atol=1e-13)
        found.append(tape.result("gate.ground"))
    assert torch.equal(found[0][1], found[1][1])
    gate = whole(model, ids, "gate.ground")
    values, places = found[0]
    row, position = places[..., 0], places[..., 1]
    assert torch.allclose(gate[row, position, torch.arange(13)], values, atol=1e-13)
    with pytest.raises(InputError, match="reduced by Mean"):
        tape[PREDICTED]
    with pytest.raises(InputError, match=r"was not reduced; reduced taps: state.predicted"):
        tape.result("logits")
    both = {"state.*": Mean()}
    with analysis.record(model, ["memory.beta"], reduce=both) as tape:
        model(ids)
    assert tape["memory.beta"].shape == (4, 11, 3)
    assert not torch.equal(tape.result(PREDICTED), tape.result("state.grounded"))


@pytest.mark.parametrize("masked", [False, True])
def test_folder(
    model: LanguageModel, ids: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    monkeypatch.setattr("palimpsest.analysis.storage.CHUNK_BYTES", 2000)
    where = ids % 2 == 0 if masked else None
    kwargs = {"where": where, "dtype": torch.bfloat16}
    names = ["input_ids", PREDICTED, "memory.matrix"]
    with torch.no_grad():
        with analysis.record(model, names, **kwargs) as want:
            run_pieces(model, ids, PIECES)
        with analysis.record(model, names, **kwargs, to=tmp_path / "tape") as tape:
            run_pieces(model, ids, PIECES)
            assert not json.loads((tmp_path / "tape/index.json").read_text())["complete"]
            assert torch.equal(tape[PREDICTED], want[PREDICTED])  # while it is being written
    read = analysis.open_tape(tmp_path / "tape")
    assert read.complete and read.names == want.names and read.taps[PREDICTED].doc
    for name in names:
        assert torch.equal(read[name], want[name]) and read[name].dtype == want[name].dtype
    assert torch.equal(read.positions, want.positions) and torch.equal(read.rows, want.rows)
    assert len(list(read.chunks("memory.matrix"))) > 1
    files = {path.name for path in (tmp_path / "tape").iterdir()}
    assert all(name.endswith((".npy", "index.json")) for name in files)
    with (
        pytest.raises(InputError, match="holds a tape already"),
        analysis.record(model, to=tmp_path / "tape"),
    ):
        pass


def test_folders_that_are_no_tapes(model: LanguageModel, ids: Tensor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file"):
        analysis.open_tape(tmp_path / "nothing")
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tape"):
        analysis.open_tape(tmp_path)
    with analysis.record(model, [PREDICTED], to=tmp_path / "tape"):
        model(ids)
    index = tmp_path / "tape/index.json"
    changed = json.loads(index.read_text()) | {"version": 9}
    del changed["sha256"]
    index.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="version 9"):
        analysis.open_tape(tmp_path / "tape")
    index.write_text(index.read_text().replace('"version": 9', '"version": 1'))
    chunk = next((tmp_path / "tape").glob("state*.npy"))
    chunk.write_bytes(chunk.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot be read"):
        analysis.open_tape(tmp_path / "tape")[PREDICTED]
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="cannot be written"),
        analysis.record(model, to=tmp_path / "file"),
    ):
        pass
