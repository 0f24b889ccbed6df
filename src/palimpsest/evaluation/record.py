"""What every result says about itself, whatever it measured: model, data, protocol, provenance.

A result is one JSON file: the name and version of its schema, the fields of :class:`Result`, and
the metrics of its kind. Each kind has a schema of its own, so that a file of one kind is never read
as another.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import torch
from rich.markup import escape
from rich.table import Table

from palimpsest.errors import InputError
from palimpsest.evaluation.inference import Precision, dtype_label, inference
from palimpsest.files import read_json, write_json
from palimpsest.models.language_model import LanguageModel
from palimpsest.provenance import code_commit, software_versions
from palimpsest.streams import plain

__all__ = [
    "Result",
    "TextResult",
    "context_note",
    "load_result",
    "provenance",
    "result_kinds",
]

R = TypeVar("R", bound="Result")
NOT_CAUSAL = "; not causal: its predictions see the tokens that they predict"
_kinds: dict[str, type[Result]] = {}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The fields that every kind of result has.

    Class attributes:
        SCHEMA: the name of the kind in files.
        SCHEMA_VERSION: raised when the meaning of a field changes.
        KIND: the kind in words.

    Attributes:
        model: the architecture's registered name.
        source: the folder the model was read from, or what the caller calls it; None if unsaid.
        parameters: number of parameters, tied ones counted once.
        state_bytes: bytes of one row's state after the longest stretch read.
        data: the file or folder that was read, or what was drawn.
        data_sha256: the hash of that data; each kind says over what.
        protocol: one line that says what was read and what was counted.
        settings: the same as fields.
        seed: the model's training seed where the caller knows it. A seed of the measurement is in
            ``settings``.
        dtype: the precision of the numbers.
        batch_size: rows of a forward.
        device: where it ran.
        threads: CPU threads of torch.
        commit: git commit of the package's source, "+changes" where it has uncommitted ones; None
            where it is installed and no checkout.
        versions: palimpsest, torch and python.
        wall_seconds: time of the measurement itself.
        causal: False if the model's predictions see tokens that they predict, which is printed
            with every figure; True in files written before this field existed.
    """

    SCHEMA: ClassVar[str] = ""
    SCHEMA_VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = ""

    model: str
    source: str | None
    parameters: int
    state_bytes: int
    data: str
    data_sha256: str
    protocol: str
    settings: dict[str, Any]
    seed: int | None
    dtype: str
    batch_size: int
    device: str
    threads: int
    commit: str | None
    versions: dict[str, str]
    wall_seconds: float
    causal: bool = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "SCHEMA" in cls.__dict__:
            _kinds[cls.SCHEMA] = cls

    def derived(self) -> dict[str, Any]:
        """Figures that follow from the fields, written for readers of the JSON alone."""
        return {}

    def rows(self) -> dict[str, str]:
        """The lines of :meth:`table` that belong to this kind."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The schema's name and version, all fields, the derived figures; infinities as None."""
        about = {"schema": self.SCHEMA, "schema_version": self.SCHEMA_VERSION}
        return {**about, **asdict(self), **_finite(self.derived())}

    def save(self, path: str | Path) -> Path:
        """Write JSON; a file of that name is replaced only when the new one is complete."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no such file, not a result, of another kind, or of another schema version
                (all are named).
        """
        data = read_json(Path(path), InputError)
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != cls.SCHEMA:
            other = _kinds.get(schema) if isinstance(schema, str) else None
            hint = "" if other is None else f"; its schema {schema} is that of {other.KIND}"
            raise InputError(
                f"{path}: is not an evaluation result of palimpsest ({cls.KIND}){hint}"
            )
        return cls._from_dict(data, path)

    @classmethod
    def _from_dict(cls: type[R], data: dict[str, Any], path: str | Path) -> R:
        if data.get("schema_version") != cls.SCHEMA_VERSION:
            raise InputError(
                f"{path}: schema {cls.SCHEMA} version {data.get('schema_version')!r}, this "
                f"palimpsest reads version {cls.SCHEMA_VERSION}; evaluate again"
            )
        known = {f.name for f in fields(cls)}
        optional = {f.name for f in fields(cls) if f.default is not MISSING}
        missing = sorted(known - optional - data.keys())
        if missing:
            raise InputError(f"{path}: missing fields {missing}; evaluate again")
        for name, annotation in get_type_hints(cls).items():
            if name in known & data.keys() and not _is_of(data[name], annotation):
                raise InputError(f"{path}: {name}={data[name]!r} is damaged; evaluate again")
        try:
            result = cls(**{name: data[name] for name in known & data.keys()})
            derived = result.derived()
        except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as failure:
            raise InputError(f"{path}: its rows are damaged ({failure}); evaluate again") from None
        unknown = sorted(data.keys() - known - {"schema", "schema_version", *derived})
        if unknown:
            raise InputError(f"{path}: unknown fields {unknown}; another version wrote it")
        result._check_derived(data, path)
        return result

    def _check_derived(self, data: dict[str, Any], path: str | Path) -> None:
        """Refuse figures that do not follow from the fields."""
        for name, value in _finite(self.derived()).items():
            if name in data and not _agree(data[name], value):
                raise InputError(
                    f"{path}: {name}={data[name]!r} contradicts the other fields, which give "
                    f"{value!r}; evaluate again"
                )

    def table(self) -> Table:
        """Everything, one field a line."""
        table = Table(
            show_header=False, title=escape(plain(self.source or self.model)), title_justify="left"
        )
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        rows = {
            "model": f"{self.model}, {self.parameters:,} parameters, "
            f"state {self.state_bytes:,} bytes" + ("" if self.causal else NOT_CAUSAL),
            "data": f"{self.data} (sha256 {self.data_sha256[:16]}…)",
            "protocol": self.protocol,
            **self.rows(),
            "numbers": f"{self.dtype}, batch {self.batch_size}, {self.device}, "
            f"{self.threads} threads",
            "seed": "not known" if self.seed is None else str(self.seed),
            "software": ", ".join(f"{k} {v}" for k, v in self.versions.items())
            + (f", commit {self.commit}" if self.commit else ""),
        }
        rows.setdefault("time", f"{self.wall_seconds:.1f} s")
        for name, value in rows.items():
            table.add_row(name, escape(plain(value)))
        return table


@dataclass(frozen=True, kw_only=True)
class TextResult(Result):
    """A result on text.

    Attributes:
        tokenizer: its name.
        tokenizer_fingerprint: sha256 over its definition.
    """

    tokenizer: str
    tokenizer_fingerprint: str


def _agree(written: Any, computed: Any) -> bool:
    """Whether two figures are equal up to rounding."""
    if isinstance(computed, dict):
        return (
            isinstance(written, dict)
            and written.keys() == {str(key) for key in computed}
            and all(_agree(written[str(key)], inner) for key, inner in computed.items())
        )
    if isinstance(computed, list | tuple):
        return (
            isinstance(written, list | tuple)
            and len(written) == len(computed)
            and all(map(_agree, written, computed))
        )
    if isinstance(computed, float) and isinstance(written, int | float):
        return math.isclose(written, computed, rel_tol=1e-9, abs_tol=1e-12)
    return bool(written == computed)


def _is_of(value: Any, annotation: Any) -> bool:
    """Whether a value read from JSON may stand in a field; only its outer type is looked at."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    for kind in kinds:
        origin = get_origin(kind) or kind
        if is_dataclass(origin):
            origin = dict
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return True
        if isinstance(origin, type) and isinstance(value, list if origin is tuple else origin):
            return origin is bool or not isinstance(value, bool)
    return False


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def result_kinds() -> dict[str, type[Result]]:
    """The class of each schema."""
    return dict(sorted(_kinds.items()))


def load_result(path: str | Path) -> Result:
    """Read a result of any kind.

    Raises:
        InputError: no such file, a schema that is not known (those that are get listed), or
            another version of one.
    """
    data = read_json(Path(path), InputError)
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or schema not in _kinds:
        raise InputError(
            f"{path}: schema {schema!r} is no result of palimpsest; known: {', '.join(_kinds)}"
        )
    return _kinds[schema]._from_dict(data, path)


def context_note(model: LanguageModel, length: int) -> str:
    """What the line of a protocol says about the model's window: "" where it changes nothing.

    Args:
        model: what is measured.
        length: the most tokens that one state reads.
    """
    note = model.describe_reading(length)
    return f"; {note}" if note else ""


def provenance(model: LanguageModel, precision: Precision, stretch: int) -> dict[str, Any]:
    """The fields of a :class:`Result` that follow from the model and the machine alone.

    Args:
        model: what was measured.
        precision: in which.
        stretch: the most tokens that one state has read.
    """
    with inference(model, precision):
        state_bytes = model.state_bytes(1, stretch)
    return {
        "state_bytes": state_bytes,
        "model": model.registry_name,
        "parameters": model.num_parameters(),
        "causal": model.causal,
        "dtype": dtype_label(model, precision),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "commit": code_commit(),
        "versions": software_versions(),
    }
