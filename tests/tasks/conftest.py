from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data and golden vectors beside the checkout."""
    shared = Path(__file__).resolve().parents[2].parent / "shared"
    if not shared.is_dir():
        pytest.skip(f"{shared} is not here")
    return shared
