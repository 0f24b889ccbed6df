"""The plot is a PNG of what the metrics say."""

from __future__ import annotations

import json
import sys

import pytest

from palimpsest import InputError, PalimpsestError
from palimpsest.training import plot_runs, read_metrics
from palimpsest.training.log import MetricsLog

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def make_run(tmp_path):
    """A run's folder as ``train`` leaves it, without training."""

    def make(name, fingerprint="f1", rows=60, accuracy=False, bits=True):
        folder = tmp_path / name
        folder.mkdir()
        data = {"tokenizer": {"fingerprint": fingerprint}} if fingerprint else {"chance": 0.125}
        meta = {
            "model": "gpnm",
            "preset": None,
            "parameters": 70_916,
            "seed": 3,
            "precision": "fp32",
            "data": data,
            "data_label": "words.txt",
        }
        (folder / "run.json").write_text(json.dumps(meta))
        log = MetricsLog(folder)
        for step in range(1, rows + 1):
            row = {"step": step, "tokens": 64 * step, "loss": 5.0 / step}
            log.add({"kind": "train", **row})
            if step % 20 == 0:
                extra = {"bits_per_byte": 7.0 / step} if bits else {}
                if accuracy:
                    extra["accuracy"] = 0.5
                    extra["accuracy_by_pairs"] = {"2": 0.6, "4": 0.4}
                log.add({"kind": "validation", **row, **extra})
        log.close()
        return folder

    return make


@pytest.fixture
def figures(monkeypatch):
    """The figures saved, to look inside."""
    from matplotlib.figure import Figure

    saved = []
    plain = Figure.savefig

    def savefig(self, *args, **kwargs):
        saved.append(self)
        return plain(self, *args, **{**kwargs, "dpi": 30})

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def test_one_run(make_run, figures, tmp_path):
    path = plot_runs([make_run("one")], tmp_path / "loss.png")
    assert path.read_bytes().startswith(PNG)
    (panel,) = figures[0].axes
    assert panel.get_title() == "gpnm (0.07 M), words.txt, seed 3, fp32"
    assert panel.get_xlabel() == "tokens read" and "nats" in panel.get_ylabel()
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert list(lines["validation"].get_xdata()) == [1280, 2560, 3840]


def test_runs_with_two_tokenizers_are_compared_in_bits_per_byte(make_run, figures, tmp_path):
    runs = [make_run("bytes"), make_run("words", fingerprint="f2")]
    plot_runs(runs, tmp_path / "both.png")
    (panel,) = figures[0].axes
    assert "bits per byte" in panel.get_ylabel()
    assert len({line.get_color() for line in panel.get_lines()}) == 2


def test_tasks_get_a_panel_of_accuracy(make_run, figures, tmp_path):
    plot_runs([make_run("task", fingerprint=None, accuracy=True)], tmp_path / "task.png")
    assert "accuracy" in figures[0].axes[1].get_ylabel()


def test_what_cannot_be_plotted_is_said(make_run, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="at least one"):
        plot_runs([], tmp_path / "x.png")
    with pytest.raises(InputError, match=r"run\.json"):
        plot_runs([tmp_path], tmp_path / "x.png")
    runs = [make_run("text"), make_run("task", fingerprint=None)]
    with pytest.raises(InputError, match="no common measure"):
        plot_runs(runs, tmp_path / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PalimpsestError, match=r"pip install 'palimpsest-lm\[plot\]'"):
        plot_runs(runs[:1], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_metrics_with_a_broken_line_are_refused_and_a_cut_one_is_left_out(make_run):
    run = make_run("one", rows=2)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tr')
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    with open(run / "metrics.jsonl", "a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl:3"):
        read_metrics(run)
