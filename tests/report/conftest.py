"""Fixtures of the report tests: one thread, and training runs on disk."""

from __future__ import annotations

import json

import pytest

from decoder2vec.report import figures
from toys.runs import make_record, make_results


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture
def write_run(tmp_path):
    """write_run(path, record, results) -> an encoder folder under tmp_path; files that are None are left out."""

    def write(path, record, results):
        folder = tmp_path / path
        folder.mkdir(parents=True)
        for name, document in (("encoder.json", {"head": None}), ("run.json", record), ("results.json", results)):
            if document is not None:
                (folder / name).write_text(json.dumps(document), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def complete_run(write_run):
    """complete_run(path, name) -> the folder of a run with all files."""
    return lambda path, name="step5": write_run(path, make_record(name), make_results(name))


@pytest.fixture
def saved_figures(monkeypatch):
    """The matplotlib figures saved so far."""
    saved = []
    save_png = figures.save_png
    monkeypatch.setattr(figures, "save_png", lambda figure, file: (saved.append(figure), save_png(figure, file)))
    return saved
