"""Every table, by the name that the command line calls it."""

from __future__ import annotations

import difflib
from typing import Literal

from palimpsest.errors import ConfigError
from palimpsest.reproduce.table import Table
from palimpsest.reproduce.tables import grounded, minimind, retrieval, speed, triple

__all__ = ["Scale", "get_table", "list_tables"]

Scale = Literal["small", "full"]

_TABLES: dict[str, dict[Scale, Table]] = {
    **{
        table.name: {"small": table, "full": table}
        for table in (
            triple.GENERIC,
            triple.MATCHED,
            triple.BUDGET,
            retrieval.HYBRID,
            retrieval.ABLATION,
            retrieval.STABILISATION,
            minimind.MINIMIND,
            speed.THROUGHPUT,
            speed.FLOPS,
        )
    },
    "grounded": {"small": grounded.SMALL, "full": grounded.FULL},
}


def list_tables() -> dict[str, str]:
    """The tables' names and titles, in the order of the papers."""
    return {name: scales["small"].title for name, scales in _TABLES.items()}


def get_table(name: str, scale: Scale = "small") -> Table:
    """A table by name.

    Args:
        name: one of :func:`list_tables`.
        scale: "full" is the published size where a table also has a small form (``grounded``).

    Raises:
        ConfigError: there is none of that name; those that exist are listed.
    """
    if name not in _TABLES:
        near = difflib.get_close_matches(name, _TABLES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"table {name!r}: there is none; {hint}tables: {', '.join(_TABLES)}")
    if scale not in ("small", "full"):
        raise ConfigError(f"scale={scale!r}: must be 'small' or 'full'")
    return _TABLES[name][scale]
