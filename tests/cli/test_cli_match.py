"""``palimpsest match``."""

from __future__ import annotations

import json
from collections.abc import Callable

import palimpsest

NAMES = ("gpnm", "transformerpp")


def test_a_table(cli: Callable) -> None:
    code, out, _ = cli("match", "--params", "0.3M", "--vocab", 100, *NAMES)
    assert code == 0
    for part in (*NAMES, "parameters", "deviation", "state", "FLOPs", "2,048", "%"):
        assert part in out
    for found in palimpsest.match(300_000, 100, NAMES):
        assert f"{found.parameters:,}" in out
        line = next(line for line in out.splitlines() if line.startswith(f"build('{found.name}'"))
        built = eval(line, {"build": palimpsest.build})
        assert built.num_parameters() == found.parameters


def test_json(cli: Callable) -> None:
    words = ("--params", "300k", "--vocab", 100, "--layers", 2, "--length", 64)
    facts = json.loads(cli("match", *words, "--json", "transformerpp").out)
    (found,) = palimpsest.match(300_000, 100, ["transformerpp"], n_layers=2, length=64)
    assert facts[0]["fields"] == found.fields
    assert facts[0]["flops_per_token"] == found.flops_per_token
    assert facts[0]["length"] == 64
    assert facts == json.loads(
        cli("match", "--params", "300_000", *words[2:], "--json", "transformerpp").out
    )


def test_a_shorter_longest_text_is_said(cli: Callable) -> None:
    out = cli("match", "--params", "300k", "--length", 4096, "transformer").out
    assert out.count("2,048") == 2 and "after 4,096 tokens" in out


def test_mistakes(cli: Callable) -> None:
    for words, message in (
        (("--params", "1G", "gpn"), "--params 1G"),
        (("--params", "1k", "gpn"), "--params 1000"),
        (("gpmn",), "did you mean 'gpn'"),
        (("--vocab", 50000, "--params", "100k", "gpn"), "the nearest has"),
    ):
        code, out, err = cli("match", *words)
        assert (code, out) == (2, "") and message in err, err
