"""The page in a browser: what a reader sees and does. Needs playwright and chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.inspect import Inspection
from palimpsest.inspect.inspection import Heads, Retrieved, Series
from palimpsest.inspect.page import render_page
from palimpsest.inspect.tokens import cut_cells, token_label
from palimpsest.text import ByteTokenizer
from tests.inspect.conftest import look
from tests.inspect.letters import Letters, Words

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = 20_000
Page = Any


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (apt-get install chromium)")
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory, nasty: Inspection, other: Inspection
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    long = long_inspection()
    texts = ["the first is short", "nothing is the second"]
    apart = [look("gpn", texts, "a", Letters()), look("gpn", texts, "b", Words())]
    written = {}
    for name, inspections in {
        "one": [nasty],
        "two": [nasty, other],
        "apart": apart,
        "long": [long],
        "long-two": [long, replace(long, label="another")],
    }.items():
        written[name] = folder / f"{name}.html"
        written[name].write_text(render_page(inspections, f"page {name}"), encoding="utf-8")
    return written


def long_inspection() -> Inspection:
    """Made up: a text of 20,000 tokens with every panel."""
    random, tokenizer = np.random.default_rng(0), ByteTokenizer()
    line = "A line of text that goes on for some time, é and then ends.\n"
    text = (line * (LONG // len(line.encode()) + 1)).encode()[:LONG].decode(errors="ignore")
    ids = tokenizer.encode_array(text.ljust(len(text) + LONG - len(text.encode())))
    top = np.stack([ids, *(random.integers(0, 256, (4, LONG)))], 1)
    lags = random.integers(1, 90, (LONG, 3))
    places = np.arange(LONG)[:, None] - lags
    return Inspection(
        label="made up",
        facts={"model": "none"},
        ids_N=ids,
        cells=cut_cells(tokenizer, ids),
        document_starts=(0,),
        surprise_N=random.gamma(1.5, 2.0, LONG).astype(np.float32),
        entropy_N=random.gamma(1.5, 2.0, LONG).astype(np.float32),
        rank_N=np.ones(LONG, np.int32),
        top_ids_NP=top.astype(np.int32),
        top_probabilities_NP=np.full((LONG, 5), 0.2, np.float32),
        labels={i: token_label(tokenizer, i) for i in range(256)},
        trajectory="state.predicted",
        points_N2=np.cumsum(random.normal(size=(LONG, 2)), 0).astype(np.float32),
        shares=(0.4, 0.2),
        gates=(Series("gate.ground", "a gate", random.random(LONG).astype(np.float16)),),
        heads=tuple(
            Heads(title, "", kind, (-random.random((LONG, 7))).astype(np.float16), lives, 5000)
            for title, kind, lives in (
                ("write β", "write", ()),
                ("retention", "retention", (1.0, 2.0, 4.0, 80.0, 500.0, None, 3.0)),
            )
        ),
        retrieved=(
            Retrieved(
                "2",
                np.where(places >= 0, places, -1).astype(np.int32),
                np.full((LONG, 3), 0.3, np.float16),
            ),
        ),
        missing=("Something is not here.",),
    )


class Opened:
    """A page, and what it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")
        self.settle()
        assert self.asked == [path.as_uri()]

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def token(self, view: int = 0) -> str:
        text: str = self.page.locator(".token-head").nth(view).inner_text()
        return text

    def overlay(self, view: int = 0) -> str:
        return str(
            self.run(f"document.querySelectorAll('.plot canvas + canvas')[{view}].toDataURL()")
        )


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    made: list[Opened] = []

    def open_page(name: str, width: int = 1280, scheme: str = "light") -> Opened:
        made.append(Opened(browser, pages[name], width, scheme))
        return made[-1]

    yield open_page
    for one in made:
        one.context.close()
        assert one.said == []


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
    button = page.page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
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
