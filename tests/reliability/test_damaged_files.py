"""Damaged files: each is refused in one line that names it, or changes nothing in the result.

For every kind of file there is a whole copy, another one of the same shape (to swap with) and a
function that reads it and returns everything a user could see of it, as bytes. The damages are
drawn with a fixed seed.
"""

from __future__ import annotations

import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest import PalimpsestError, Session, analysis, force_backend
from palimpsest.evaluation import EvaluationResult
from palimpsest.evaluation.record import load_result
from palimpsest.state import State
from palimpsest.text import (
    ByteTokenizer,
    CorpusError,
    Document,
    ShardError,
    TokenizerError,
    load_tokenizer,
    open_shards,
    write_shards,
)
from palimpsest.training import Recipe, read_metrics, resume, train
from palimpsest.training.recipe_file import recipe_from_dict

OURS = (PalimpsestError, ShardError, CorpusError, TokenizerError)  # printed as one line
SIZES = {"d_state": 12, "d_emb": 6, "d_ffn": 10, "n_heads": 2, "d_key": 3, "d_val": 5}
TEXT = "a state is read and written again as one page\n" * 8


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        folder: the folder that holds them.
        other: a folder of the same shape, with other content.
        files: their paths inside it.
        read: returns all that can be seen, for a folder.
    """

    folder: Path
    other: Path
    files: tuple[str, ...]
    read: Callable[[Path], bytes]


def recipe(seed: int, **train_fields: Any) -> Recipe:
    return recipe_from_dict(
        {
            "model": {"name": "gpnm", **SIZES},
            "data": {"train": [], "seq_len": 5, "order": "stream", "validation_fraction": 0.2},
            "optimizer": {"warmup_steps": 1},
            "train": {
                "steps": 4,
                "batch_size": 2,
                "seed": seed,
                "eval_every": 2,
                "save_every": 2,
                "log_every": 1,
                "device": "cpu",
                **train_fields,
            },
        }
    )


def frozen(value: Any) -> bytes:
    """Bytes that differ where a value does; tensors by their content."""
    if isinstance(value, torch.Tensor):
        return pickle.dumps((tuple(value.shape), str(value.dtype), value.tolist()))
    return pickle.dumps(value)


def see_model(folder: Path) -> bytes:
    model = palimpsest.load(folder)
    weights = {name: frozen(p) for name, p in model.named_parameters()}
    return frozen([model.registry_name, model.config.to_dict(), weights])


def see_state(folder: Path) -> bytes:
    state = State.load(folder / "a.state")
    return frozen([state.kind, [(name, frozen(t)) for name, t in state.named_tensors()]])


def see_result(folder: Path) -> bytes:
    return frozen(load_result(folder / "result.json").to_dict())


def see_tape(folder: Path) -> bytes:
    tape = analysis.open_tape(folder)
    return frozen([(name, frozen(tape[name])) for name in tape.names])


def see_shards(folder: Path) -> bytes:
    corpus = open_shards(folder, tokenizer=load_tokenizer(folder))
    starts, lengths = corpus.document_starts.tolist(), corpus.document_bytes.tolist()
    about = (corpus.text_sha256, corpus.bos, corpus.eos, corpus.inexact_documents)
    return frozen([corpus.tokens.tolist(), starts, lengths, about])


def see_tokenizer(folder: Path) -> bytes:
    tokenizer = load_tokenizer(folder)
    return frozen([tokenizer.name, tokenizer.fingerprint(), tokenizer.encode("abc")])


def see_run(folder: Path) -> bytes:
    """Resume a copy of a run to its end: its weights, its rows, its model as the tools find it."""
    copy = folder.with_name("resumed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    times = ("elapsed", "tokens_per_s")
    result = resume(copy, progress=False)
    rows = [{k: v for k, v in row.items() if k not in times} for row in read_metrics(copy)]
    weights = {name: frozen(p) for name, p in result.model.named_parameters()}
    return frozen([rows, weights, result.model.config.to_dict()])


def make_run(folder: Path, text: Path, seed: int, stop: int) -> Path:
    changed = recipe(seed).replace("data", train=(str(text),))
    return train(changed, folder, progress=False, stop_after=stop).folder


def files_below(folder: Path) -> tuple[str, ...]:
    """All files but empty ones (a run's lock)."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    return tuple(sorted(p.relative_to(folder).as_posix() for p in files))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """Two of everything."""
    root = tmp_path_factory.mktemp("whole")
    found: dict[str, Kind] = {}
    tokenizer = ByteTokenizer()
    (root / "text.txt").write_text(TEXT)
    made: dict[str, list[Path]] = {}
    with pytest.MonkeyPatch.context() as patch, force_backend("reference"):
        patch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
        for seed in (0, 1):
            place = root / str(seed)
            torch.manual_seed(seed)
            model = palimpsest.build("gpnm", vocab_size=259, **SIZES).eval()
            model.save(place / "model")
            tokenizer.save(place / "tokenizer")
            ids = torch.tensor([tokenizer.encode(TEXT[seed : 20 + seed])])
            (place / "state").mkdir()
            model(ids).state.save(place / "state" / "a.state", owner="gpnm")
            session = Session(model, tokenizer, seed)
            session.feed(TEXT[: 9 + seed])
            (place / "session").mkdir()
            session.save(place / "session" / "a.state")
            documents = [Document(TEXT[seed:], "a"), Document("more" * (2 + seed), "b")]
            write_shards(place / "shards", documents, tokenizer)
            with analysis.record(model, ["state.predicted"], to=place / "tape"):
                model(ids)
            example_result(seed).save(place / "result" / "result.json")
            make_run(place / "run", root / "text.txt", seed, 3)
            for name in ("model", "tokenizer", "state", "session", "shards", "tape", "result"):
                made.setdefault(name, []).append(place / name)
            made.setdefault("run", []).append(place / "run")
    readers = {
        "model": see_model,
        "tokenizer": see_tokenizer,
        "state": see_state,
        "session": see_state,
        "shards": see_shards,
        "tape": see_tape,
        "result": see_result,
        "run": see_run,
    }
    for name, (whole, other) in made.items():
        found[name] = Kind(whole, other, files_below(whole), readers[name])
    return found


def example_result(seed: int) -> EvaluationResult:
    return EvaluationResult(
        model="gpnm",
        source="runs/a",
        parameters=10,
        state_bytes=48,
        data="text.txt",
        data_sha256="0" * 64,
        protocol="carried",
        settings={"window": 5},
        seed=seed,
        dtype="float32",
        batch_size=1,
        device="cpu",
        threads=1,
        commit=None,
        versions={"palimpsest": "1"},
        wall_seconds=1.0,
        tokenizer="bytes",
        tokenizer_fingerprint="1" * 64,
        documents=2,
        tokens=100 + seed,
        bytes=100,
        loss=2.5,
    )


def flip(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def zero(data: bytes, draw: random.Random) -> bytes:
    place, length = draw.randrange(len(data)), draw.choice((4, 64, 512))
    block = bytes(len(data[place : place + length]))
    return data[:place] + block + data[place + length :]


def append(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.choice((1, 16, 300)))


CHANGES = {"flip": flip, "cut": cut, "zero": zero, "append": append}


def damage(kind: Kind, folder: Path, name: str, how: str, draw: random.Random) -> bool:
    """Damage one file; False if that leaves its bytes as they were."""
    file = folder / name
    before = file.read_bytes()
    if how == "delete":
        file.unlink()
        return True
    if how == "swap":
        other = kind.other / name
        if not other.is_file():
            return False
        shutil.copyfile(other, file)
    else:
        file.write_bytes(CHANGES[how](before, draw))
    return file.read_bytes() != before


def outcome(kind: Kind, folder: Path, expected: bytes) -> str:
    """ "refused", "same" or "WRONG". Any exception that is not ours propagates."""
    try:
        seen = kind.read(folder)
    except OURS as failure:
        assert "\n" not in str(failure), failure
        return "refused"
    return "same" if seen == expected else "WRONG"


def try_damage(
    kind: Kind, name: str, how: str, draw: random.Random, place: Path, expected: bytes
) -> str | None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kind.folder, place / "damaged")
    if not damage(kind, place / "damaged", name, how, draw):
        return None
    with pytest.MonkeyPatch.context() as patch, force_backend("reference"):
        patch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
        try:
            return outcome(kind, place / "damaged", expected)
        except Exception as failure:
            raise AssertionError(f"{how} of {name}: {type(failure).__name__}: {failure}") from None


def reference(kind: Kind, place: Path) -> bytes:
    shutil.copytree(kind.folder, place / "whole")
    with pytest.MonkeyPatch.context() as patch, force_backend("reference"):
        patch.setattr("palimpsest.training.run.plot_runs", lambda runs, path: path)
        return kind.read(place / "whole")


KINDS = ("model", "tokenizer", "state", "session", "shards", "tape", "result", "run")


@pytest.mark.parametrize("what", KINDS)
def test_a_flipped_byte_of_each_file(kinds: dict[str, Kind], what: str, tmp_path: Path) -> None:
    kind, draw = kinds[what], random.Random(3)
    expected = reference(kind, tmp_path)
    for name in kind.files:
        found = try_damage(kind, name, "flip", draw, tmp_path / "one", expected)
        assert found in ("refused", "same"), name


@pytest.mark.slow
def test_many_damaged_files(kinds: dict[str, Kind], tmp_path: Path) -> None:
    draw = random.Random(11)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for what, kind in kinds.items():
        place = tmp_path / what
        place.mkdir()
        expected = reference(kind, place)
        rounds = {"run": 2, "state": 8, "session": 8, "result": 8, "tokenizer": 6}.get(what, 4)
        for name in kind.files:
            # a file that stands alone, swapped for another whole one, is that other file: no damage
            once = ("delete", "swap") if len(kind.files) > 1 else ("delete",)
            for how in (*once, *list(CHANGES) * rounds):
                found = try_damage(kind, name, how, draw, place / "one", expected)
                if found is not None:
                    counts[what, found] += 1
                if found == "WRONG":
                    wrong.append(f"{what}: {how} of {name}")
    total = sum(counts.values())
    print(f"\n{total} damaged files")
    for what in kinds:
        print(
            f"{what:10} refused {counts[what, 'refused']:4}  same result {counts[what, 'same']:4}"
        )
    assert not wrong
    assert total >= 400
