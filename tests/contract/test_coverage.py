"""Every registered architecture is under the contract, with sizes that can catch mistakes."""

from __future__ import annotations

import pytest

import palimpsest
from palimpsest.models.registry import model_class
from palimpsest.ops.dispatch import dispatchers
from tests.contract.configs import CONFIGS
from tests.contract.harness import BATCH, LENGTH, backends_of


@pytest.mark.parametrize("name", palimpsest.list_models())
def test_architecture_has_a_tiny_configuration(name: str) -> None:
    assert CONFIGS.get(name), (
        f"model {name!r} is registered but has no entry in tests/contract/configs.py: add at "
        "least one tiny configuration, and the whole contract will run on it"
    )


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_entry_is_registered(name: str) -> None:
    assert name in palimpsest.list_models()


@pytest.mark.parametrize(
    "fields", [pytest.param(f, id=f"{m}-{n}") for m, c in CONFIGS.items() for n, f in c.items()]
)
def test_sizes_are_distinct(fields: dict[str, object]) -> None:
    sizes = [v for v in fields.values() if isinstance(v, int) and not isinstance(v, bool) and v > 2]
    sizes += [BATCH, LENGTH]
    assert len(sizes) == len(set(sizes)), f"sizes repeat, so swapped axes could pass: {fields}"


@pytest.mark.parametrize(("name", "label"), [(n, label) for n, c in CONFIGS.items() for label in c])
def test_every_available_backend_is_run(name: str, label: str) -> None:
    found = backends_of(name, label)
    assert ("reference" in found) == model_class(name).own_ops
    for op in {op for forced in found.values() for op in forced}:
        assert {b for b, forced in found.items() if op in forced} == set(
            dispatchers()[op].available()
        )
