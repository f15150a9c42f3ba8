"""Model folders that are wrong in some way are refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import BackboneError, UnsupportedError


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"num_hidden_layers": -1},
        {"hidden_size": "large"},
        {"hidden_size": 7},
        {"vocab_size": -5},
        {"model_type": "nothing"},
        {"rope_parameters": 3},
    ],
    ids=str,
)
def test_wrong_config_is_refused_in_one_sentence(folder, change):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises((BackboneError, UnsupportedError)) as caught:
        Backbone.load(folder, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-mamba"])
@pytest.mark.parametrize("dtype", ["float32", None])
def test_model_without_layers_is_refused_as_such(name, dtype, tmp_path):
    folder = Path(shutil.copytree(tiny_folder(name), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    depth = {key: 0 for key in ("num_hidden_layers", "n_layer") if key in config}
    (folder / "config.json").write_text(json.dumps({**config, **depth}))
    with pytest.raises(BackboneError, match=r"^\S+ has no layers: its config\.json says 0\.$"):
        Backbone.load(folder, device="cpu", dtype=dtype)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content", ["", "[]", "3", "[" * 100_000, '{"model": 3, "bos_token": 3}'], ids=lambda text: text[:9]
)
def test_damaged_tokenizer_is_refused_in_one_sentence(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(BackboneError, match="has no tokenizer that transformers can load") as caught:
        Backbone.load(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_weights_of_another_shape_are_refused(folder):
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("layers.1.mlp.up_proj.weight"))
    save_file({**weights, name: weights[name][:3]}, file, metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="weights of other shapes"):
        Backbone.load(folder, device="cpu")


def test_half_of_a_file_is_refused(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(BackboneError, match="transformers cannot load"):
        Backbone.load(folder, device="cpu")
