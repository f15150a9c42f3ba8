"""Static checks of the page's files, without a browser."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from toys.page_stub import PAGE_FOLDER, THEME_FILE

FILES = sorted(PAGE_FOLDER.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


class Tags(HTMLParser):
    """Collects all start tags with their attributes, and inline scripts and styles."""

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
    tags.feed((PAGE_FOLDER / "index.html").read_text(encoding="utf-8"))
    return tags


def test_every_file_that_the_page_links_exists(page):
    links = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if attributes.get(key)]
    files = [link for link in links if not link.startswith("#")]
    assert len(files) >= 4
    assert THEME_FILE.is_file() and files.pop(files.index(f"page/{THEME_FILE.name}"))
    assert [name for name in files if not (PAGE_FOLDER.parent / name).is_file()] == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_import_only_existing_files(file):
    names = re.findall(r"from \"\./([a-z_]+\.js)\"", file.read_text(encoding="utf-8"))
    assert [name for name in names if not (PAGE_FOLDER / name).is_file()] == []


def test_page_conforms_to_a_strict_security_policy(page):
    assert page.inline == []
    keys = [key for _, attributes in page.tags for key in attributes]
    forbidden = [key for key in keys if key == "style" or key.startswith("on")]
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


def test_ids_are_unique_and_references_exist(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    keys = ("for", "aria-controls", "aria-labelledby", "aria-describedby")
    references = [attributes[key] for _, attributes in page.tags for key in keys if key in attributes]
    assert set(references) <= set(ids)


def test_files_are_part_of_the_package():
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["decoder2vec"]
    names = [f"serving/page/{file.name}" for file in FILES]
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
