"""The documentation is run: Python blocks, command lines, links; generated pages are up to date."""

from __future__ import annotations

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from decoder2vec.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = tuple(get_command(app).commands)
GROUPS = ("analyze", "data", "cache")


def path_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def load_docs_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, site_hooks = load_docs_module("generate"), load_docs_module("site_hooks")
PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=path_of)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch, quick_exports):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(page, "python"))
    small = re.sub("smollm2-135m(-general)?", "tiny-llama", source).replace("layer=28", "layer=3")
    exec(compile(small, page.name, "exec"), {})


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=path_of)
def test_examples_import_from_the_top_level(page):
    assert not re.findall(
        r"^\s*(?:from|import) decoder2vec\.(?!integrations\.).*", "\n".join(blocks(page, "python")), re.M
    )


@cache
def help_of(*command):
    return CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_command_lines_name_existing_commands_and_options(page):
    for line in re.findall(r"^(?:\$ )?d2v ([a-z].*)$", page.read_text(encoding="utf-8"), re.M):
        words = shlex.split(line, comments=True)
        assert words[0] in COMMANDS, line
        command = words[: 2 if words[0] in GROUPS else 1]
        help_text = help_of(*command)
        for word in words:
            if word.startswith("--"):
                assert word in help_text, f"{page.name}: {line}: no option {word}"


@pytest.mark.parametrize("name", ["README.md", "docs/guide/quickstart.md"])
def test_commands_of_the_first_pages_overwrite_nothing(name):
    """Their commands are run in the order given."""
    page = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("d2v ")]
    outputs = [output.rstrip("/") for line in lines for output in re.findall(r"--(?:out|json) (\S+)", line)]
    assert outputs and len(outputs) == len(set(outputs))


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_relative_links_lead_to_files(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:", "mailto:", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{path_of(page)} links to {target}"


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_current(name):
    """`make docs` writes them."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == generate.PAGES[name](page)


def test_every_promise_names_tests_that_exist():
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    promises = [line for line in page.splitlines() if line.startswith("| ") and line != "| Promise | Tests |"]
    assert len(promises) > 10
    for promise in promises:
        tests = re.findall(r"\[`([\w/]+\.py)::(test_\w+)`\]\(([^)]+)\)", promise)
        assert len(tests) == promise.count("::") > 0, promise
        for file, name, target in tests:
            assert target == f"../tests/{file}", promise
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_site_has_no_links_to_tests():
    """They are for readers of the repository: the site has no such files."""
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    shown = site_hooks.on_page_markdown(page)
    assert shown.replace("](formats.md)", "").count("](") == 0
    assert shown.count("`test_storage.py::test_error_of_the_disk_names_the_file`") == 1
    guide = "[FREEZE](../studies/freeze.md)"
    assert site_hooks.on_page_markdown(guide) == guide
