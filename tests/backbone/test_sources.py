"""Model names, folders, GGUF files and hub ids resolved to folders, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.fingerprint import record_gguf_source
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.errors import BackboneError
from decoder2vec.storage import cache_root


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """The hub cannot be reached, unless a test replaces it; returns the requests."""
    requests = []

    def download(name, **options):
        requests.append((name, options))
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return requests


@pytest.fixture
def model(tmp_path):
    """A complete model folder that a test may damage."""
    return Path(shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model"))


def check_one_sentence(error):
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize("name", TINY)
def test_tiny_model_is_built_once(name, own_cache, hub):
    folder = resolve_model_folder(name)
    assert folder.is_relative_to(own_cache)
    modified = (folder / "config.json").stat().st_mtime_ns
    assert resolve_model_folder(name) == folder
    assert (folder / "config.json").stat().st_mtime_ns == modified
    assert hub == []


def test_tiny_model_is_the_same_in_every_cache(tmp_path, monkeypatch):
    first = load_file(tiny_folder("tiny-gpt2") / "model.safetensors")
    fingerprint = Backbone.load("tiny-gpt2").fingerprint
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    second = load_file(tiny_folder("tiny-gpt2") / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)
    assert Backbone.load("tiny-gpt2").fingerprint == fingerprint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "one byte"])
def test_damaged_tiny_model_is_built_again(tmp_path, monkeypatch, name, damage):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    folder = tiny_folder("tiny-llama")
    written = {file.name: file.read_bytes() for file in folder.iterdir()}
    content = written[name]
    if damage == "missing":
        (folder / name).unlink()
    else:
        half = len(content) // 2
        (folder / name).write_bytes(content[:half] + (b"" if damage == "truncated" else b"#" + content[half + 1 :]))
    assert tiny_folder("tiny-llama") == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == written


@pytest.mark.parametrize("convert", [str, Path, lambda path: os.path.relpath(path)])
def test_folder_is_returned_unchanged(convert, model):
    assert Path(resolve_model_folder(convert(model))).resolve() == model.resolve()


def test_tilde_is_expanded_to_the_home_folder(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve_model_folder("~/model") == model


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("tiny-gtp2", "tiny-gpt2"),
        ("smollm2-135", "smollm2-135m"),
        ("gemma3-270", "gemma3-270m"),
        ("llama", "tiny-llama"),
    ],
)
def test_unknown_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(BackboneError, match=rf"Did you mean .*{nearest}") as caught:
        resolve_model_folder(wrong)
    assert "ConnectionError" in check_one_sentence(caught)


@pytest.mark.parametrize("wrong", ["no such folder", "/no/such/folder", "a/b/c", "weights.safetensors?"])
def test_invalid_hub_id_is_not_requested_from_the_hub(wrong, hub):
    with pytest.raises(BackboneError, match=r"not a folder or \.gguf file"):
        resolve_model_folder(wrong)
    assert hub == []


def test_hub_download_excludes_pickled_weights(model, monkeypatch):
    request = {}

    def download(name, **options):
        request.update(options, name=name)
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model_folder("some-lab/some-model", revision="abc") == model
    assert (request["name"], request["revision"]) == ("some-lab/some-model", "abc")
    assert not any(pattern.endswith((".bin", ".pt", ".pth", ".py", "*")) for pattern in request["allow_patterns"])


def test_hub_model_with_pickled_weights_only_is_refused(model, monkeypatch):
    (model / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(model))
    with pytest.raises(BackboneError, match="no safetensors weights"):
        resolve_model_folder("some-lab/some-model")


def test_folder_without_config_is_refused(model):
    (model / "config.json").unlink()
    with pytest.raises(BackboneError, match=r"no config\.json") as caught:
        resolve_model_folder(model)
    assert str(model) in check_one_sentence(caught)


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("reranker.json", "is a reranker"),
        ("encoder.json", "is a saved encoder"),
        ("encoder/encoder.json", "give the encoder in it, {folder}/encoder"),
    ],
)
def test_folders_that_are_taken_for_a_model_are_called_by_their_name(tmp_path, file, hint):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(BackboneError, match=re.escape(hint.format(folder=tmp_path))) as caught:
        resolve_model_folder(tmp_path)
    check_one_sentence(caught)


def test_path_of_a_folder_that_was_moved_is_not_compared_with_names(tmp_path):
    with pytest.raises(BackboneError, match="moved or deleted") as caught:
        resolve_model_folder(tmp_path / "gone")
    assert "tiny-llama" not in check_one_sentence(caught)


def test_folder_with_pickled_weights_only_is_refused(model):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(BackboneError, match="Pickled weights are never loaded") as caught:
        Backbone.load(model)
    check_one_sentence(caught)


def test_folder_with_missing_weights_is_refused(model):
    tensors = load_file(model / "model.safetensors")
    missing = next(key for key in tensors if "layers.2" in key)
    del tensors[missing]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="lacks 1 weights"):
        Backbone.load(model)


def test_truncated_weights_file_is_refused(model):
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_invalid_config_is_refused(model):
    (model / "config.json").write_text("{not json")
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_folder_without_a_tokenizer_is_refused(model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_unknown_attention_suggests_the_nearest(model):
    with pytest.raises(ValueError, match="bidirectional"):
        Backbone.load(model, attention="bidirectonal")


def test_file_that_is_not_gguf_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(BackboneError, match="is a file, but not a GGUF file"):
        resolve_model_folder(tmp_path / "weights.bin")


# --- GGUF ------------------------------------------------------------------------------------------------------------


def cached_models():
    return {path.name for path in (cache_root() / "models").iterdir()}


def write_small_gguf(file):
    writer = GGUFWriter(file, "llama")
    writer.add_tensor("token_embd.weight", np.ones((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100, b"GGUF" + b"\xff" * 400, b"\0" * 64])
def test_invalid_gguf_file_is_refused_and_leaves_no_folder(content, tmp_path):
    tiny_folder("tiny-llama")
    before = cached_models()
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BackboneError, match="GGUF") as caught:
        resolve_model_folder(tmp_path / "model.gguf")
    check_one_sentence(caught)
    assert cached_models() == before


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_truncated_gguf_file_is_refused_and_leaves_no_folder(share, tmp_path):
    tiny_folder("tiny-llama")
    before = cached_models()
    write_small_gguf(tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BackboneError, match="download it again"):
        resolve_model_folder(tmp_path / "model.gguf")
    assert cached_models() == before


def test_missing_gguf_file_is_refused(tmp_path):
    with pytest.raises(BackboneError, match="There is no GGUF file"):
        resolve_model_folder(tmp_path / "none.gguf")


def test_gguf_file_is_converted_again_only_if_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    converted = []

    def fake_convert(file, folder):
        converted.append(file.read_bytes())
        (folder / "config.json").write_text("{}")
        record_gguf_source(folder, file)

    monkeypatch.setattr("decoder2vec.backbone.sources.convert_gguf", fake_convert)
    file = tmp_path / "Model.GGUF"
    file.write_bytes(b"one")
    first = resolve_model_folder(file)
    assert resolve_model_folder(str(file)) == first
    assert converted == [b"one"]
    file.write_bytes(b"other")
    assert resolve_model_folder(file) != first
    assert converted == [b"one", b"other"]


def test_failed_conversion_leaves_no_folder_and_is_retried(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"one")

    def fail(file, folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("decoder2vec.backbone.sources.convert_gguf", fail)
    with pytest.raises(KeyboardInterrupt):
        resolve_model_folder(tmp_path / "model.gguf")
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    monkeypatch.setattr("decoder2vec.backbone.sources.convert_gguf", lambda file, folder: (folder / "done").touch())
    assert (resolve_model_folder(tmp_path / "model.gguf") / "done").exists()
