"""Configurations of models: frozen, keyword-only, with unknown keys refused."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from palimpsest.errors import ConfigError

__all__ = ["ModelConfig", "at_least", "between", "one_of", "positive", "probability"]

C = TypeVar("C", bound="ModelConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every language model has.

    Attributes:
        vocab_size: number of token ids.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        positive(self, "vocab_size")

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[C], fields: Mapping[str, Any], *, name: str = "") -> C:
        """Build from plain values.

        Raises:
            ConfigError: a field this architecture does not have, or a required one is missing.
        """
        known = {f.name: f for f in dataclasses.fields(cls)}
        label = f"model {name!r}" if name else cls.__name__
        for key in fields:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"{key}={fields[key]!r}: {label} has no such field{hint} "
                    f"(fields: {', '.join(known)})"
                )
        missing = [
            key
            for key, f in known.items()
            if f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
            and key not in fields
        ]
        if missing:
            raise ConfigError(f"{label} needs {', '.join(missing)}")
        return cls(**fields)


def positive(config: ModelConfig, *names: str) -> None:
    """Require whole numbers of at least 1.

    Raises:
        ConfigError: names the first field that is not.
    """
    for name in names:
        at_least(config, name, 1)


def at_least(config: ModelConfig, name: str, least: int) -> None:
    """Require a whole number.

    Raises:
        ConfigError: names the field and the least.
    """
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")


def between(config: ModelConfig, name: str, low: float, high: float) -> None:
    """Require a number above ``low`` and below ``high``.

    Raises:
        ConfigError: names the field and the bounds.
    """
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        raise ConfigError(f"{name}={value!r}: must be a number above {low:g} and below {high:g}")


def probability(config: ModelConfig, name: str) -> None:
    """Require a probability of dropping something: at least 0 and below 1.

    Raises:
        ConfigError: names the field.
    """
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ConfigError(f"{name}={value!r}: must be a number of at least 0 and below 1")


def one_of(config: ModelConfig, name: str, *choices: object) -> None:
    """Require one of some values.

    Raises:
        ConfigError: names the field and the choices.
    """
    if getattr(config, name) not in choices:
        raise ConfigError(
            f"{name}={getattr(config, name)!r}: must be {' or '.join(map(repr, choices))}"
        )
