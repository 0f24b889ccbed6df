"""Choosing a backend: who decides, and that the choice is counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from palimpsest.errors import InputError
from palimpsest.ops import BackendUnavailableError, backend_calls, dispatch, force_backend


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Iterator[dispatch.Dispatcher]:
    monkeypatch.setattr(dispatch, "_dispatchers", dict(dispatch._dispatchers))
    op = dispatch.Dispatcher("an_op")
    op.register("reference", lambda: "reference ran")
    op.register("fast", lambda: "fast ran")
    op.register("exotic", lambda: "exotic ran", missing=lambda: "needs a rare device")
    other = dispatch.Dispatcher("another_op")
    other.register("reference", lambda: "other ran")
    yield op


def chosen(op: dispatch.Dispatcher, backend: str | None = None) -> str:
    return str(op.pick(backend, lambda: "reference")())


def test_names(op: dispatch.Dispatcher) -> None:
    assert op.names() == ("reference", "fast", "exotic")
    assert op.available() == ("reference", "fast")
    assert dispatch.dispatchers()["an_op"] is op
    with pytest.raises(ValueError, match="already has a backend 'fast'"):
        op.register("fast", lambda: None)


def test_who_decides(op: dispatch.Dispatcher) -> None:
    """The call, then the innermost block that names the op, then a block for all, then the op."""
    assert chosen(op) == "reference ran"
    assert chosen(op, "fast") == "fast ran"
    with force_backend("fast"):
        assert chosen(op) == "fast ran"
        assert chosen(op, "reference") == "reference ran"
        with force_backend(an_op="reference"):
            assert chosen(op) == "reference ran"
            with force_backend("fast"):
                assert chosen(op) == "fast ran"
            assert chosen(op) == "reference ran"
        assert chosen(op) == "fast ran"
    assert chosen(op) == "reference ran"


def test_a_name_for_all_ops_skips_those_without_it(op: dispatch.Dispatcher) -> None:
    other = dispatch.dispatchers()["another_op"]
    with force_backend("fast"):
        assert chosen(other) == "other ran"


def test_block_ends_after_an_error(op: dispatch.Dispatcher) -> None:
    with pytest.raises(RuntimeError), force_backend("fast"):
        raise RuntimeError
    assert chosen(op) == "reference ran"


def test_calls_are_counted(op: dispatch.Dispatcher) -> None:
    before = backend_calls()
    chosen(op)
    chosen(op, "fast")
    chosen(op, "fast")
    with pytest.raises(BackendUnavailableError):
        chosen(op, "exotic")
    assert backend_calls() - before == {("an_op", "reference"): 1, ("an_op", "fast"): 2}
    backend_calls().clear()
    assert backend_calls() - before, "a copy: clearing it changes nothing"


def test_refusals(op: dispatch.Dispatcher) -> None:
    with pytest.raises(InputError, match=r"backend='slow': op 'an_op' has .*reference, fast"):
        chosen(op, "slow")
    for force in (
        lambda: force_backend("slow"),
        lambda: force_backend(an_op="slow"),
        lambda: force_backend(no_op="reference"),
        lambda: force_backend(another_op="fast"),
    ):
        with pytest.raises(InputError), force():
            pass
    with (
        force_backend(an_op="exotic"),
        pytest.raises(BackendUnavailableError, match="'exotic' of op 'an_op': needs a rare device"),
    ):
        chosen(op)


def test_ops_are_known_before_anything_has_imported_them() -> None:
    program = (
        "from palimpsest.ops import force_backend\n"
        "with force_backend('reference', triple_scan='composed'):\n"
        "    print('forced')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "forced\n"), done.stderr
