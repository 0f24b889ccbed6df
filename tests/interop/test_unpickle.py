"""Reading pickles: honest ones come back whole, dishonest ones run nothing."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
import random
import re
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.errors import CheckpointError
from palimpsest.interop.published import read_published_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

ARRAYS = {
    "float32": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "float64": np.linspace(-1, 1, 6).reshape(1, 2, 3),
    "float16": np.ones(3, np.float16),
    "complex": np.array([1 + 2j, 3]),
    "integers": np.arange(5),
    "bytes": np.arange(256, dtype=np.uint8),
    "booleans": np.array([True, False]),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "permuted": np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
    "strided": np.arange(20.0).reshape(4, 5)[::2, 1:4],
    "big-endian": np.arange(4, dtype=">f4"),
    "empty": np.zeros((0, 3), np.float32),
    "zero-dimensional": np.array(2.5, np.float32),
    "text": np.array(["a", "bcd"]),
}


def write(tmp_path: Path, value: Any, protocol: int | None = None) -> Path:
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_come_back(tmp_path: Path, protocol: int) -> None:
    read = read_published_pickle(write(tmp_path, ARRAYS, protocol))
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert type(read[name]) is np.ndarray
        assert read[name].dtype == array.dtype, name
        assert read[name].shape == array.shape, name
        assert np.array_equal(read[name], array), name
        assert read[name].flags.writeable, name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rarer_plain_values_come_back(tmp_path: Path, protocol: int) -> None:
    value = [b"", bytearray(b"\x80x"), bytearray(), 1 - 2.5j, {1, "a"}, [], {}, (), float("inf")]
    read = read_published_pickle(write(tmp_path, value, protocol))
    assert read == value
    assert type(read[1]) is bytes


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_come_back(tmp_path: Path, protocol: int) -> None:
    array = np.arange(3.0)
    value = {
        "config": {"d_state": 24, "rate": 1e-3, "name": "gpnm", "tied": True, "note": None},
        "steps": [1, 2**80, (3, "é"), b"\x00\xff", [array, {"again": array}]],
        3: (),
    }
    read = read_published_pickle(write(tmp_path, value, protocol))
    assert np.array_equal(read["steps"][-1][0], array)
    assert read["steps"][-1][1]["again"] is read["steps"][-1][0], "shared stays shared"
    for tree in (read, value):
        tree["steps"].pop()
    assert read == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_made_plain(tmp_path: Path, protocol: int) -> None:
    value = [OrderedDict(a=1, b=2), np.float32(0.5), np.int64(7), np.bool_(True), np.str_("é")]
    read = read_published_pickle(write(tmp_path, value, protocol))
    assert read == [{"a": 1, "b": 2}, 0.5, 7, True, "é"]
    assert [type(item) for item in read] == [dict, float, int, bool, str]


def test_names_of_older_numpy(tmp_path: Path) -> None:
    """A file of numpy 1 names numpy.core, one of numpy 2 numpy._core."""
    path = write(tmp_path, ARRAYS["float32"], 2)
    data = path.read_bytes()
    old, new = b"numpy.core.", b"numpy._core."
    path.write_bytes(data.replace(new, old) if new in data else data.replace(old, new))
    assert np.array_equal(read_published_pickle(path), ARRAYS["float32"])


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def attacks(marker: Path) -> dict[str, Any]:
    """Values whose pickles would create a file if anything in them ran."""
    code = f"open({str(marker)!r}, 'w')"
    payload = np.empty(1, object)
    payload[0] = Calls(os.system, f"touch {marker}")
    structured = np.zeros(1, [("a", "f4"), ("b", "O")])
    structured["b"][0] = Calls(builtins.eval, code)
    return {
        "os.system": Calls(os.system, f"touch {marker}"),
        "builtins.eval": Calls(builtins.eval, code),
        "builtins.exec": Calls(builtins.exec, code),
        "builtins.getattr": Calls(builtins.getattr, "text", "upper"),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(marker)]),
        "numpy.load": Calls(np.load, str(marker), None, True),
        "numpy.fromfile": Calls(np.fromfile, str(marker)),
        "array of objects": payload,
        "array of records with objects": structured,
        "empty array of objects": np.empty(0, object),
        "array of dates": np.array(["2026-05-10"], "datetime64[D]"),
        "nested in a tree": {"params": {"w": np.ones(2), "x": [({"y": Calls(os.getcwd)},)]}},
        "as a key": {("a", Calls(os.getcwd)): 1},
        "after honest arrays": [*ARRAYS.values(), Calls(builtins.eval, code)],
        "a class of numpy": np.ndarray,
        "a type": dict,
        "a function": len,
        "a path": Path("x"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_attacks_run_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    for what, value in attacks(marker).items():
        path = write(tmp_path, value, protocol)
        with pytest.raises(CheckpointError) as failure:
            read_published_pickle(path)
        message = str(failure.value)
        assert message.startswith(f"{path}: holds "), what
        assert "nothing in it was run" in message
        assert not marker.exists(), what
        if "." in what:
            name = what.split(".")[1]
            assert name in message, message


def opcodes(*parts: bytes) -> bytes:
    return b"".join(parts) + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


HANDMADE = {
    # protocol 4 names reach into attributes: numpy.ndarray → its methods
    "dotted name": opcodes(b"\x80\x04", text("numpy"), text("ndarray.tofile"), b"\x93"),
    "old instance": opcodes(b"(S'true'\nios\nsystem\n"),
    "old object": opcodes(b"(cos\nsystem\nS'true'\no"),
    "new object": opcodes(b"\x80\x02cnumpy\nndarray\n)\x81"),
    "persistent id": opcodes(b"Pevil\n"),
    "extension": opcodes(b"\x80\x02\x82\x01"),
    "state for a stand-in": opcodes(b"\x80\x02cnumpy\ndtype\n}b"),
    "state for an array": opcodes(
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
        b"(K\x01K\x02\x85cos\nsystem\n\x89U\x08abcdefght",
        b"b",
    ),
    "dtype of a class": opcodes(b"\x80\x02cnumpy\ndtype\ncos\nsystem\n\x85R"),
    "call of a stand-in": opcodes(b"\x80\x02cnumpy\nndarray\nK\x03\x85R"),
    "array in a ring": opcodes(b"\x80\x02]q\x00h\x00a"),
}


@pytest.mark.parametrize("what", HANDMADE)
def test_handmade_programs(tmp_path: Path, what: str) -> None:
    path = tmp_path / "evil.pkl"
    path.write_bytes(HANDMADE[what])
    with pytest.raises(CheckpointError, match="nothing in it was run"):
        read_published_pickle(path)


DAMAGED = {
    "memo of 64 GB": opcodes(b"\x80\x02Nr\xff\xff\xff\x7f"),
    "bytes that are not there": opcodes(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60)),
    "array without content": opcodes(
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    ),
    "not a pickle": b"PK\x03\x04 this is a zip",
    "text": b"1234",
    "empty": b"",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files(tmp_path: Path, what: str) -> None:
    path = tmp_path / "damaged.pkl"
    path.write_bytes(DAMAGED[what])
    with pytest.raises(CheckpointError, match="is not a complete pickle"):
        read_published_pickle(path)


# The unpickler before the limits crashed, ran for ever or filled the memory on each of these.
TWICE = b"h\x00h\x00\x86q\x00"  # a tuple of the last one twice
BUFFER = b"x" * 65536
EXCESSIVE = {
    "deep tuple as a key": (
        b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",
        "nested more than 100 deep",
    ),
    "deep frozenset": (b"\x80\x04" + b"(" * 1000 + b"\x91" * 1000 + b".", "nested more than 100"),
    "deep lists": (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "nested more than 100"),
    "deep dicts": (b"\x80\x02" + b"}K\x01" * 999 + b"}" + b"s" * 999 + b".", "nested more than"),
    "shared tuples as a key": (
        b"\x80\x02})q\x00" + TWICE * 40 + b"K\x01s.",
        "share their parts so often",
    ),
    "shared lists": (
        pickle.dumps(functools.reduce(lambda x, _: [x, x], range(60), [])),
        "share their parts so often",
    ),
    "one buffer, many arrays": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01"
        b"cnumpy\ndtype\nU\x02u1\x85Rq\x02T" + struct.pack("<I", 65536) + BUFFER + b"q\x03("
        + b"h\x00h\x01K\x00\x85U\x01b\x87R(K\x01J\x00\x00\x01\x00\x85h\x02\x89h\x03tb" * 200
        + b"l.",
        "from the same bytes",
    ),
    "one text, many bytes": (
        b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 65536) + BUFFER + b"q\x01("
        + b"h\x00h\x01U\x06latin1\x86R" * 200 + b"l.",
        "from the same bytes",
    ),
    "one list, many sets": (
        b"\x80\x02c__builtin__\nset\nq\x00](" + b"K\x01K\x02" * 5000 + b"eq\x01("
        + b"h\x00h\x01\x85R" * 400 + b"l.",
        "from the same bytes|share their parts",
    ),
}  # fmt: skip
READ = """
import resource, sys
from palimpsest.interop.published import read_published_pickle
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sys.argv[1:]:
    try:
        read_published_pickle(path)
    except Exception as failure:
        print(type(failure).__name__, str(failure), flush=True)
    else:
        print("read", flush=True)
"""


def test_excessive_files_are_refused_in_one_line(tmp_path: Path) -> None:
    """In a process of its own: without the limits it crashes or never ends."""
    for i, (data, _) in enumerate(EXCESSIVE.values()):
        (tmp_path / f"{i}.pkl").write_bytes(data)
    paths = [str(tmp_path / f"{i}.pkl") for i in range(len(EXCESSIVE))]
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-1000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(EXCESSIVE)
    for (what, (_, message)), line in zip(EXCESSIVE.items(), lines, strict=True):
        assert line.startswith("CheckpointError"), what
        assert re.search(message, line), (what, line)


def test_large_honest_files_are_within_the_limits(tmp_path: Path) -> None:
    array = np.zeros(1000)
    value = {
        "losses": [0.5 * i for i in range(100_000)],
        "pairs": [(i, str(i)) for i in range(20_000)],
        "masks": [np.zeros(1, bool) for _ in range(500)],
        "shared": [array] * 5000,
        ("a", ("key", ("of", 3))): {(1, 2): {1, 2, 3}},
    }
    for protocol in (0, 2, 4, 5):
        read = read_published_pickle(write(tmp_path, value, protocol))
        assert read["losses"] == value["losses"]
        assert read["shared"][0] is read["shared"][-1]
        assert read["pairs"] == value["pairs"]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_cut_anywhere(tmp_path: Path, protocol: int) -> None:
    whole = pickle.dumps({"w": ARRAYS["float32"], "config": {"d": 3}}, protocol)
    path = tmp_path / "cut.pkl"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut short"):
            read_published_pickle(path)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_random_damage(tmp_path: Path, protocol: int) -> None:
    """Whatever is overwritten: a value, or one clear error."""
    whole = pickle.dumps({"w": ARRAYS["float64"], "n": [1, 2.5, "x"]}, protocol)
    path = tmp_path / "damaged.pkl"
    rng = random.Random(protocol)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            read_published_pickle(path)
        except CheckpointError as failure:
            assert str(failure).startswith(str(path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pkl", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_published_pickle(path)
