"""The files of the page, read as they are: no browser needed."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from toys.page_stub import PAGE

FILES = sorted(PAGE.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


class Tags(HTMLParser):
    """All start tags with their attributes, and what stands in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.inline = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def page():
    tags = Tags()
    tags.feed((PAGE / "index.html").read_text(encoding="utf-8"))
    return tags


def test_everything_the_page_names_is_there(page):
    named = [given[key] for _, given in page.tags for key in ("src", "href") if given.get(key)]
    own = [name for name in named if not name.startswith("#")]
    assert len(own) >= 4
    assert [name for name in own if not (PAGE.parent / name).is_file()] == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_script_imports_only_what_is_there(file):
    names = re.findall(r"from \"\./([a-z_]+\.js)\"", file.read_text(encoding="utf-8"))
    assert [name for name in names if not (PAGE / name).is_file()] == []


def test_nothing_stands_in_the_page_that_a_strict_content_security_policy_forbids(page):
    assert page.inline == []
    forbidden = [key for _, given in page.tags for key in given if key == "style" or key.startswith("on")]
    assert forbidden == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_names_another_host(file):
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://|//[a-z]+\.", text) == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_data_never_becomes_markup_or_code(file):
    text = file.read_text(encoding="utf-8")
    words = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage|\.cookie"
    assert re.findall(words, text) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_is_over_300_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300


def test_every_id_stands_there_once_and_every_reference_leads_somewhere(page):
    ids = [given["id"] for _, given in page.tags if "id" in given]
    assert len(ids) == len(set(ids))
    keys = ("for", "aria-controls", "aria-labelledby", "aria-describedby")
    named = [given[key] for _, given in page.tags for key in keys if key in given]
    assert set(named) <= set(ids)


def test_the_files_travel_with_the_package():
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["decoder2vec"]
    names = [f"serving/page/{file.name}" for file in FILES]
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
