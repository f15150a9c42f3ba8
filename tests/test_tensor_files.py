"""Safetensors files with a checksum."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from decoder2vec.errors import StorageError
from decoder2vec.tensor_files import load_tensors, save_tensors

TENSORS = {"step": torch.tensor(3.0), "weights": torch.arange(600).float(), "half": torch.ones(2, 3).bfloat16()}


def test_tensors_and_metadata_are_read_as_written(tmp_path):
    save_tensors(TENSORS, tmp_path / "file", {"note": "mine"})
    tensors, metadata = load_tensors(tmp_path / "file")
    assert metadata == {"note": "mine"} and tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("position", [0, 8, 40, -600, -1])
def test_changed_byte_is_refused(tmp_path, position):
    file = tmp_path / "file"
    save_tensors(TENSORS, file, {})
    content = bytearray(file.read_bytes())
    content[position] ^= 0x01
    file.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        load_tensors(file)


def test_file_without_a_checksum_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "file", metadata={"note": "0.1"})
    assert load_tensors(tmp_path / "file")[1] == {"note": "0.1"}
