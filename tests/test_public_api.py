"""The public API: every name of the top level is found, typed, documented and shown by an example that runs."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import decoder2vec
from toys.docstrings import run_examples

NAMES = [name for name in decoder2vec.__all__ if name != "__version__"]
FUNCTIONS = ["doctor", "evaluate", "export", "match", "merge", "prune", "report", "sweep", "train"]
"""The main functions; `Encoder` and `Index` are the main classes."""


def public(name):
    """A public object, imported from the module that defines it."""
    return getattr(import_module(decoder2vec.home_of(name)), name)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_found(name):
    assert callable(getattr(decoder2vec, name))
    assert f"{decoder2vec.home_of(name)}.".startswith("decoder2vec.")


def test_public_names_are_listed_once_and_in_dir():
    assert len(set(decoder2vec.__all__)) == len(decoder2vec.__all__)
    assert dir(decoder2vec) == sorted(decoder2vec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        decoder2vec.no_such_name  # noqa: B018


def test_names_for_type_checkers_equal_those_at_run_time():
    tree = ast.parse(Path(decoder2vec.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == {name: decoder2vec.home_of(name) for name in NAMES}


@pytest.mark.parametrize("name", ["export", "report"])
@pytest.mark.parametrize("first", ["", "import decoder2vec.{name}, decoder2vec.{name}.{module}; "])
def test_packages_named_like_functions_are_callable(name, first, quick_python):
    """Whether or not the package was imported before."""
    module = decoder2vec.home_of(name).rpartition(".")[2]
    code = f"{first.format(name=name, module=module)}import decoder2vec; decoder2vec.{name}()"
    assert f"TypeError: {name}() missing" in quick_python.run(code).stderr


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_typed_and_documented(name):
    signature = inspect.signature(public(name))
    section = inspect.getdoc(public(name)).partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^ {4}(\w+): ", section, re.M) == list(signature.parameters)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, "Encoder", "Index", "load_encoder", "measure_dimension", "create_app", "Projector"]
)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "import decoder2vec as d2v" in public(name).__doc__
    run_examples(public(name))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_lists_commands_and_options(shell):
    def complete(*words):
        line = {
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": " ".join(words),
        }
        environment = {
            **os.environ,
            **line,
            "_D2V_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        command = [sys.executable, "-c", "import sys; sys.argv = ['d2v']; from decoder2vec.cli import main; main()"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout

    assert "train" in complete("d2v", "tr") and "search" not in complete("d2v", "tr")
    assert "--backbone" in complete("d2v", "train", "--ba")
