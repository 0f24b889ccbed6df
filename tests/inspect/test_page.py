"""The page holds what was found, and nothing of the text becomes part of it."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from palimpsest.inspect import Inspection
from palimpsest.inspect.page import SCRIPTS, pack, render_page, unpack
from palimpsest.inspect.tokens import visible
from tests.inspect.conftest import NASTY

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(page: str) -> dict[str, Any]:
    (found,) = DATA.findall(page)
    data: dict[str, Any] = json.loads(found)
    return data


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_packed_arrays_come_back(dtype: str) -> None:
    values = np.array([[0, 1, -2], [3, 100, 2000]])
    np.testing.assert_array_equal(unpack(pack(values, dtype)), values.ravel())
    assert unpack(pack(values[:0], dtype)).size == 0


def test_numbers_survive_the_page(nasty: Inspection) -> None:
    (model,) = data_of(render_page([nasty], "title"))["models"]
    arrays = {name: unpack(packed) for name, packed in model["arrays"].items()}
    np.testing.assert_array_equal(arrays["ids"], nasty.ids_N)
    np.testing.assert_allclose(arrays["surprise"], nasty.surprise_N, rtol=1e-3)
    np.testing.assert_array_equal(arrays["rank"], nasty.rank_N)
    np.testing.assert_array_equal(arrays["topIds"], nasty.top_ids_NP.ravel())
    np.testing.assert_allclose(
        arrays["topProbabilities"], nasty.top_probabilities_NP.ravel(), rtol=1e-3, atol=1e-6
    )
    np.testing.assert_array_equal(arrays["points"], nasty.points_N2.ravel())
    np.testing.assert_array_equal(arrays["bytes"], np.arange(nasty.tokens))
    assert model["text"] == nasty.cells.text
    assert {int(k): v for k, v in model["labels"].items()} == nasty.labels
    for mine, theirs in zip(model["heads"], nasty.heads, strict=True):
        np.testing.assert_array_equal(unpack(mine["values"]), theirs.values_NH.ravel())
        assert mine["halfLives"] == list(theirs.half_lives)
    for mine, theirs_ in zip(model["gates"], nasty.gates, strict=True):
        np.testing.assert_array_equal(unpack(mine["values"]), theirs_.values_N)


def test_nothing_of_the_text_becomes_markup(nasty: Inspection) -> None:
    page = render_page([nasty], f"{NASTY} title")
    assert page.count("</script>") == 2 and page.count("<script") == 2
    assert "<b>bold" not in page and html.escape(visible(NASTY)) in page
    assert "\x00" not in page
    assert data_of(page)["models"][0]["label"] == "one <&> $x^"


def test_the_page_loads_nothing(nasty: Inspection, other: Inspection) -> None:
    page = DATA.sub("", render_page([nasty, other], "title"))
    assert not re.search(r"https?:|//[a-z]+\.|\bsrc=|@import|url\(|\bfetch\(|import\(", page)
    assert "default-src 'none'" in page
    assert not re.search(r"\{\{\w+\}\}", page)


def test_what_the_page_is_made_of_is_shipped() -> None:
    folder = files("palimpsest.inspect") / "web"
    shipped = {entry.name for entry in folder.iterdir()}
    assert shipped == {*SCRIPTS, "page.html", "page.css"}
