"""Fingerprints of model folders: equal for the same model everywhere, different for a different one; file hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.fingerprint import file_sha256, folder_fingerprint, record_gguf_source, weight_files
from decoder2vec.backbone.tiny import tiny_folder


def copy_model(tmp_path, name="tiny-llama"):
    return shutil.copytree(tiny_folder(name), tmp_path / "copy")


def change_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + np.float32(1e-3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_path_and_versions_keep_the_fingerprint(tmp_path):
    folder = copy_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "9.9", "dtype": "bfloat16"}))
    assert folder_fingerprint(folder) == folder_fingerprint(tiny_folder("tiny-llama"))


def test_weights_config_and_tokenizer_change_the_fingerprint(tmp_path):
    fingerprints = {folder_fingerprint(tiny_folder("tiny-llama"))}
    for index, change in enumerate(("weights", "config.json", "tokenizer_config.json")):
        folder = copy_model(tmp_path / str(index))
        if change == "weights":
            change_a_weight(folder)
        else:
            content = json.loads((folder / change).read_text())
            (folder / change).write_text(json.dumps(content | {"rms_norm_eps": 0.1, "eos_token": "<pad>"}))
        fingerprints.add(folder_fingerprint(folder))
    assert len(fingerprints) == 4


def test_converted_folder_is_identified_by_its_gguf_file(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"stands for the source")
    first, second = copy_model(tmp_path / "1"), copy_model(tmp_path / "2")
    change_a_weight(second)  # the last bits of dequantised weights differ between versions
    (second / "tokenizer_config.json").write_text("{}")
    for folder in (first, second):
        record_gguf_source(folder, gguf)
    assert folder_fingerprint(first) == folder_fingerprint(second) != folder_fingerprint(tiny_folder("tiny-llama"))


def test_weights_replaced_after_conversion_are_detected(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"stands for the source")
    folder = copy_model(tmp_path)
    record_gguf_source(folder, gguf)
    before = folder_fingerprint(folder)
    change_a_weight(folder)
    assert folder_fingerprint(folder) != before


# --- hashes ----------------------------------------------------------------------------------------------------------


def test_file_hash_is_its_sha256_and_is_cached(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one" * 1000)
    expected = hashlib.sha256(b"one" * 1000).hexdigest()
    assert file_sha256(file) == expected
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert file_sha256(file) == expected


def test_changed_file_is_hashed_again(tmp_path):
    file = tmp_path / "file"
    for content in (b"one", b"two", b"three"):
        file.write_bytes(content)
        assert file_sha256(file) == hashlib.sha256(content).hexdigest()


def test_name_that_is_not_utf8_is_hashed(tmp_path):
    file = tmp_path / os.fsdecode(b"\xff\xfe")
    file.write_bytes(b"one")
    assert file_sha256(file) == file_sha256(file) == hashlib.sha256(b"one").hexdigest()


def test_file_replaced_by_one_of_equal_size_and_time_is_noticed(tmp_path):
    file, other = tmp_path / "file", tmp_path / "other"
    for path, content in ((file, b"one"), (other, b"two")):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
    file_sha256(file)
    other.replace(file)
    assert file_sha256(file) == hashlib.sha256(b"two").hexdigest()


def test_damaged_or_unwritable_hash_cache_is_harmless(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    expected = file_sha256(file)
    (cached,) = (tmp_path / "cache" / "hashes").iterdir()
    cached.write_text("half a fi")
    assert file_sha256(file) == expected
    monkeypatch.setenv("D2V_CACHE", str(file / "below a file"))
    assert file_sha256(file) == expected


def test_weight_files_are_sorted_and_only_safetensors(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "c.bin", "model.safetensors.index.json"):
        (tmp_path / name).touch()
    assert [file.name for file in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


# --- fingerprint of a loaded backbone --------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    """A model folder that a test may change."""
    return Path(shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model"))


def load_edited(model, file, change):
    data = json.loads((model / file).read_text())
    data.update(change)
    (model / file).write_text(json.dumps(data))
    return Backbone.load(model)


def test_metadata_dtype_and_attention_keep_the_fingerprint(model):
    before = Backbone.load(model).fingerprint
    change = {"transformers_version": "9.9.9", "_name_or_path": "elsewhere", "dtype": "bfloat16"}
    assert load_edited(model, "config.json", change).fingerprint == before
    assert Backbone.load(model, dtype="bfloat16").fingerprint == before
    assert Backbone.load(model, attention="bidirectional").fingerprint == before


def test_config_value_that_changes_vectors_is_hashed(model):
    before = Backbone.load(model).fingerprint
    assert load_edited(model, "config.json", {"rms_norm_eps": 0.5}).fingerprint != before


def test_tokenizer_setting_that_changes_tokens_is_hashed(tmp_path):
    """`bos_token` is set in tokenizer_config.json, and an empty text is represented by it."""
    model = Path(shutil.copytree(tiny_folder("tiny-gpt2"), tmp_path / "model"))
    before = Backbone.load(model)
    after = load_edited(model, "tokenizer_config.json", {"bos_token": "<pad>"})
    assert after.empty_text_token_id != before.empty_text_token_id
    assert after.fingerprint != before.fingerprint
