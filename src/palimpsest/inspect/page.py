"""The page: one HTML file with its data in it, which loads nothing from anywhere.

Numbers are packed as base64 of little-endian arrays, halves where they are only shown.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest._version import __version__
from palimpsest.inspect.inspection import Inspection
from palimpsest.inspect.tokens import visible

__all__ = ["model_data", "pack", "render_page", "unpack"]

SCRIPTS = (
    "decode.js",
    "colours.js",
    "help.js",
    "canvas.js",
    "text.js",
    "trajectory.js",
    "minimap.js",
    "overtime.js",
    "memory.js",
    "details.js",
    "find.js",
    "main.js",
)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def pack(values: NDArray[Any], dtype: str) -> dict[str, str]:
    """An array as JSON values: its dtype and its bytes, row by row."""
    data = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "data": base64.b64encode(data.tobytes()).decode("ascii")}


def unpack(packed: dict[str, str]) -> NDArray[Any]:
    """The flat array that :func:`pack` took."""
    kind = np.dtype(packed["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(packed["data"]), dtype=kind)


def model_data(inspection: Inspection) -> dict[str, Any]:
    """What the page knows of one model, as JSON values."""
    x, cells = inspection, inspection.cells
    return {
        "label": x.label,
        "facts": [[name, value] for name, value in x.facts.items()],
        "missing": list(x.missing),
        "text": cells.text,
        "byteLength": cells.n_bytes,
        "starts": list(x.document_starts),
        "labels": {str(token): label for token, label in x.labels.items()},
        "trajectory": x.trajectory,
        "shares": list(x.shares),
        "arrays": {
            "ids": pack(x.ids_N, "int32"),
            "ends": pack(cells.ends_C, "int32"),
            "first": pack(cells.first_token_C, "int32"),
            "bytes": pack(cells.byte_starts_N, "int32"),
            "surprise": pack(x.surprise_N, "float16"),
            "entropy": pack(x.entropy_N, "float16"),
            "rank": pack(x.rank_N, "int32"),
            "topIds": pack(x.top_ids_NP, "int32"),
            "topProbabilities": pack(x.top_probabilities_NP, "float16"),
            "points": pack(x.points_N2, "float32"),
        },
        "gates": [
            {"name": g.name, "doc": g.doc, "values": pack(g.values_N, "float16")} for g in x.gates
        ],
        "heads": [
            {
                "title": h.title,
                "layer": h.layer,
                "kind": h.kind,
                "width": h.values_NH.shape[1],
                "values": pack(h.values_NH, "float16"),
                "halfLives": list(h.half_lives),
                "longestLag": h.longest_lag,
            }
            for h in x.heads
        ],
        "memories": [
            {
                "layer": m.layer,
                "names": list(m.names),
                "shape": list(m.shape),
                "size": list(m.values_MHRC.shape[2:]),
                "scale": [float(f"{value:.4g}") for value in m.scale_H],
                "positions": pack(m.positions_M, "int32"),
                "values": pack(m.values_MHRC, "int8"),
            }
            for m in x.memories
        ],
        "retrieved": [
            {
                "layer": r.layer,
                "width": r.positions_NK.shape[1],
                "positions": pack(r.positions_NK, "int32"),
                "weights": pack(r.weights_NK, "float16"),
            }
            for r in x.retrieved
        ],
    }


def render_page(inspections: Sequence[Inspection], title: str) -> str:
    """The HTML of one model, or of two side by side."""
    folder = files("palimpsest.inspect") / "web"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    data = {
        "format": "palimpsest-inspect",
        "palimpsest": __version__,
        "models": [model_data(x) for x in inspections],
    }
    script = "\n".join(read(name) for name in SCRIPTS)
    parts = {
        "title": html.escape(visible(title)),
        "style": read("page.css"),
        "script": f'(() => {{\n"use strict";\n{script}\n}})();',
        # in a script element only "<" could end it; JSON takes it by its number
        "data": json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
    }
    return _PLACE.sub(lambda found: parts[found.group(1)], read("page.html"))
