"""Code in a model folder is never run, and nobody is asked whether it may be: the texts on stdin would answer."""

from __future__ import annotations

import ast
import io
import json
import shutil
from pathlib import Path

import pytest

import decoder2vec
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError

SOURCE = Path(decoder2vec.__file__).parent
LOADERS = {"AutoConfig", "AutoTokenizer", "AutoModel", "AutoModelForCausalLM"}
METHODS = {"from_pretrained", "from_config"}
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaModel):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def answers_yes(monkeypatch):
    """Standard input that would agree to everything."""
    stdin = io.StringIO("y\n" * 9)
    monkeypatch.setattr("sys.stdin", stdin)
    yield
    assert stdin.tell() == 0, "a text was read as an answer"


def folder_with_code(tmp_path, file, changes):
    folder = Path(shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model"))
    (folder / "own.py").write_text(CODE.format(mark=str(tmp_path / "it ran")))
    description = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**description, **changes}))
    return folder


def test_code_of_a_model_is_refused(tmp_path, answers_yes):
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForCausalLM": "own.OwnModel"}
    folder = folder_with_code(tmp_path, "config.json", {"model_type": "own", "auto_map": auto_map})
    with pytest.raises(BackboneError, match="needs Python code of its own, which is never run"):
        Backbone.load(folder)
    assert not (tmp_path / "it ran").exists()


def test_code_beside_a_known_family_is_not_run(tmp_path, answers_yes):
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForCausalLM": "own.OwnModel"}
    folder = folder_with_code(tmp_path, "config.json", {"auto_map": auto_map})
    assert Encoder.from_pretrained(folder, device="cpu").encode(["A cat."]).shape == (1, 32)
    assert not (tmp_path / "it ran").exists()


def test_code_of_a_tokenizer_is_not_run(tmp_path, answers_yes):
    changes = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    folder = folder_with_code(tmp_path, "tokenizer_config.json", changes)
    try:
        Backbone.load(folder)
    except BackboneError as error:
        assert "tokenizer" in str(error)
    assert not (tmp_path / "it ran").exists()


def loading_calls():
    """(file and line, call) of everything in the package that loads with classes that could run code of a folder."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            is_auto = isinstance(function, ast.Attribute) and function.attr in METHODS
            is_auto = is_auto and isinstance(function.value, ast.Name) and function.value.id in LOADERS
            if is_auto or (isinstance(function, ast.Name) and function.id == "SentenceTransformer"):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", node


def test_every_loader_refuses_code():
    calls = list(loading_calls())
    assert len(calls) >= 10
    exports = "export/reload.py"  # loads what was just written here, with options that say whether it has a module
    unsafe = [
        place
        for place, call in calls
        if not place.startswith(exports)
        and not any(
            keyword.arg == "trust_remote_code" and getattr(keyword.value, "value", None) is False
            for keyword in call.keywords
        )
    ]
    assert unsafe == []
