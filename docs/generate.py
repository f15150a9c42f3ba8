"""Write the generated parts of the documentation: `make docs`. The tests check that they are up to date.

- docs/architecture.md: the tree of the package, from module docstrings;
- docs/reference/cli.md: every command with its options, from the commands themselves;
- docs/reference/api.md: the public names, from the package's `__all__`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "decoder2vec"
_INDENT = "  "
_COLUMN = 34


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`])\. ", text)[0].rstrip(".")


def tree(folder: Path = SOURCE, depth: int = 0) -> Iterator[str]:
    """Lines of the package tree: files, then subpackages, each with its first sentence."""
    entries = sorted(folder.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
    for entry in entries:
        if entry.is_dir() and (entry / "__init__.py").is_file():
            yield _line(f"{entry.name}/", first_sentence(entry / "__init__.py"), depth)
            yield from tree(entry, depth + 1)
        elif entry.suffix == ".py" and entry.name not in ("__init__.py", "__main__.py"):
            yield _line(entry.name, first_sentence(entry), depth)


def _line(name: str, text: str, depth: int) -> str:
    return f"{_INDENT * (depth + 1) + name:<{_COLUMN}} {text}".rstrip()


def architecture_page(page: str) -> str:
    """The page with its generated tree."""
    lines = "\n".join(["```", "src/decoder2vec/", *tree(), "```"])
    return replace_between(page, "tree", lines)


def replace_between(page: str, name: str, content: str) -> str:
    """The page with the content between `<!-- generated: name -->` and `<!-- end -->` replaced."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


def cli_page() -> str:
    """Every command, argument and option."""
    from typer.main import get_command

    from decoder2vec.cli import app

    return "\n".join(_command(get_command(app), "d2v")) + "\n"


def _command(command: Any, name: str) -> Iterator[str]:
    level = min(len(name.split()), 3)
    yield f"{'#' * level} {name}\n\n{command.help}\n"
    parameters = [parameter for parameter in command.params if parameter.name not in ("help", *_COMPLETION)]
    for parameter in parameters:
        yield f"- `{parameter.opts[0]}`: {getattr(parameter, 'help', None) or ''}".rstrip()
    if parameters:
        yield ""
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from _command(subcommand, f"{name} {child}")


_COMPLETION = ("install_completion", "show_completion")


_MAIN = ("Encoder", "train", "sweep", "evaluate", "doctor", "merge", "prune", "Index", "match", "export", "report")
_API_INTRO = """# Python API

Everything here is imported from the top level: `import decoder2vec as d2v`. The main functions and classes come first,
the others follow by subject.
"""


def api_page() -> str:
    """The public names, for mkdocstrings: the main ones, then the others by the folder that defines them."""
    import decoder2vec

    lines = [_API_INTRO, "## Main functions and classes\n", *map(_api_entry, _MAIN)]
    folders: dict[str, list[str]] = {}
    for name in decoder2vec.__all__:
        if not name.startswith("__") and name not in _MAIN:
            folders.setdefault(decoder2vec.home_of(name).split(".")[1], []).append(name)
    for folder, names in sorted(folders.items()):
        lines += [f"## {folder.capitalize()}\n", *map(_api_entry, names)]
    return "\n".join(lines)


def _api_entry(name: str) -> str:
    import decoder2vec

    return f"### {name}\n\n::: {decoder2vec.home_of(name)}.{name}\n"


PAGES: dict[str, Callable[[str], str]] = {
    "architecture.md": architecture_page,
    "reference/cli.md": lambda _: cli_page(),
    "reference/api.md": lambda _: api_page(),
}


def main() -> None:
    """Write every generated page."""
    for name, generate in PAGES.items():
        file = DOCS / name
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(generate(old), encoding="utf-8")


if __name__ == "__main__":
    main()
