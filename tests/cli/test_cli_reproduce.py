"""``palimpsest reproduce`` and ``palimpsest compare`` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.cli.compare import parse_size
from palimpsest.errors import ConfigError
from palimpsest.reproduce import list_tables


def test_without_a_table_the_tables_are_listed(cli: Callable) -> None:
    code, out, _ = cli("reproduce")
    assert code == 0 and all(f"  {name} " in out for name in list_tables())


def test_an_unknown_table_lists_those_that_exist(cli: Callable) -> None:
    code, _, err = cli("reproduce", "generics")
    assert code == 2 and "did you mean 'generic'?" in err and "recall-hybrid" in err


def test_a_missing_file_says_where_to_get_it(cli: Callable) -> None:
    code, _, err = cli("reproduce", "budget", "--quick")
    assert code == 2 and "--train is not given" in err and "6707892f" in err
    assert err.count("\n") == 1


def test_a_quick_table_without_data(cli: Callable, tmp_path: Path) -> None:
    code, out, _ = cli("reproduce", "flops", "--quick", "--out", tmp_path / "out")
    assert code == 0 and "| Transformer |" in out and "Quick run" in out
    assert {"table.md", "table.csv", "results.json"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }


def test_the_full_scale_writes_recipes(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, _ = cli("reproduce", "grounded", "--scale", "full", "--out", tmp_path)
    assert code == 0 and "a CUDA GPU" in out and "--tokenizer" in out
    assert len(list((tmp_path / "recipes").glob("*.toml"))) == 5
    code, _, err = cli("reproduce", "generic", "--scale", "full")
    assert code == 2 and "one scale only" in err


def test_compare_names_its_mistakes(cli: Callable, tmp_path: Path) -> None:
    code, _, err = cli("compare", "gpnm", "--train", tmp_path / "a", "--valid", tmp_path / "b")
    assert code == 2 and "no such file" in err
    assert [parse_size(text) for text in ("300k", "0.3M", "1G", "5")] == [
        300_000, 300_000, 1_000_000_000, 5,
    ]  # fmt: skip
    for wrong in ("many", "inf", "nan", "0", "0.1", "-1M"):
        with pytest.raises(ConfigError, match=f"'{wrong}'"):
            parse_size(wrong)
