"""`--dtype`: every command that loads a model loads it in the dtype of this option."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.cli import app
from decoder2vec.errors import Decoder2VecError
from toys.command import SMALL_SWEEP, d2v

WITHOUT = {"demo", "pull", "cache", "report", "merge", "export"}
"""They load no model, or choose the dtype themselves: an export is compared in float32."""


@pytest.fixture
def loaded(monkeypatch):
    """The dtypes of the models that are loaded from now on."""
    dtypes, load = [], Backbone.load.__func__

    def record(cls, *args, **kwargs):
        backbone = load(cls, *args, **kwargs)
        dtypes.append(str(backbone.dtype).removeprefix("torch."))
        return backbone

    monkeypatch.setattr(Backbone, "load", classmethod(record))
    return dtypes


@pytest.fixture
def files(tmp_path, pairs):
    """A folder with texts, pairs and triplets."""
    (tmp_path / "texts.txt").write_text("\n".join(f"Text {n} of {n % 7}." for n in range(60)), encoding="utf-8")
    lines = [f"anchor {n}\tpositive {n}\tnegative {n}" for n in range(8)]
    (tmp_path / "triplets.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *lines]) + "\n", encoding="utf-8")
    return tmp_path


COMMANDS = {
    "similarity": "similarity a b --encoder tiny-llama",
    "embed": "embed {0}/texts.txt --out {0}/v.npy --encoder tiny-llama",
    "match": "match --left {0}/pairs --right {0}/pairs --out {0}/m.json --encoder tiny-llama",
    "eval": "eval tiny-llama --data {0}/pairs.tsv",
    "sweep": "sweep tiny-llama --data {0}/pairs.tsv --out {0}/sweep " + " ".join(SMALL_SWEEP),
    "analyze id": "analyze id tiny-llama --texts {0}/texts.txt --out {0}/id.json --neighbours 5",
    "analyze geometry": "analyze geometry tiny-llama --texts {0}/texts.txt --out {0}/geometry.json",
    "prune": "prune tiny-llama --triplets {0}/triplets.tsv --batch 4 --keep 50% --out {0}/cut",
    "data mine": "data mine {0}/triplets.tsv --encoder tiny-llama --out {0}/mined.jsonl",
    "doctor": "doctor tiny-llama",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_model_is_loaded_in_the_dtype(command, files, loaded):
    (files / "pairs").mkdir()
    (files / "pairs" / "one.txt").write_text("I bake bread.", encoding="utf-8")
    assert d2v(*COMMANDS[command].format(files).split(), "--device", "cpu", "--dtype", "float64").exit_code == 0
    assert loaded and set(loaded) == {"float64"}


def test_index_and_search_load_the_stored_encoder_in_it(files, loaded):
    options = ("--device", "cpu", "--dtype", "float64")
    index = files / "index"
    d2v("index", files / "texts.txt", "--out", index, "--encoder", "tiny-llama", *options)
    d2v("index", files / "texts.txt", "--out", index, *options)  # the encoder of the index
    hits = d2v("search", index, "Text 3 of 3.", "--mode", "dense", "--json", *options).stdout.splitlines()
    assert "Text 3 of 3." in json.loads(hits[0])["text"]
    assert len(loaded) >= 3 and set(loaded) == {"float64"}


def test_server_and_mteb_pass_it_on(loaded, monkeypatch):
    app_module = pytest.importorskip("decoder2vec.serving.app", reason="no server: pip install 'decoder2vec[serve]'")
    monkeypatch.setattr(app_module, "serve", lambda load_config, *_, **__: load_config())
    assert d2v("serve", "tiny-llama", "--device", "cpu", "--dtype", "float64").exit_code == 0
    assert loaded == ["float64"]

    options = {}

    def evaluate_mteb(*_, **named):
        options.update(named)
        return {"encoder": "x", "kind": "encoder", "name": "x", "results": []}

    monkeypatch.setattr("decoder2vec.evaluation.mteb.evaluate_mteb", evaluate_mteb)
    assert d2v("mteb", "tiny-llama", "--tasks", "STS12", "--dtype", "bfloat16").exit_code == 0
    assert options["dtype"] == "bfloat16"


def test_all_commands_have_it_that_load_a_model():
    missing = {
        f"{name} {sub}".strip()
        for name, command in get_command(app).commands.items()
        for sub, leaf in getattr(command, "commands", {"": command}).items()
        if name not in WITHOUT and "dtype" not in {parameter.name for parameter in leaf.params}
    }
    assert missing == {"data check", "data concepts", "analyze vocabulary"}


def test_unknown_dtype_is_refused_by_name():
    with pytest.raises(Decoder2VecError, match=r"int9.*int8"):
        d2v("similarity", "a", "b", "--encoder", "tiny-llama", "--dtype", "int9")


def test_baseline_has_no_dtype(pairs):
    with pytest.raises(Decoder2VecError, match="leave out dtype"):
        d2v("eval", "random:8", "--data", pairs, "--dtype", "float64")


def test_pruning_refuses_four_bits(tmp_path):
    with pytest.raises(Decoder2VecError, match="another dtype than 4bit"):
        d2v("prune", "tiny-llama", "--layers", "2", "--out", tmp_path / "cut", "--dtype", "4bit")
