"""The page in a browser: what a reader sees and does. Needs playwright and chromium."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palimpsest.inspect import Inspection
from tests.inspect.conftest import LONG


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("one", 1280, "dark"), ("one", 400, "light"), ("two", 1280, "light"), ("two", 400, "dark")],
)
def test_it_fits_and_follows_the_readers_theme(
    opened: Any, name: str, width: int, scheme: str
) -> None:
    page = opened(name, width, scheme)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    wide = page.run(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className)"
    )
    assert wide == []
    light = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    tops = page.run(
        "[...document.querySelectorAll('.text')].map(e => e.getBoundingClientRect().top)"
    )
    if name == "two":  # side by side where there is room
        assert (tops[0] == tops[1]) == (width == 1280)


def test_the_theme_can_be_changed(opened: Any) -> None:
    page = opened("one")
    button = page.page.get_by_role("button", name="theme")
    assert button.inner_text() == "Use dark theme"  # what a click does
    button.click()
    assert button.inner_text() == "Use light theme"
    assert page.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_the_text_stays_text(opened: Any, nasty: Inspection) -> None:
    page = opened("one")
    assert page.run("document.title") == "page one"
    assert page.run("document.querySelectorAll('.text b, .text script').length") == 0
    assert page.run("document.querySelector('.text').textContent") == nasty.cells.text


def test_a_hovered_token_is_explained_and_found_in_the_trajectory(
    opened: Any, nasty: Inspection
) -> None:
    page = opened("two")
    before = page.overlay(0), page.overlay(1)
    token = page.page.locator(".text").nth(0).locator(".t").nth(20)
    token.hover()
    page.settle()
    assert "token 21 of" in page.token(0) and "token 21 of" in page.token(1)
    assert nasty.labels[int(nasty.ids_N[20])] in page.token(0)
    shown = page.page.locator(".predictions").nth(0).inner_text()
    for best in nasty.top_ids_NP[20]:
        assert nasty.labels[int(best)] in shown
    assert page.overlay(0) != before[0] and page.overlay(1) != before[1]
    assert page.page.locator(".t.now").count() == 2
    page.page.mouse.move(5, 5)  # back to the token that has the focus
    page.settle()
    assert "token 1 of" in page.token()


def test_a_point_of_the_trajectory_leads_to_its_token(opened: Any) -> None:
    page = opened("long")
    page.page.locator(".plot").scroll_into_view_if_needed()
    box = page.page.locator(".plot").bounding_box()
    named = page.token()
    for share in np.linspace(0.1, 0.9, 30):  # somewhere on this line there are points
        x, y = box["x"] + share * box["width"], box["y"] + box["height"] / 2
        page.page.mouse.move(x, y)
        page.settle()
        if page.token() != named:
            break
    assert page.token() != named
    named = page.token()
    page.page.mouse.click(x, y)
    page.page.mouse.move(5, 5)
    page.settle()
    assert page.token() == named
    now = page.page.locator(".t.now").bounding_box()
    text = page.page.locator(".text").bounding_box()
    assert text["y"] <= now["y"] <= text["y"] + text["height"]


def test_keys_move_through_the_text(opened: Any) -> None:
    page = opened("long")
    for _ in range(20):  # Tab reaches the text
        page.press("Tab")
        if page.run("document.activeElement.classList.contains('t')"):
            break
    assert page.run("document.activeElement.classList.contains('t')")
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert "token 2 of" in page.token()
    page.press("ArrowDown")
    below = page.page.locator(".t.now").bounding_box()
    page.press("ArrowUp")
    assert page.page.locator(".t.now").bounding_box()["y"] < below["y"]
    page.press("PageDown")
    assert "token 202 of" in page.token()
    page.press("End")
    assert "token 20,000 of" in page.token()
    assert page.run("document.querySelectorAll('.text [tabindex=\"0\"]').length") == 1
    assert page.run("document.activeElement === document.querySelector('.text [tabindex]')")
    assert page.run("document.activeElement.getAttribute('aria-label')").endswith("bits")
    page.press("Home")
    assert "token 1 of" in page.token()


def test_the_bytes_of_a_character_are_walked_one_by_one(opened: Any) -> None:
    page = opened("long")
    page.page.locator(".t", has_text="é").first.click()
    page.settle()
    assert "1 of 2 of “é”" in page.token()
    page.press("ArrowRight")
    assert "2 of 2 of “é”" in page.token() and "0xA9" in page.token()


def test_a_range_is_selected_by_keys_and_let_go(opened: Any) -> None:
    page = opened("two")
    clear = page.page.get_by_role("button", name="Clear selection")
    assert clear.is_disabled()
    page.page.locator(".t").nth(4).click()
    before = page.overlay(1)
    page.press("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight")
    assert (
        page.page.locator(".range-line").all_inner_texts()[0].startswith("Selected: tokens 5 to 8,")
    )
    assert (
        page.page.locator(".range-line").nth(1).inner_text().startswith("Selected: tokens 5 to 8")
    )
    assert page.page.locator(".t.range").count() == 8
    assert page.overlay(1) != before
    page.press("Escape")
    assert page.page.locator(".t.range").count() == 0
    assert clear.is_disabled()


def test_a_range_is_selected_by_the_mouse(opened: Any, nasty: Inspection) -> None:
    page = opened("one")
    first = page.page.locator(".t").nth(3).bounding_box()
    last = page.page.locator(".t").nth(12).bounding_box()
    page.page.mouse.move(first["x"] + 1, first["y"] + 8)
    page.page.mouse.down()
    page.page.mouse.move(last["x"] + last["width"] - 1, last["y"] + 8, steps=4)
    page.page.mouse.up()
    page.settle()
    said = page.page.locator(".range-line").inner_text()
    bits = float(nasty.surprise_N[3:13].mean())
    assert said.startswith(f"Selected: tokens 4 to 13, {bits:.3g} bits per token")
    page.page.get_by_role("button", name="Clear selection").click()
    assert page.page.locator(".range-line").inner_text() == ""


def test_retrieved_positions_are_marked_and_lead_there(opened: Any) -> None:
    page = opened("long")
    page.page.locator(".t").nth(300).click()
    page.settle()
    assert page.page.locator(".t.found").count() == 3
    lag = page.page.locator(".places button").first.inner_text().split("−")[1].split(":")[0]
    at = int(page.token().split("token ")[1].split(" of")[0])
    page.page.locator(".places button").first.click()
    page.page.mouse.move(5, 5)
    page.settle()
    assert f"token {at - int(lag)} of" in page.token()


def test_colours_mean_what_the_legend_says(opened: Any, nasty: Inspection) -> None:
    page = opened("two")
    assert page.page.locator("#legend").inner_text().startswith("surprise in bits:")
    token = page.page.locator(".t").nth(10)
    bits = float(nasty.surprise_N[10])
    wanted = sum(bits >= edge for edge in (0.5, 1, 2, 3, 4, 6, 8, 10, 12))
    assert f"b{wanted}" in token.get_attribute("class").split()
    page.page.locator("#colour").select_option("difference")
    assert "compared with the other model" in page.page.locator("#legend").inner_text()
    kinds = page.run(
        "[...document.querySelectorAll('.t')].map(e => /\\bd(\\d)/.exec(e.className)[1])"
    )
    half = len(kinds) // 2
    # what is more for one is less for the other
    assert [8 - int(kind) for kind in kinds[:half]] == [int(kind) for kind in kinds[half:]]
    page.page.locator("#colour").select_option("none")
    assert page.page.locator("#legend").inner_text() == ""


def test_other_tokens_of_the_same_text_are_linked_by_its_bytes(opened: Any) -> None:
    page = opened("apart")
    letters, words = page.page.locator(".text").all()
    letters.locator(".t").nth(1).hover()  # the h of the first "the"
    page.settle()
    assert "h token 2 of" in page.token(0) and "the token 1 of" in page.token(1)
    words.locator(".t", has_text="nothing").hover()
    page.settle()
    assert "n token 19 of" in page.token(0) and "nothing token 15 of" in page.token(1)
    page.page.locator("#colour").select_option("difference")
    assert "d" in letters.locator(".t").nth(5).get_attribute("class")
    assert page.page.locator(".chunk.starts").count() == 2  # where the second document starts
    words.locator(".t", has_text="nothing").click()
    page.press("Shift+ArrowRight")  # "nothing" and the space after it
    ranges = page.page.locator(".range-line").all_inner_texts()
    assert ranges[0].startswith("Selected: tokens 19 to 26,")
    assert ranges[1].startswith("Selected: tokens 15 to 16,")


def test_a_long_text_costs_little(opened: Any) -> None:
    page = opened("long-two")
    count = "document.querySelectorAll('*').length"
    assert page.run("document.querySelector('.text').textContent.length") > 0.98 * LONG
    assert page.run(count) < 12_000
    page.page.locator(".t").first.click()
    for keys in (["End"], ["Home"], ["PageDown"] * 5):
        page.press(*keys)
        assert page.run(count) < 16_000
    # what a moving pointer changes: a few tokens, the tables' numbers, no point of the trajectory
    page.run(
        """() => {
          window.changes = 0;
          window.points = 0;
          new MutationObserver((list) => { window.changes += list.length; }).observe(
            document.body, { subtree: true, attributes: true, childList: true });
          const fill = CanvasRenderingContext2D.prototype.fillRect;
          CanvasRenderingContext2D.prototype.fillRect = function (...given) {
            window.points += 1;
            fill.apply(this, given);
          };
        }"""
    )
    visible = page.page.locator(".t.now").first.bounding_box()
    for step in range(10):
        page.page.mouse.move(visible["x"] + 12 * step, visible["y"] + 5)
        page.settle()
    assert page.run("window.changes") < 10 * 250
    assert page.run("window.points") < 10 * 1500  # bars of the two maps, not 40,000 points
    page.run("document.querySelector('.text').scrollTop = 1e6")
    page.settle()
    assert page.run(count) < 16_000
