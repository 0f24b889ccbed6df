"""Equal parameters: close, sensible, quick; and said where there is no such configuration."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.errors import ConfigError, InputError
from palimpsest.models import matching
from palimpsest.models.registry import model_class
from palimpsest.models.scaling import Scaling, head_width, rounded

ALL = palimpsest.list_models()
SIZES = [(100_000, 259), (1_000_000, 259), (130_000_000, 32000)]
MORE_SIZES = [(300_000, 259), (3_000_000, 259), (10_000_000, 259), (200_000_000, 32000)]


@pytest.mark.parametrize("name", ALL)
def test_every_architecture_has_a_rule(name: str) -> None:
    rule = model_class(name).scaling
    assert rule is not None
    assert list(rule.widths) == sorted(set(rule.widths))
    counts = []
    for width in rule.widths[:: max(1, len(rule.widths) // 6)][:5]:
        with torch.device("meta"):
            model = palimpsest.build(name, vocab_size=50, **rule.fields(width, 2))
        counts.append(model.num_parameters())
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("params", "vocab_size"),
    [*SIZES, *(pytest.param(*size, marks=pytest.mark.slow) for size in MORE_SIZES)],
)
@pytest.mark.parametrize("name", ALL)
def test_within_a_hundredth(name: str, params: int, vocab_size: int) -> None:
    (found,) = palimpsest.match(params, vocab_size, [name])
    with torch.device("meta"):
        model = palimpsest.build(name, **found.fields)
    assert found.name == name
    assert found.parameters == model.num_parameters()
    assert found.deviation == found.parameters / params - 1
    assert abs(found.deviation) <= 0.01
    assert found.length == 2048
    assert found.state_bytes == model.state_bytes(1, 2048)
    assert found.flops == model.flops(2048)
    assert found.flops_per_token == sum(found.flops.values()) / 2048


def test_the_presets_of_a_million() -> None:
    gpnm, transformerpp = palimpsest.match(1_000_000, 259, ["gpnm", "transformerpp"])
    near = {"d_state": 256, "d_emb": 64, "n_heads": 4, "d_key": 32, "d_val": 64, "n_layers": 1}
    assert near.items() <= gpnm.fields.items()
    assert {"d_model": 128, "n_layers": 5, "n_heads": 4}.items() <= transformerpp.fields.items()
    big = palimpsest.match(130_000_000, 32000, ["transformerpp"])[0].fields
    assert (big["d_model"], big["n_layers"], big["n_heads"]) == (768, 12, 12)


def test_a_number_of_layers() -> None:
    for found in palimpsest.match(1_000_000, 259, ["gpnm", "transformerpp"], n_layers=2):
        assert found.fields["n_layers"] == 2
        assert abs(found.deviation) <= 0.01


def test_several_take_little_time() -> None:
    """An eighth of a second each on a quiet machine; here with room for a busy one."""
    names = ["gpnm", "gpn", "triple-hybrid", "gated-hybrid", "transformerpp"]
    start = time.process_time()
    assert [m.name for m in palimpsest.match(1_000_000, 259, names)] == names
    assert time.process_time() - start < 10


def test_a_longest_text_bounds_the_length() -> None:
    (found,) = palimpsest.match(300_000, 259, ["transformer"], length=5000)
    assert found.length == 2048
    (found,) = palimpsest.match(300_000, 259, ["gpn"], length=5000)
    assert found.length == 5000


def test_no_configuration_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fields(width: int, layers: int) -> dict[str, Any]:
        return {"d_state": width, "d_emb": 8, "d_ffn": 8, "n_layers": layers}

    coarse = Scaling(widths=(100, 1000), fields=fields, layers=lambda width: 1)
    monkeypatch.setattr(model_class("gpn"), "scaling", coarse)
    with pytest.raises(ConfigError, match=r"params=500,000: no gpn within 1.0% .* d_state=1?0"):
        palimpsest.match(500_000, 259, ["gpn"])
    monkeypatch.setattr(model_class("gpn"), "scaling", None)
    with pytest.raises(InputError, match="'gpn': declare `scaling = "):
        palimpsest.match(500_000, 259, ["gpn"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": 99_999}, "params=99999: must be .* from 100,000 to 200,000,000"),
        ({"params": 1e6}, "params=1000000.0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"length": 0}, "length=0"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"names": ["gpn", "gpmn"]}, "'gpmn': no such architecture; did you mean 'gpn'"),
        ({"params": 100_000, "vocab_size": 50_000, "names": ["gpn"]}, "the nearest has"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    call = {"params": 300_000, "vocab_size": 259, "names": ["gpn"], **change}
    with pytest.raises((InputError, ConfigError), match=message):
        palimpsest.match(call.pop("params"), call.pop("vocab_size"), call.pop("names"), **call)


def test_depth_is_extrapolated_exactly() -> None:
    """Two shallow models tell the parameters of a deep one."""
    rule = model_class("gated-hybrid").scaling
    assert rule is not None
    search = matching._Search("gated-hybrid", rule, 300_000, 259)
    fields = {"vocab_size": 259, **rule.fields(40, 7)}
    assert search.count(fields) == search.built(fields).num_parameters()


def test_helpers() -> None:
    assert (rounded(683, 8), rounded(1, 8), rounded(12, 8)) == (680, 8, 16)
    assert [head_width(w) for w in (64, 128, 511, 512)] == [16, 32, 32, 64]
