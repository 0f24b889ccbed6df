"""A compiled kernel gives the same bits wherever in memory its arrays lie."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from palimpsest.ops.decay_scan import decay_scan
from palimpsest.ops.pair_memory import pair_memory
from palimpsest.ops.short_conv import short_conv
from palimpsest.ops.slot_scan import slot_scan
from palimpsest.ops.topk_retrieval import topk_retrieval
from palimpsest.ops.triple_scan import triple_scan
from tests.ops.arena import Call, called_names, compiled_functions, layouts, record, replay
from tests.ops.grounded_loop.blocks import make_inputs

pytest.importorskip("numba")

STEPS = 3
CALLS = 2  # of one kernel in one case
WIDTHS = (8, 13, 16, 32, 64)
PRECISIONS = ("fp32", "fp64", "bf16")


def backward(outputs: Sequence[Tensor | None]) -> None:
    torch.stack(
        [(x * torch.randn_like(x)).sum() for x in outputs if x is not None]
    ).sum().backward()


def grounded(width: int, precision: str) -> None:
    """Kernels of the grounded loop, with and without memory and masks."""
    sizes = (width, width + 3, 2, width, width)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for layers, memory in ((1, True), (2, True), (1, False)):
            inputs = make_inputs(
                STEPS, layers=layers, memory=memory, masks=layers == 2, batch=2, sizes=sizes
            )
            backward(inputs.to(dtype).require_grad().run("numba"))


def others(width: int, dtype: torch.dtype) -> None:
    """Kernels of all other ops."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(1, STEPS, *shape, dtype=dtype, requires_grad=True)

    def decay() -> Tensor:
        return torch.nn.functional.logsigmoid(leaf(2))

    backward(triple_scan(leaf(2 * (4 * width + 2)), 2, backend="numba"))
    backward(slot_scan(leaf(2 * (5 * width + 2)), 2, width, backend="numba"))
    memory = (leaf(2, width), leaf(2, width), leaf(2, width))
    backward(pair_memory(*memory, decay(), backend="numba"))
    backward(decay_scan(leaf(2, width), decay(), backend="numba"))
    weight = torch.randn(width, 4, dtype=dtype, requires_grad=True)
    bias = torch.randn(width, dtype=dtype, requires_grad=True)
    window = torch.randn(1, 3, width, dtype=dtype, requires_grad=True)
    backward(short_conv(leaf(width), weight, bias, window, backend="numba"))
    keys, ids = torch.randn(5, width, dtype=dtype), torch.randint(0, 5, (1, STEPS))
    topk_retrieval(leaf(width), keys, leaf(width), key_ids_BN=ids, top_k=2, backend="numba")


def recorded(widths: Sequence[int], precisions: Sequence[str]) -> list[Call]:
    """Some calls of every kernel in every case."""
    chosen = []
    for width in widths:
        for precision in precisions:
            with record() as calls:
                grounded(width, precision)
                if width == 8 and precision == "fp32":  # these compile for each width
                    others(width, torch.float32)
            seen: Counter[tuple[str, str]] = Counter()
            for call in calls:
                seen[call.name] += 1
                if seen[call.name] <= CALLS:
                    chosen.append(call)
    return chosen


def different(calls: Sequence[Call], tries: int) -> Counter[tuple[str, str]]:
    """How many layouts of each kernel gave other bits than its first."""
    found: Counter[tuple[str, str]] = Counter()
    for seed, call in enumerate(calls):
        results = (replay(call, *where) for where in layouts(len(call.arrays()), seed, tries))
        first = next(results)
        found[call.name] += sum(result != first for result in results)
    return +found


def test_the_same_bits_at_every_address() -> None:
    calls = recorded((8, 16), ("fp32",))
    assert not different(calls, 40)
    uncovered = set(compiled_functions()) - covered({call.name for call in calls})
    assert not uncovered, f"kernels without a case here: {sorted(uncovered)}"


@pytest.mark.slow
def test_the_same_bits_at_many_more_addresses() -> None:
    calls = recorded(WIDTHS, PRECISIONS)
    print(f"{len(calls)} calls at 300 places each")
    assert not different(calls, 300)


def covered(called: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Kernels that were called, and the compiled functions that run inside them."""
    functions = compiled_functions()
    by_name: dict[str, set[tuple[str, str]]] = {}
    for key in functions:
        by_name.setdefault(key[1], set()).add(key)
    # exp, sigmoid and tanh are overloads, whose code is in these
    by_name.update({n: {("palimpsest.ops.simd", "_exp32")} for n in ("exp", "sigmoid")})
    by_name["tanh"] = {("palimpsest.ops.simd", "_tanh32")}
    todo, found = list(called), set()
    while todo:
        key = todo.pop()
        if key not in found and key in functions:
            found.add(key)
            todo += [
                inner for name in called_names(functions[key]) for inner in by_name.get(name, ())
            ]
    return found


def sums_and_stores(function: ast.FunctionDef) -> list[int]:
    """Lines of innermost loops over numbers that add to a variable and store to an array."""
    found = []
    for loop in ast.walk(function):
        if not isinstance(loop, ast.For):
            continue
        inside = [node for statement in loop.body for node in ast.walk(statement)]
        if any(isinstance(node, ast.For) for node in inside):
            continue
        calls = called_names(loop)
        if "load" in calls:  # explicit vectors, which LLVM leaves as they are
            continue
        targets = [t for node in inside if isinstance(node, ast.Assign) for t in node.targets]
        added = [node.target for node in inside if isinstance(node, ast.AugAssign)]
        own = {target.id for target in targets if isinstance(target, ast.Name)}
        sums = any(isinstance(target, ast.Name) and target.id not in own for target in added)
        stores = any(isinstance(t, ast.Subscript) for t in (*targets, *added)) or "put" in calls
        if sums and stores:
            found.append(loop.lineno)
    return found


def test_no_loop_both_sums_and_stores() -> None:
    found = {key: sums_and_stores(node) for key, node in compiled_functions().items()}
    assert len(found) > 40
    assert not {key: lines for key, lines in found.items() if lines}
