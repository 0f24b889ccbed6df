"""Search, order by surprise, comparison and panels in a browser. Needs playwright and chromium."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palimpsest.inspect import Inspection
from tests.inspect.conftest import LONG, NASTY, long_inspection


def test_n_goes_through_the_most_surprising_tokens(opened: Any) -> None:
    page = opened("long")
    bits = long_inspection().surprise_N.astype(np.float16)
    page.press("n")
    seen = [int(page.token().split("token ")[1].split(" of")[0].replace(",", "")) - 1]
    assert page.page.locator("#status").inner_text().startswith("1 of ")
    page.press("n")
    assert page.page.locator("#status").inner_text().startswith("2 of ")
    seen.append(int(page.token().split("token ")[1].split(" of")[0].replace(",", "")) - 1)
    page.press("p")
    assert page.token().split(" of")[0].endswith(f"token {seen[0] + 1:,}")
    best = np.sort(bits)[::-1]
    single = [float(bits[at]) for at in seen]  # "é" counts as the sum of its two tokens
    assert single[0] > best[40] and seen[0] != seen[1]
    now = page.page.locator(".t.now").bounding_box()
    text = page.page.locator(".text").bounding_box()
    assert text["y"] <= now["y"] <= text["y"] + text["height"]


def test_search_goes_from_match_to_match(opened: Any) -> None:
    page = opened("two")
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.page.keyboard.type("<B>")
    page.press("Enter")
    assert page.page.locator("#status").inner_text() == "match 1 of 3"
    first = NASTY.index("<b>")
    assert f"token {first + 1} of" in page.token(0) and f"token {first + 1} of" in page.token(1)
    ranges = page.page.locator(".range-line").first.inner_text()
    assert ranges.startswith(f"Selected: tokens {first + 1} to {first + 3},")
    page.press("Enter")
    assert page.page.locator("#status").inner_text() == "match 2 of 3"
    page.press("Shift+Enter")
    assert page.page.locator("#status").inner_text() == "match 1 of 3"
    page.page.keyboard.type("n(")  # letters in the field are no commands
    page.press("Enter")
    assert page.page.locator("#status").inner_text() == "no match"


def test_a_comparison_shows_differences_in_bits_and_what_one_model_lacks(
    opened: Any, nasty: Inspection, other: Inspection
) -> None:
    page = opened("two")
    page.page.locator(".t").nth(20).hover()
    page.settle()
    bits = float(nasty.surprise_N[20]) - float(other.surprise_N[20])
    chips = page.page.locator(".token-head .difference").all_inner_texts()
    assert [chip.split(" vs ")[1] for chip in chips] == ["two", "one <&> $x^"]
    for chip, sign in zip(chips, (1, -1), strict=True):
        shown = float(chip.split(" ")[0].replace("−", "-"))
        assert shown == pytest.approx(sign * bits, abs=0.02)
    first, second = page.page.locator(".missing").all_inner_texts()
    assert first == ""
    assert second == (
        "Not in this model: gates, write strength, retention and half-lives, a memory matrix."
    )
    assert opened("one").page.locator(".difference").count() == 0


def test_quantities_over_time_lead_to_their_token(opened: Any) -> None:
    page = opened("long")
    rows = page.page.locator(".rows canvas").nth(1)
    rows.scroll_into_view_if_needed()
    box = rows.bounding_box()
    assert box["height"] == 7 * 14  # one row per head
    page.page.mouse.click(box["x"] + box["width"] - 1, box["y"] + 5)
    page.page.mouse.move(5, 5)
    page.settle()
    at = int(page.token().split("token ")[1].split(" of")[0].replace(",", ""))
    assert at > 0.99 * LONG
    card = page.page.locator("section.card", has=page.page.locator(".rows"))
    assert "Tokens 1 to 20,000;" in card.inner_text()
    card.locator("select").select_option("gates (means)")
    page.settle()
    assert rows.bounding_box()["height"] == 14
    assert "weakest colour" in card.inner_text()
    page.page.locator(".t.now").click()
    page.press("Shift+ArrowLeft", "Shift+ArrowLeft")
    assert f"Tokens {at - 2:,} to {at:,};" in card.inner_text()


def test_the_memory_is_shown_at_the_last_recorded_token(opened: Any, nasty: Inspection) -> None:
    page = opened("one")
    (part,) = nasty.memories
    card = page.page.locator("section[aria-label=Memory]")
    assert card.locator("canvas").count() == len(part.names) > 1
    assert "Recorded after 64 of" in card.inner_text() and "evenly spaced" in card.inner_text()
    pixels = "[...document.querySelectorAll('.matrices canvas')].map(c => c.toDataURL()).join()"
    seen = page.run(pixels)
    page.page.locator(".t").nth(100).click()
    page.settle()
    token = int(nasty.cells.first_token_C[100])
    last = int(part.positions_M[part.positions_M <= token].max())
    assert f"After token {last + 1} (" in card.inner_text()
    assert page.run(pixels) != seen


def test_quantities_are_explained_in_place(opened: Any) -> None:
    page = opened("one")
    page.page.locator("summary[aria-label='Explain write β']").click()
    shown = page.page.locator("section[aria-label=Heads] .help dl").inner_text()
    for name in ("write β", "retention", "1/e after"):
        assert name in shown
    page.page.locator("summary[aria-label='Explain Gates']").click()
    shown = page.page.locator("section[aria-label=Gates] .help dl").inner_text()
    assert "gate.ground" in shown
    unexplained = page.run(
        "[...document.querySelectorAll('.model .card')].filter(e => !e.querySelector('.help dd'))"
        ".map(e => e.getAttribute('aria-label'))"
    )
    assert unexplained == []


def test_a_narrow_page_shows_the_token_before_the_other_panels(opened: Any) -> None:
    page = opened("one", 400)
    first = page.page.locator(".card").first
    assert first.get_attribute("aria-label") == "Token"
    box = page.page.locator("section[aria-label=Token]").bounding_box()
    text = page.page.locator(".text").bounding_box()
    assert text["y"] < box["y"] < 900  # in view without scrolling
