"""The structure of the package: which folder may import which, the size of files, the weight of the import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "decoder2vec"

LEVELS = [
    {"errors"},
    {"package"},
    {"progress"},
    {"storage"},
    {"tensor_files"},
    {"config"},
    {"maths"},
    {"backbone"},
    {"adapters"},
    {"text"},
    {"activations"},
    {"heads"},
    {"encoder_folder"},
    {"gold"},
    {"saved_encoder"},
    {"encoder"},
    {"reranker"},
    {"quick_encoder"},
    {"bulk"},
    {"bridge"},
    {"export"},
    {"base_model"},
    {"merging"},
    {"evaluation"},
    {"analysis", "search"},
    {"matching", "integrations", "relations", "choosing"},
    {"calibration"},
    {"report"},
    {"serving"},
    {"training"},
    {"cli"},
    {"__main__"},
]
"""From the bottom up: a folder imports itself and the ones below, not those on its own level."""

LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}

FILES = sorted(SOURCE.rglob("*.py"))
MODULE_FILES = [file for file in FILES if file != SOURCE / "__init__.py"]


def path_of(file):
    return str(file.relative_to(SOURCE))


def folder_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def imported_folders(file):
    """(line, folder) of every import of this package, also inside functions."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path_of(file)}:{node.lineno}: imports are absolute"
            top_level = node.module == "decoder2vec"
            names = [f"decoder2vec.{alias.name}" for alias in node.names] if top_level else [node.module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "decoder2vec" and "." in name:
                yield node.lineno, name.split(".")[1]


def test_package_is_found():
    assert len(FILES) > 20


@pytest.mark.parametrize("file", MODULE_FILES, ids=path_of)
def test_every_module_has_a_level(file):
    assert folder_of(file) in LEVEL


@pytest.mark.parametrize("file", MODULE_FILES, ids=path_of)
def test_modules_import_only_their_folder_or_lower_ones(file):
    importer = folder_of(file)
    for line, folder in imported_folders(file):
        assert folder in LEVEL, f"{path_of(file)}:{line} imports decoder2vec.{folder}, which has no level"
        allowed = folder == importer or LEVEL[folder] < LEVEL.get(importer, 0)
        assert allowed, f"{path_of(file)}:{line} ({importer}) imports {folder}"


def imported_modules(file):
    """Modules of this package that a file imports at load time: not inside functions, and not for types only."""
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "decoder2vec":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


MODULES = {"decoder2vec." + path_of(file).removesuffix(".py").replace("/", "."): file for file in MODULE_FILES}


def test_no_import_circle():
    remaining = {
        name: {other for other in imported_modules(file) if other in MODULES} for name, file in MODULES.items()
    }
    while loadable := [name for name, needed in remaining.items() if not needed & remaining.keys()]:
        for name in loadable:
            del remaining[name]
    assert remaining == {}


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_no_module_is_over_650_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 650


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_no_function_is_over_80_lines(file):
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > 80
    ]
    assert long == []


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_module_names_are_not_vague(file):
    assert not VAGUE_NAMES & {part.removesuffix(".py") for part in file.relative_to(SOURCE).parts}


@pytest.mark.parametrize("file", [file for file in FILES if folder_of(file) != "cli"], ids=path_of)
def test_only_the_cli_prints(file):
    lines = [
        node.lineno
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert lines == []


def test_json_is_parsed_in_one_place():
    """`storage.parse_json`, whose only error is ValueError; two modules run where this package is not installed."""
    modules = [path_of(file) for file in FILES if re.search(r"\bjson\.loads?\(", file.read_text(encoding="utf-8"))]
    assert sorted(modules) == ["export/layerwise_pooling.py", "export/reload.py", "storage.py"]


def test_import_loads_only_this_package_and_the_standard_library():
    """So that it takes about 20 ms, which bench/start_up.py measures."""
    code = (
        "import sys; before = set(sys.modules); import decoder2vec; added = set(sys.modules) - before; "
        "print(sorted(name for name in added if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['decoder2vec', 'decoder2vec.package']"
