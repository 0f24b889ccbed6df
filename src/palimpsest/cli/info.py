"""``palimpsest info``: what is here, or one model in full."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import platform
import re
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from palimpsest._version import __version__
from palimpsest.cli.model_source import ModelSource, best_validation, find_model, names_a_folder
from palimpsest.cli.train import describe_result
from palimpsest.errors import CheckpointError, InputError
from palimpsest.files import read_json
from palimpsest.models import LanguageModel, build, list_models, list_presets
from palimpsest.models.registry import config_class
from palimpsest.ops import BackendUnavailableError
from palimpsest.ops.dispatch import dispatchers
from palimpsest.ops.threads import numba_missing
from palimpsest.streams import plain

__all__ = ["InfoArgs", "missing_backends", "run"]

PACKAGE = "palimpsest-lm"
NOT_SHOWN = ("dev",)  # extras for work on the library itself
STATE_AFTER = 1024  # tokens after which a growing state is given, as in the README's table
STATE_LENGTHS = (1, 1024, 131072)  # tokens after which a state is weighed


@dataclass(frozen=True)
class InfoArgs:
    """Show versions, backends, models and presets; or one model, preset or run in full.

    Example:

    palimpsest info runs/book
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME|RUN]")] = ""
    """A model's or preset's name, or the folder of a run, a checkpoint or a model."""

    json: bool = False
    """Print JSON instead of tables."""


def run(args: InfoArgs) -> int:
    """Carry out the command; 0 when done."""
    if not args.target:
        facts, show = everything(), _show_everything
    elif names_a_folder(args.target):
        facts, show = _trained(find_model(args.target)), _show_model
    elif args.target in list_presets():
        facts, show = _preset(args.target), _show_model
    elif args.target in list_models():
        facts, show = _architecture(args.target), _show_architecture
    else:
        raise InputError(
            f"{args.target!r}: neither a folder nor one of the models {', '.join(list_models())} "
            f"or presets {', '.join(list_presets())}"
        )
    if args.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        show(facts, Console())
    return 0


# -- facts ------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    """Versions, backends of each op, models, presets."""
    cuda = torch.cuda.is_available()
    return {
        "versions": {
            "palimpsest": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "devices": ["cpu"]
            + [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()) if cuda],
        },
        "extras": {
            extra: all(map(_installed, packages)) for extra, packages in optional_packages().items()
        },
        "numba_unusable": numba_missing() if importlib.util.find_spec("numba") else None,
        "backends": {
            op: {"available": list(d.available()), "missing": missing_backends(op)}
            for op, d in sorted(dispatchers().items())
        },
        "models": list_models(),
        "presets": {name: _size(name) for name in list_presets()},
    }


def optional_packages() -> dict[str, list[str]]:
    """The packages that each extra brings, from the package's own metadata.

    Empty if the package is not installed but run from its source.
    """
    try:
        about = importlib.metadata.metadata(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {
        extra: [] for extra in about.get_all("Provides-Extra") or [] if extra not in NOT_SHOWN
    }
    for requirement in about.get_all("Requires-Dist") or []:
        needed = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        if needed and extra and extra[1] in found:
            found[extra[1]].append(needed[0])
    return found


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def missing_backends(op: str) -> dict[str, str]:
    """The backends of an op that cannot run here, and why."""
    dispatcher = dispatchers()[op]
    reasons = {}
    for name in dispatcher.names():
        if name not in dispatcher.available():
            try:
                dispatcher.pick(name, lambda: "")
            except BackendUnavailableError as failure:
                reasons[name] = str(failure).partition(": ")[2]
    return reasons


def on_meta(name: str) -> LanguageModel:
    """A preset's model without memory for its weights."""
    with torch.device("meta"):
        return build(name)


def _size(name: str) -> dict[str, Any]:
    model, chosen = on_meta(name), list_presets()[name]
    return {
        "model": chosen.model,
        "parameters": model.num_parameters(),
        **_state_of_one_text(model),
        "note": chosen.note,
    }


def _state_of_one_text(model: LanguageModel) -> dict[str, Any]:
    """Bytes of the state of one text, and for one that grows, after how many tokens."""
    length = min(STATE_AFTER, model.max_length or STATE_AFTER)
    size = model.state_bytes(1, length)
    grows = size > model.state_bytes(1, 1)
    return {"state_bytes": size, "state_tokens": length if grows else None}


def _model_facts(model: LanguageModel) -> dict[str, Any]:
    return {
        "model": model.registry_name,
        "config": model.config.to_dict(),
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "causal": model.causal,
        "max_length": model.max_length,
        "trained_length": model.trained_length,
        "window": model.window or None,
        "state_bytes": {
            n: model.state_bytes(1, n) for n in STATE_LENGTHS if n <= (model.max_length or n)
        },
        "tensors": {name: list(shape) for name, shape in model.named_shapes()},
    }


def _preset(name: str) -> dict[str, Any]:
    chosen = list_presets()[name]
    return {"name": name, "note": chosen.note, **_model_facts(on_meta(name))}


def _trained(source: ModelSource) -> dict[str, Any]:
    facts = {"name": source.named, **_model_facts(source.load(torch.device("cpu")))}
    facts["folder"] = str(source.folder)
    if source.saved_tokenizer is not None:
        tokenizer = source.saved_tokenizer
        facts["tokenizer"] = {
            "name": tokenizer.name,
            "ids": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint(),
        }
    if source.run is not None:
        facts["training"] = {"step": source.step, **source.run}
        inside = source.folder.parent.name == "checkpoints"
        best = best_validation(source.folder.parent.parent) if inside else None
        if best is not None:
            facts["training"]["best"] = best
    else:
        written = read_json(source.folder / "config.json", CheckpointError)
        facts["written_by"] = f"palimpsest {written.get('palimpsest', 'of an unknown version')}"
    return facts


def _architecture(name: str) -> dict[str, Any]:
    fields = dataclasses.fields(config_class(name))
    return {
        "model": name,
        "fields": {f.name: None if f.default is dataclasses.MISSING else f.default for f in fields},
        "presets": [p for p, chosen in list_presets().items() if chosen.model == name],
    }


# -- tables -----------------------------------------------------------------------------------


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(plain(title)), title_justify="left", show_header=bool(columns))
    for column in columns or ("", ""):
        right = column in ("parameters", "state bytes", "number")
        table.add_column(
            column,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=column == "preset",  # a name is there to be copied
        )
    return table


def _row(table: Table, *cells: str) -> None:
    """A row of plain text: a path may hold markup of rich, or control characters."""
    table.add_row(*(escape(plain(cell)) for cell in cells))


def _show_everything(facts: dict[str, Any], console: Console) -> None:
    table = _table("software")
    for name, value in facts["versions"].items():
        _row(table, name, ", ".join(value) if isinstance(value, list) else str(value))
    for extra, there in facts["extras"].items():
        hint = f"not installed (pip install 'palimpsest-lm[{extra}]')"
        _row(table, f"extra {extra}", "installed" if there else hint)
    if facts["numba_unusable"]:
        _row(table, "numba", f"installed, but not used: {facts['numba_unusable']}")
    console.print(table)
    table = _table("backends", "op", "backend", "here")
    for op, backends in facts["backends"].items():
        for name in backends["available"]:
            _row(table, op, name, "yes")
        for name, reason in backends["missing"].items():
            _row(table, op, name, f"no: {reason}")
    console.print(table)
    _show_presets(facts["presets"], console)
    console.print(f"models: {', '.join(facts['models'])}", highlight=False)
    console.print("palimpsest info NAME shows one of them in full", highlight=False)


def _show_presets(presets: dict[str, dict[str, Any]], console: Console) -> None:
    """One preset on one or two lines: its note is too long for a column of a narrow terminal."""
    say = functools.partial(console.print, markup=False, highlight=False)
    say("presets (state: bytes of one text)")
    for name, p in presets.items():
        state = f"state {p['state_bytes']:,} B"
        if p["state_tokens"] is not None:
            state += f" after {p['state_tokens']:,} tokens"
        say(f"  {name}", style="bold")
        say(Padding(f"{p['model']}, {p['parameters']:,} parameters, {state}", (0, 0, 0, 4)))
        say(Padding(p["note"], (0, 0, 0, 4)))


def _show_model(facts: dict[str, Any], console: Console) -> None:
    table = _table(facts["name"])
    limits = ("max_length", "trained_length", "window")
    for name in ("model", "note", "folder", "dtype", "causal", *limits, "written_by"):
        if facts.get(name) is not None:
            _row(table, name, str(facts[name]))
    _row(table, "parameters", f"{facts['parameters']:,}")
    sizes = facts["state_bytes"]
    if len(set(sizes.values())) == 1:
        _row(table, "state", f"{next(iter(sizes.values())):,} bytes, for any length")
    else:
        grown = (f"{size:,} bytes after {n:,} tokens" for n, size in sizes.items())
        _row(table, "state", "; ".join(grown))
    if "tokenizer" in facts:
        t = facts["tokenizer"]
        _row(table, "tokenizer", f"{t['name']}, {t['ids']:,} ids, {t['fingerprint'][:16]}…")
    for name, value in facts["config"].items():
        _row(table, f"  {name}", str(value))
    console.print(table)
    if "training" in facts:
        _show_training(facts["training"], console)
    table = _table("parameters", "name", "shape", "number")
    for name, shape in facts["tensors"].items():
        number = torch.Size(shape).numel()
        _row(table, name, " × ".join(map(str, shape)), f"{number:,}")
    console.print(table)


def _show_training(training: dict[str, Any], console: Console) -> None:
    table = _table("training")
    recipe = training.get("recipe", {})
    steps = recipe.get("train", {}).get("steps")
    _row(table, "steps", f"{training['step']} of {steps}")
    if "best" in training:
        best = training["best"]
        _row(table, "best (RUN/best)", f"step {best['step']}, {describe_result(best)}")
    for name in ("preset", "seed", "precision"):
        _row(table, name, str(training.get(name)))
    start = training.get("init_from")
    if isinstance(start, dict):
        _row(table, "starts from", ", ".join(f"{k} {v}" for k, v in start.items()))
    for part in ("train", "validation"):
        data = training.get("data", {}).get(part)
        if data is not None and "paths" in data:  # a task draws its examples
            _row(table, f"{part} data", f"{', '.join(data['paths'])}, {data['bytes']:,} bytes")
            _row(table, "", f"sha256 {data['sha256']}")
    for i, session in enumerate(training.get("sessions", []), 1):
        said = ", ".join(f"{k} {v}" for k, v in session.items() if v is not None)
        _row(table, f"session {i}", said)
    for section in ("data", "optimizer", "train"):
        values = recipe.get(section, {})
        shown = ", ".join(f"{k}={v}" for k, v in values.items() if v not in ("", [], {}))
        _row(table, f"[{section}]", shown)
    console.print(table)


def _show_architecture(facts: dict[str, Any], console: Console) -> None:
    table = _table(f"{facts['model']}: fields", "field", "default")
    for name, default in facts["fields"].items():
        _row(table, name, "required" if default is None else str(default))
    console.print(table)
    console.print(f"presets: {', '.join(facts['presets']) or 'none'}", highlight=False)
