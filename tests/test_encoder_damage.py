"""A saved encoder that lost or changed a part is refused, instead of encoding with the rest."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, Decoder2VecError, EncoderError
from decoder2vec.quick_encoder import QuickEncoder

TEXTS = ["A cat sleeps.", "Stocks fell.", "It rains today.", "Two dogs run."]


def random_lora(backbone):
    adapter = Lora(backbone, LoraConfig(rank=2))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_()
    return adapter


@pytest.fixture(scope="module")
def whole(backbone, tmp_path_factory):
    """The folder of an encoder with an adapter, a named adapter and a head."""
    model = backbone("tiny-llama")
    model = model.with_adapter(random_lora(model))
    model.adapters = {"other": random_lora(model)}
    encoder = Encoder(model, EncoderSpec("tiny-llama", (Reading(4, "mean"),))).with_head("standardise", TEXTS)
    return encoder.save(tmp_path_factory.mktemp("whole") / "encoder")


def edit(folder, **changes):
    file = folder / "encoder.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_tensor(file):
    tensors = load_file(file)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] += 0.5
    save_file(tensors, file)


DAMAGES = {
    "adapter gone": lambda folder: shutil.rmtree(folder / "adapter"),
    "adapter changed": lambda folder: change_tensor(folder / "adapter" / "adapter_model.safetensors"),
    "head null": lambda folder: edit(folder, head=None),
    "head gone": lambda folder: (folder / "head.safetensors").unlink(),
    "head changed": lambda folder: change_tensor(folder / "head.safetensors"),
    "named adapter gone": lambda folder: shutil.rmtree(folder / "adapters" / "other"),
    "named adapter changed": lambda folder: change_tensor(folder / "adapters" / "other" / "adapter_model.safetensors"),
    "another template": lambda folder: edit(
        folder, spec={**json.loads((folder / "encoder.json").read_text())["spec"], "template": "{text}!"}
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_encoder_is_refused(whole, tmp_path, damage):
    folder = shutil.copytree(whole, tmp_path / "encoder")
    Encoder.load(folder, device="cpu")
    damage(folder)
    with pytest.raises(EncoderError, match=r"is not the one that was saved: .*; copy|cannot be read"):
        Encoder.load(folder, device="cpu")


def with_wrong_types(document):
    """The document with one value of another type, for every value in it."""
    for key in document if isinstance(document, dict) else range(len(document)):
        for wrong in (None, "x", [[]], {"a": 1}, 10**400):
            if type(wrong) is not type(document[key]):
                yield {**document, key: wrong} if isinstance(document, dict) else [wrong]
        if isinstance(document[key], dict | list):
            for inner in with_wrong_types(document[key]):
                yield {**document, key: inner} if isinstance(document, dict) else [inner]


@pytest.mark.parametrize("name", ["encoder.json", "adapter/adapter.json"])
def test_wrong_types_in_descriptions_are_one_sentence(whole, tmp_path, name):
    folder = shutil.copytree(whole, tmp_path / "encoder")
    document = json.loads((folder / name).read_text())
    for damaged in ("[" * 100_000, *map(json.dumps, (None, 3, [], "x", *with_wrong_types(document)))):
        (folder / name).write_text(damaged)
        for load in (Encoder.load, QuickEncoder.load):
            try:
                load(folder)  # some fields do not matter, such as the version
            except Decoder2VecError as error:
                assert "\n" not in str(error)


def test_folder_of_0_1_without_records_loads(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "encoder")
    description = json.loads((folder / "encoder.json").read_text())
    (folder / "encoder.json").write_text(
        json.dumps({key: value for key, value in description.items() if key not in ("adapters", "files")})
    )
    assert Encoder.load(folder, device="cpu").encode(TEXTS).shape == (4, 32)


def test_other_weights_of_equal_size_and_time_are_refused(tmp_path):
    model = shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model")
    Encoder.from_pretrained(model, device="cpu").save(tmp_path / "encoder")
    weights = model / "model.safetensors"
    stat = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    with weights.open("r+b") as handle:  # the same inode
        handle.write(content)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BackboneError, match="are not those this encoder was made with"):
        Encoder.load(tmp_path / "encoder", device="cpu")


@pytest.mark.parametrize("name", ["notes.txt", "adapter/notes.txt", "backbone/notes.txt"])
def test_saving_keeps_files_of_the_user(whole, tmp_path, name):
    folder = shutil.copytree(whole, tmp_path / "encoder")
    encoder = Encoder.load(folder, device="cpu")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(Decoder2VecError, match=f"it holds {name}"):
        encoder.save(folder)
    assert (folder / name).read_text() == "mine"
    (folder / name).unlink()
    if name.startswith("backbone"):
        (folder / name).parent.rmdir()
    encoder.save(folder)


def test_report_in_the_folder_may_be_replaced(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "encoder")
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("<html>")
    Encoder.load(folder, device="cpu").save(folder)
