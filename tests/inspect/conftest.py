"""Inspections of small models, and their pages opened in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.inspect import Inspection, collect
from palimpsest.inspect.inspection import Heads, Retrieved, Series
from palimpsest.inspect.page import render_page
from palimpsest.inspect.tokens import cut_cells, token_label
from palimpsest.text import ByteTokenizer, Tokenizer
from tests.contract.configs import CONFIGS
from tests.inspect.letters import Letters, Words

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = 20_000
Page = Any

NASTY = (
    "</script><script>document.title = 'taken'</script> <!-- & <b>bold</b> \"'`${x} "
    "{{data}} \\u003c é🙂日\u202e\x00\x1b\r\n\ttab\n"
)


def look(
    name: str, text: str | list[str], label: str, tokenizer: Tokenizer | None = None
) -> Inspection:
    tokenizer = tokenizer or ByteTokenizer()
    torch.manual_seed(2)
    first = next(iter(CONFIGS[name].values()))
    model = palimpsest.build(name, **{**first, "vocab_size": tokenizer.vocab_size}).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    texts = [text] if isinstance(text, str) else text
    return collect(model, tokenizer, [tokenizer.encode(t) for t in texts], label=label)


@pytest.fixture(scope="session")
def nasty() -> Inspection:
    """A recurrent model and a text that tries to break out of the page."""
    return look("gpnm", NASTY * 3, "one <&> $x^")


@pytest.fixture(scope="session")
def other() -> Inspection:
    """Another model on the same text."""
    return look("transformerpp", NASTY * 3, "two")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (apt-get install chromium)")
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="session")
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
