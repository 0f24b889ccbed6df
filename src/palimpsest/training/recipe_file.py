"""Recipes as TOML: reading with every key checked, changing single values, writing back."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import sys
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from palimpsest.arguments import require_path, require_type
from palimpsest.errors import ConfigError
from palimpsest.streams import require_unicode
from palimpsest.training.recipe import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["dump_recipe", "list_recipes", "load_recipe", "parse_assignment", "recipe_from_dict"]


def list_recipes() -> dict[str, str]:
    """The built-in recipes and the first comment line of each."""
    folder = resources.files("palimpsest") / "recipes"
    found = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".toml"):
            first = entry.read_text(encoding="utf-8").partition("\n")[0]
            found[entry.name.removesuffix(".toml")] = first.removeprefix("#").strip()
    return dict(sorted(found.items()))


def load_recipe(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path_or_name: a TOML file, or the name of a built-in recipe (:func:`list_recipes`).
        overrides: dotted key → value, such as ``{"train.steps": 200}``. Another ``model.name``
            drops the recipe's own model fields.

    Raises:
        ConfigError: no such recipe, not TOML, an unknown key, a value of a wrong type or range.
    """
    require_path(path_or_name, "recipe", ConfigError)
    changes = {} if overrides is None else overrides
    wanted = 'pass a dictionary, such as {"train.steps": 200}'
    require_type(changes, "overrides", Mapping, wanted, ConfigError)
    text, where = _read(path_or_name)
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{where}: is nested too deeply") from None
    except ValueError as failure:  # TOMLDecodeError, or a number with too many digits
        raise ConfigError(f"{where}: is not valid TOML ({failure})") from None
    for key, value in changes.items():
        require_type(
            key, "a key of overrides", str, 'pass text, such as "train.steps"', ConfigError
        )
        _override(table, key, value)
    return recipe_from_dict(table, where=where)


def recipe_from_dict(table: Mapping[str, Any], *, where: str = "recipe") -> Recipe:
    """Build a recipe from nested tables.

    Args:
        table: the sections "model", "data", "optimizer", "train"; of "model" every key but ``name``
            is a field of the model.
        where: what the error messages call it.

    Raises:
        ConfigError: an unknown key or section, a value of a wrong type or range.
    """
    if not isinstance(table.get("model"), Mapping) or "name" not in table["model"]:
        raise ConfigError(f"{where}: needs a section [model] with a name")
    sections = dict(table)
    model = dict(table["model"])
    sections["model"] = {"name": model.pop("name"), "fields": model}
    hints = typing.get_type_hints(Recipe)
    _refuse_unknown(sections, hints, where, "section")
    built = {key: _section(hints[key], value, key, where) for key, value in sections.items()}
    return Recipe(**built)


def dump_recipe(recipe: Recipe) -> str:
    """A recipe as TOML text; :func:`load_recipe` reads it back equal."""
    lines: list[str] = []
    for section, values in dataclasses.asdict(recipe).items():
        flat = {"name": values["name"], **values["fields"]} if section == "model" else values
        tables = {k: v for k, v in flat.items() if isinstance(v, Mapping)}
        lines.append(f"[{section}]")
        lines += [f"{k} = {_toml(v)}" for k, v in flat.items() if k not in tables]
        for key, inner in tables.items():
            if inner:
                lines += ["", f"[{section}.{key}]"]
                lines += [f"{k} = {_toml(v)}" for k, v in inner.items()]
        lines.append("")
    return "\n".join(lines)


def parse_assignment(text: str) -> tuple[str, Any]:
    """One ``key=value`` of a command line; the value is TOML, or else the text as it stands.

    Raises:
        ConfigError: no equals sign.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{text!r}: must be key=value, such as optimizer.lr=3e-4")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def _read(path_or_name: str | Path) -> tuple[str, str]:
    path = Path(path_or_name)
    builtin = list_recipes()
    if str(path_or_name) in builtin:
        entry = resources.files("palimpsest") / "recipes" / f"{path_or_name}.toml"
        return entry.read_text(encoding="utf-8"), f"recipe {path_or_name}"
    if not path.exists() or path.is_dir():
        near = difflib.get_close_matches(str(path_or_name), builtin, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"recipe={str(path_or_name)!r}: neither a file nor a built-in recipe; {hint}"
            f"built in: {', '.join(builtin)}"
        )
    try:
        return path.read_text(encoding="utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({failure})") from None


def _override(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    if not parents:
        raise ConfigError(f"{key}={value!r}: name the section too, such as train.{key}")
    if key == "model.name" and table.get("model", {}).get("name") != value:
        table["model"] = {}
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}={value!r}: {parent!r} is a value, not a section")
        table = inner
    table[last] = value


def _refuse_unknown(keys: Any, known: Any, where: str, what: str) -> None:
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"{where}: no such {what} {key!r}; {hint}{what}s: {', '.join(known)}")


def _section(cls: Any, values: Any, label: str, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {label}={values!r} must be a section [{label}]")
    hints = typing.get_type_hints(cls)
    _refuse_unknown(values, hints, f"{where}, [{label}]", "key")
    return cls(**{k: _value(hints[k], v, f"{where}: {label}.{k}={v!r}") for k, v in values.items()})


def _value(kind: Any, value: Any, what: str) -> Any:
    """A TOML value as the type that its field declares."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(f"{what}: must be one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        items = [value] if isinstance(value, str | os.PathLike) else value
        fixed = arguments[-1] is not Ellipsis
        if not isinstance(items, list | tuple) or (fixed and len(items) != len(arguments)):
            count = f" of {len(arguments)}" if fixed else ""
            raise ConfigError(f"{what}: must be a list{count}")
        return tuple(_value(arguments[0], item, what) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        require_unicode(value, what.partition("=")[0], ConfigError)
    expected = Mapping if origin is not None else kind
    if not isinstance(value, expected) or (kind is not bool and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise ConfigError(f"{what}: must be {names.get(kind, 'a table')}")
    return dict(value) if expected is Mapping else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # TOML's basic strings and JSON's differ only in DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    raise ConfigError(f"{value!r}: cannot be written to a recipe")
