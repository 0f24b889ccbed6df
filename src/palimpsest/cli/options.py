"""The options of a command in messages: as the user typed them, and each value once.

The library names its own arguments (``seq_len=0: must be at least 1``), recipes their keys
(``data.seq_len``). On the command line the same value is ``--seq-len 0``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from palimpsest.errors import InputError

__all__ = ["as_typed", "check_values_differ"]

_SECTION = r"(?:(?:data|train|optimizer|model)\.)?(?:task_fields\.)?"
_VALUE = r"\[[^\]]*\]|\([^)]*\)|'[^' ]*'|"


def as_typed(message: str, args: Any, names: Mapping[str, str]) -> str:
    """A message in which arguments of the library are options of a command.

    Args:
        message: of an error that the library raised.
        args: the command's arguments, a dataclass.
        names: arguments and recipe keys whose option has another name: that of its field.

    Returns:
        The message; a key of a recipe is left as it is unless its option was given.
    """
    fields = {f.name for f in dataclasses.fields(args) if not _positional(f)} - {"set", "json"}
    options = {**{name: name for name in fields}, **names}
    known = "|".join(re.escape(name) for name in sorted(options, key=len, reverse=True))

    def shown(found: re.Match[str]) -> str:
        section, name, value = found["section"], found["name"], found["value"]
        field = options[name]
        given = getattr(args, field) not in (None, "", ())
        if (section or "." in name) and not given:
            return found[0]
        if found["equals"] is None:  # a plain word may be English
            return f"--{field.replace('_', '-')}" if "_" in name or section else found[0]
        words = [word.strip().strip("'") for word in value.strip("[]()'").split(",")]
        return " ".join([f"--{field.replace('_', '-')}", *(word for word in words if word)]) + (
            "" if value else " "
        )

    pattern = (
        rf"(?<![\w.\-'\"/])(?P<section>{_SECTION})(?P<name>{known})(?![\w.]\w|\()"
        rf"(?:(?P<equals>=)(?P<value>{_VALUE})|(?![\w=]))"
    )
    return re.sub(pattern, shown, message) if known else message


def check_values_differ(args: Any) -> None:
    """Refuse a list-valued option that names a value twice, which would be measured twice.

    Raises:
        InputError: the option, its values and the one that is repeated.
    """
    for field in dataclasses.fields(args):
        values = getattr(args, field.name)
        if not isinstance(values, tuple):
            continue
        # of key=value only the keys must differ
        keys = [v.partition("=")[0].strip() if field.name == "set" else v for v in values]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            option = "" if _positional(field) else f"--{field.name.replace('_', '-')} "
            raise InputError(
                f"{option}{' '.join(map(str, values))}: {twice} is given twice; give each once"
            )


def _positional(field: dataclasses.Field[Any]) -> bool:
    return "tyro.conf.Positional" in str(field.type)
