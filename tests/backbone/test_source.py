"""Where weights come from: names, folders, files and the hub - and what is refused on the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.fingerprint import file_sha256, weight_files
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.errors import BackboneError
from decoder2vec.storage import cache_root


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """The hub cannot be reached, unless a test puts a folder there; what was asked of it is noted."""
    asked = []

    def download(name, **options):
        asked.append((name, options))
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


@pytest.fixture
def model(tmp_path):
    """A whole model folder to spoil."""
    return Path(shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model"))


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_name_is_a_whole_model_folder_built_once(name, own_cache, hub):
    folder = resolve_model_folder(name)
    assert folder.is_relative_to(own_cache)
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert resolve_model_folder(name) == folder
    assert (folder / "config.json").stat().st_mtime_ns == stamp
    assert hub == []


def test_a_tiny_model_is_the_same_wherever_it_is_built(tmp_path, monkeypatch):
    here = load_file(tiny_folder("tiny-gpt2") / "model.safetensors")
    fingerprint = Backbone.load("tiny-gpt2").fingerprint
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    there = load_file(tiny_folder("tiny-gpt2") / "model.safetensors")
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[key], there[key]) for key in here)
    assert Backbone.load("tiny-gpt2").fingerprint == fingerprint


@pytest.mark.parametrize("form", [str, Path, lambda path: os.path.relpath(path)])
def test_a_folder_is_taken_as_it_is(form, model):
    assert Path(resolve_model_folder(form(model))).resolve() == model.resolve()


def test_a_tilde_is_the_users_home(model, monkeypatch):
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
def test_an_unknown_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(BackboneError, match=rf"Did you mean .*{nearest}") as caught:
        resolve_model_folder(wrong)
    assert "ConnectionError" in one_sentence(caught)


@pytest.mark.parametrize("wrong", ["no such folder", "/no/such/folder", "a/b/c", "weights.safetensors?"])
def test_what_cannot_be_a_hub_id_is_not_asked_of_the_hub(wrong, hub):
    with pytest.raises(BackboneError, match=r"not a folder or \.gguf file"):
        resolve_model_folder(wrong)
    assert hub == []


def test_a_hub_id_is_fetched_without_pickled_weights(model, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model_folder("some-lab/some-model", revision="abc") == model
    assert (asked["name"], asked["revision"]) == ("some-lab/some-model", "abc")
    assert not any(pattern.endswith((".bin", ".pt", ".pth", ".py", "*")) for pattern in asked["allow_patterns"])


def test_a_hub_model_with_pickled_weights_only_is_refused(model, monkeypatch):
    (model / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(model))
    with pytest.raises(BackboneError, match="no safetensors weights"):
        resolve_model_folder("some-lab/some-model")


def test_a_folder_without_config_is_refused(model):
    (model / "config.json").unlink()
    with pytest.raises(BackboneError, match=r"no config\.json") as caught:
        resolve_model_folder(model)
    assert str(model) in one_sentence(caught)


def test_a_folder_with_pickled_weights_only_is_refused_and_they_are_not_opened(model):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(BackboneError, match="Pickled weights are never loaded") as caught:
        Backbone.load(model)
    one_sentence(caught)


def test_a_folder_whose_weights_are_not_whole_is_refused(model):
    tensors = load_file(model / "model.safetensors")
    missing = next(key for key in tensors if "layers.2" in key)
    del tensors[missing]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="lacks 1 weights"):
        Backbone.load(model)


def test_a_broken_weights_file_is_refused_in_words(model):
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_a_broken_config_is_refused_in_words(model):
    (model / "config.json").write_text("{not json")
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_a_folder_without_a_tokenizer_is_refused_in_words(model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BackboneError):
        Backbone.load(model)


def test_an_unknown_attention_suggests_the_nearest(model):
    with pytest.raises(ValueError, match="bidirectional"):
        Backbone.load(model, attention="bidirectonal")


def test_a_file_that_is_neither_folder_nor_gguf_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(BackboneError, match="is a file, but not a GGUF file"):
        resolve_model_folder(tmp_path / "weights.bin")


# --- GGUF -----------------------------------------------------------------------------------------------------------


def models_in_cache():
    return {path.name for path in (cache_root() / "models").iterdir()}


def small_gguf(file):
    writer = GGUFWriter(file, "llama")
    writer.add_tensor("token_embd.weight", np.ones((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100, b"GGUF" + b"\xff" * 400, b"\0" * 64])
def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(content, tmp_path):
    tiny_folder("tiny-llama")
    before = models_in_cache()
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BackboneError, match="GGUF") as caught:
        resolve_model_folder(tmp_path / "model.gguf")
    one_sentence(caught)
    assert models_in_cache() == before


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_gguf_file_that_is_cut_off_is_refused_and_leaves_nothing(share, tmp_path):
    tiny_folder("tiny-llama")
    before = models_in_cache()
    small_gguf(tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BackboneError, match="download it again"):
        resolve_model_folder(tmp_path / "model.gguf")
    assert models_in_cache() == before


def test_a_gguf_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BackboneError, match="There is no GGUF file"):
        resolve_model_folder(tmp_path / "none.gguf")


def test_a_gguf_file_is_converted_once_and_again_when_its_content_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    converted = []

    def convert(file, folder):
        converted.append(file.read_bytes())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr("decoder2vec.backbone.gguf.convert", convert)
    file = tmp_path / "Model.GGUF"
    file.write_bytes(b"one")
    first = resolve_model_folder(file)
    assert resolve_model_folder(str(file)) == first
    assert converted == [b"one"]
    file.write_bytes(b"other")
    assert resolve_model_folder(file) != first
    assert converted == [b"one", b"other"]


def test_a_conversion_that_fails_leaves_nothing_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"one")

    def fail(file, folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("decoder2vec.backbone.gguf.convert", fail)
    with pytest.raises(KeyboardInterrupt):
        resolve_model_folder(tmp_path / "model.gguf")
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    monkeypatch.setattr("decoder2vec.backbone.gguf.convert", lambda file, folder: (folder / "done").touch())
    assert (resolve_model_folder(tmp_path / "model.gguf") / "done").exists()


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_a_files_hash_is_its_sha256_also_the_second_time(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one" * 1000)
    expected = hashlib.sha256(b"one" * 1000).hexdigest()
    assert file_sha256(file) == expected
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert file_sha256(file) == expected


def test_a_changed_file_is_hashed_anew(tmp_path):
    file = tmp_path / "file"
    for content in (b"one", b"two", b"three"):
        file.write_bytes(content)
        assert file_sha256(file) == hashlib.sha256(content).hexdigest()


def test_a_damaged_note_or_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    expected = file_sha256(file)
    (note,) = (tmp_path / "cache" / "hashes").iterdir()
    note.write_text("half a no")
    assert file_sha256(file) == expected
    monkeypatch.setenv("D2V_CACHE", str(file / "below a file"))
    assert file_sha256(file) == expected


def test_weight_files_are_sorted_and_only_safetensors(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "c.bin", "model.safetensors.index.json"):
        (tmp_path / name).touch()
    assert [file.name for file in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


# --- the fingerprint of a folder ------------------------------------------------------------------------------------


def edited(model, file, change):
    data = json.loads((model / file).read_text())
    data.update(change)
    (model / file).write_text(json.dumps(data))
    return Backbone.load(model)


def test_what_only_says_who_wrote_a_folder_does_not_change_its_fingerprint(model):
    before = Backbone.load(model).fingerprint
    change = {"transformers_version": "9.9.9", "_name_or_path": "elsewhere", "dtype": "bfloat16"}
    assert edited(model, "config.json", change).fingerprint == before
    assert Backbone.load(model, dtype="bfloat16").fingerprint == before
    assert Backbone.load(model, attention="bidirectional").fingerprint == before


def test_what_changes_vectors_changes_the_fingerprint(model):
    before = Backbone.load(model).fingerprint
    assert edited(model, "config.json", {"rms_norm_eps": 0.5}).fingerprint != before


def test_a_tokenizer_setting_that_changes_the_tokens_changes_the_fingerprint(tmp_path):
    """`bos_token` and its like stand in tokenizer_config.json, and an empty text is read as that token."""
    model = Path(shutil.copytree(tiny_folder("tiny-gpt2"), tmp_path / "model"))
    before = Backbone.load(model)
    after = edited(model, "tokenizer_config.json", {"bos_token": "<pad>"})
    assert after.empty_text_token_id != before.empty_text_token_id
    assert after.fingerprint != before.fingerprint
