"""The rooms of the package and what may stand in them."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "decoder2vec"

ROOMS = [
    {"errors"},
    {"version"},
    {"storage"},
    {"config"},
    {"maths"},
    {"backbone"},
    {"adapters"},
    {"text"},
    {"activations"},
    {"heads"},
    {"encoder"},
    {"bulk"},
    {"export"},
    {"recipes"},
    {"evaluation", "analysis", "search"},
    {"matching"},
    {"report"},
    {"serving"},
    {"training"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a room knows itself and those below, and not the room beside it."""

FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}

FILES = sorted(SOURCE.rglob("*.py"))
INSIDE = [file for file in FILES if file != SOURCE / "__init__.py"]


def name_of(file):
    return str(file.relative_to(SOURCE))


def room_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def rooms_imported(file):
    """(line, room) of every import of this package, wherever in the file it stands."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(file)}:{node.lineno}: imports are absolute"
            below = node.module == "decoder2vec"
            names = [f"decoder2vec.{alias.name}" for alias in node.names] if below else [node.module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "decoder2vec" and "." in name:
                yield node.lineno, name.split(".")[1]


def test_the_package_was_found():
    assert len(FILES) > 20


@pytest.mark.parametrize("file", INSIDE, ids=name_of)
def test_every_module_stands_in_a_known_room(file):
    assert room_of(file) in FLOOR


@pytest.mark.parametrize("file", INSIDE, ids=name_of)
def test_a_module_imports_only_its_own_room_or_lower_ones(file):
    own = room_of(file)
    for line, room in rooms_imported(file):
        if room.startswith("__"):  # `from decoder2vec import __version__`
            continue
        assert room in FLOOR, f"{name_of(file)}:{line} imports decoder2vec.{room}, which has no floor"
        assert room == own or FLOOR[room] < FLOOR.get(own, 0), f"{name_of(file)}:{line} ({own}) imports {room}"


def imported_modules(file):
    """Modules of this package that a file imports at once: not inside functions, and not for types only."""
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "decoder2vec":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


MODULES = {"decoder2vec." + name_of(file).removesuffix(".py").replace("/", "."): file for file in INSIDE}


def test_no_import_circle():
    waiting = {name: {other for other in imported_modules(file) if other in MODULES} for name, file in MODULES.items()}
    while free := [name for name, needed in waiting.items() if not needed & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert waiting == {}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_module_is_over_650_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 650


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_function_is_over_80_lines(file):
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > 80
    ]
    assert long == []


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_name_of_a_module_says_what_is_in_it(file):
    assert not NO_NAMES & {part.removesuffix(".py") for part in file.relative_to(SOURCE).parts}


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) != "cli"], ids=name_of)
def test_only_the_command_line_prints(file):
    lines = [
        node.lineno
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert lines == []


def run(code):
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return time.perf_counter() - started, done.stdout.strip()


def test_importing_the_package_loads_neither_torch_nor_numpy():
    heavy = ("torch", "transformers", "numpy", "scipy", "matplotlib", "tokenizers", "huggingface_hub")
    code = f"import sys, decoder2vec; print(sorted(set({heavy!r}) & set(sys.modules)))"
    assert run(code)[1] == "[]"


def test_importing_the_package_takes_less_than_150_milliseconds():
    bare = min(run("pass")[0] for _ in range(5))
    whole = min(run("import decoder2vec")[0] for _ in range(5))
    assert whole - bare < 0.15


def test_every_public_name_is_there_and_listed():
    code = (
        "import decoder2vec as d; names = [name for name in d.__all__ if getattr(d, name) is None]; "
        "print(names, sorted(d.__all__) == sorted(dir(d)), hasattr(d, 'no_such_name'))"
    )
    assert run(code)[1] == "[] True False"
