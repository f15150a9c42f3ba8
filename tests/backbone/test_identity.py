"""A model's fingerprint is the same wherever it is the same model."""

import json
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from decoder2vec.backbone.fingerprint import folder_fingerprint, record_gguf_source
from decoder2vec.backbone.tiny import tiny_folder


def copy_of(tmp_path, name="tiny-llama"):
    return shutil.copytree(tiny_folder(name), tmp_path / "copy")


def change_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + np.float32(1e-3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_place_and_library_versions_do_not_change_it(tmp_path):
    folder = copy_of(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "9.9", "dtype": "bfloat16"}))
    assert folder_fingerprint(folder) == folder_fingerprint(tiny_folder("tiny-llama"))


def test_weights_config_and_tokenizer_each_change_it(tmp_path):
    found = {folder_fingerprint(tiny_folder("tiny-llama"))}
    for number, change in enumerate(("weights", "config.json", "tokenizer_config.json")):
        folder = copy_of(tmp_path / str(number))
        if change == "weights":
            change_a_weight(folder)
        else:
            content = json.loads((folder / change).read_text())
            (folder / change).write_text(json.dumps(content | {"rms_norm_eps": 0.1, "eos_token": "<pad>"}))
        found.add(folder_fingerprint(folder))
    assert len(found) == 4


def test_a_converted_file_is_known_by_its_source_even_if_versions_write_other_folders(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"stands for the source")
    one, two = copy_of(tmp_path / "1"), copy_of(tmp_path / "2")
    change_a_weight(two)  # the last bits of dequantised weights differ between versions
    (two / "tokenizer_config.json").write_text("{}")
    for folder in (one, two):
        record_gguf_source(folder, gguf)
    assert folder_fingerprint(one) == folder_fingerprint(two) != folder_fingerprint(tiny_folder("tiny-llama"))


def test_weights_replaced_after_the_conversion_are_noticed(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"stands for the source")
    folder = copy_of(tmp_path)
    record_gguf_source(folder, gguf)
    before = folder_fingerprint(folder)
    change_a_weight(folder)
    assert folder_fingerprint(folder) != before
