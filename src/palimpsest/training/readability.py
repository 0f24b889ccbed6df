"""One line about the text that a model generates after a very short training."""

from __future__ import annotations

from typing import Any

__all__ = ["READABLE_BYTES", "readability_note"]

# The demo's models of 1 M parameters generate words after 500 steps of 2,048 bytes.
READABLE_BYTES = 1_000_000


def readability_note(run: dict[str, Any], step: int | None) -> str | None:
    """What to expect of a model's text.

    Args:
        run: the contents of a run's ``run.json``.
        step: optimizer steps done; None if unknown.

    Returns:
        One line, or None for a task, an unknown amount, or a model that has read enough.
    """
    recipe, data = run.get("recipe", {}), run.get("data", {}).get("train")
    if step is None or not data or not data.get("tokens"):
        return None
    tokens = step * recipe["train"]["batch_size"] * recipe["data"]["seq_len"]
    read = round(tokens * data["bytes"] / data["tokens"])
    if read >= READABLE_BYTES:
        return None
    return (
        f"note: this model has read {read:,} bytes in training; the text it generates becomes "
        f"readable after about {READABLE_BYTES:,} bytes (more --steps)"
    )
