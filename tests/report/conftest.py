"""Fixtures of the report tests: one thread, and training runs on disk."""

from __future__ import annotations

import pytest

from decoder2vec.report import figures
from toys.runs import make_record, make_results
from toys.runs import write_run as save_run


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture
def write_run(tmp_path):
    """write_run(path, record, results) -> an encoder folder under tmp_path; files that are None are left out."""

    return lambda path, record, results: save_run(tmp_path / path, record, results)


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
