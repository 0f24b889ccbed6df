"""What ``palimpsest.analysis`` promises is there."""

from __future__ import annotations

import pytest

import palimpsest.analysis


def test_every_promised_name_is_there() -> None:
    missing = [n for n in palimpsest.analysis.__all__ if not hasattr(palimpsest.analysis, n)]
    assert not missing


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'measure_nothing'"):
        palimpsest.analysis.measure_nothing  # noqa: B018
