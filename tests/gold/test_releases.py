"""Folders of every release since 0.2.0 are read as they were then; `test_folders.py` does the same for 0.1.0."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from decoder2vec.activations.extract import Extractor
from decoder2vec.bulk.plan import FORMAT as FOLDER_FORMAT
from decoder2vec.config import Reading
from decoder2vec.package import __version__
from decoder2vec.relations.matcher import MATCHER_FORMAT
from decoder2vec.reranker import RERANKER_FORMAT
from decoder2vec.search.index import IndexHeader
from toys.command import d2v
from toys.release import RELEASES, read_release, write_release

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
VERSIONS = sorted(folder.name for folder in RELEASES.iterdir()) if RELEASES.is_dir() else []


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """Run on one thread: the models are too small for more."""


def assert_close(actual, expected, path=""):
    """Assert equality, of floats up to the last digits: another processor sums in another order."""
    if isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-4, abs=2e-5, nan_ok=True), path
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), path
        for key, value in expected.items():
            assert_close(actual[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for index, value in enumerate(expected):
            assert_close(actual[index], value, f"{path}[{index}]")
    else:
        assert actual == expected, path


def test_this_release_has_a_folder():
    """`D2V_WRITE_GOLD=1 python -m pytest tests/gold/test_releases.py` writes it, before the release."""
    if os.environ.get("D2V_WRITE_GOLD"):
        assert __version__ not in VERSIONS, "gold folders are never overwritten"
        write_release(RELEASES / __version__)
    assert (RELEASES / __version__ / "recorded.json").is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_old_folders_give_what_they_gave(version, tmp_path):
    recorded = json.loads((RELEASES / version / "recorded.json").read_text(encoding="utf-8"))
    assert_close(read_release(RELEASES / version, tmp_path / "copy"), recorded)


@pytest.mark.parametrize("version", VERSIONS)
def test_old_results_make_a_report(version, tmp_path):
    sources = (RELEASES / version / "results", RELEASES / version / "encoder")
    d2v("report", *sources, "--out", tmp_path / "report")
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_old_folders_name_no_place_on_a_machine(version):
    for file in (RELEASES / version).rglob("*.json*"):
        assert not re.search(r"/(home|root|work|Users)/", file.read_text(encoding="utf-8")), file


def test_table_of_formats_is_current(backbone):
    """Its last column is this release; a number that changes in the code must change there, too."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text("utf-8").splitlines()]
    table = {row[0]: row for row in rows if len(row) > 2}
    releases = table["Written by"]
    assert releases[-1] == __version__ and set(VERSIONS) < set(releases)
    current = {name: row[-1] for name, row in table.items()}
    assert current["Reranker"] == str(RERANKER_FORMAT)
    assert current["Folders of parts of `d2v embed`"] == str(FOLDER_FORMAT)
    assert current["Matcher of relations"] == str(MATCHER_FORMAT)
    assert current["Index"] == str(IndexHeader.format)
    assert current["Latents store"] == str(Extractor(backbone("tiny-llama"), [Reading(1)]).space()["format"])
