"""The documentation is executed: Python blocks run, command lines parse, and the help text is the real one."""

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from decoder2vec.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VERBS = ("pull", "doctor", "sweep", "train", "report", "similarity", "embed", "eval", "cache", "demo", "data", "export")
VERBS += ("index", "search", "tune", "match", "serve")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(page, "python"))
    small = source.replace("smollm2-135m", "tiny-llama").replace("layer=28", "layer=3")
    exec(compile(small, page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_name_real_verbs_and_options(page):
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^(?:\$ )?d2v ([a-z].*)$", text, re.M):
        words = shlex.split(line, comments=True)
        assert words[0] in VERBS, line
        verb = words[: 2 if words[0] in ("data", "cache") else 1]
        shown = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        for word in words:
            if word.startswith("--"):
                assert word in shown, f"{page.name}: {line}: no option {word}"


def test_help_page_is_current():
    """docs/cli.md lists every verb, argument and option; D2V_WRITE_DOCS=1 writes it anew."""
    page, expected = ROOT / "docs" / "cli.md", "\n".join(help_page(get_command(app), "d2v"))
    if os.environ.get("D2V_WRITE_DOCS"):
        page.write_text(expected, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == expected


def help_page(command, name):
    """Markdown from the commands themselves, so that it does not depend on how a terminal draws them."""
    yield f"{'#' if name == 'd2v' else '##'} {name}\n\n{command.help}\n"
    for parameter in getattr(command, "params", []):
        if parameter.name != "help":
            yield f"- `{parameter.opts[0]}`: {getattr(parameter, 'help', None) or ''}"
    yield ""
    for child, verb in getattr(command, "commands", {}).items():
        yield from help_page(verb, f"{name} {child}")
