"""Several adapters in one encoder's folder, switched by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError

TEXTS = ["A cat sleeps.", "Stocks fell sharply today.", ""]
SPEC = EncoderSpec("tiny-llama", (Reading(-1, "lasttoken"),))


def encoder_with(backbone, adapter):
    torch.manual_seed(1)
    for parameter in adapter.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
        parameter.requires_grad_(False)
    return Encoder(backbone.with_adapter(adapter), SPEC)


@pytest.fixture
def folders(backbone, tmp_path):
    """An encoder of each kind of adapter, and its vectors."""
    model = backbone("tiny-llama")
    made = {
        "lora": Lora.start(model, 2, 4),
        "prompt": SoftPrompt.start(model, 3),
        "prefix": KeyValuePrefix.start(model, 2),
    }
    found = {}
    for name, adapter in made.items():
        encoder = encoder_with(model, adapter)
        encoder.save(tmp_path / name)
        found[name] = encoder.encode(TEXTS)
    return found


def test_each_name_reads_as_the_encoder_it_came_from(folders, tmp_path):
    encoder = Encoder.load(tmp_path / "lora")
    for name in ("prompt", "prefix"):
        encoder.add_adapter(name, tmp_path / name)
    encoder.save(tmp_path / "all")
    loaded = Encoder.load(tmp_path / "all")
    for _ in range(2):  # to and fro
        for name in ("prompt", "prefix"):
            np.testing.assert_array_equal(loaded.with_adapter(name).encode(TEXTS), folders[name])
        np.testing.assert_array_equal(loaded.encode(TEXTS), folders["lora"])
    assert (
        loaded.fingerprint == Encoder.load(tmp_path / "lora").fingerprint != loaded.with_adapter("prompt").fingerprint
    )
    assert loaded.with_adapter("prefix").backbone.model is loaded.backbone.model


def test_a_saved_encoder_keeps_its_names_when_it_is_saved_again(folders, tmp_path):
    encoder = Encoder.load(tmp_path / "lora")
    encoder.add_adapter("other", tmp_path / "prompt")
    encoder.save(tmp_path / "one")
    Encoder.load(tmp_path / "one").save(tmp_path / "two")
    assert list(Encoder.load(tmp_path / "two").backbone.adapters) == ["other"]


def test_unknown_and_unusable_names_are_refused(folders, tmp_path, backbone):
    encoder = Encoder.load(tmp_path / "lora")
    with pytest.raises(InputError, match="no named adapters"):
        encoder.with_adapter("law")
    encoder.add_adapter("law", tmp_path / "prompt")
    with pytest.raises(InputError, match="law"):
        encoder.with_adapter("lwa")
    for name in ("", "../x", "a b", "a/b"):
        with pytest.raises(InputError, match="letters, digits"):
            encoder.add_adapter(name, tmp_path / "prompt")
    plain = Encoder(backbone("tiny-gpt2"), EncoderSpec("tiny-gpt2", SPEC.readings))
    with pytest.raises(InputError, match="other weights"):
        plain.add_adapter("law", tmp_path / "prompt")
    with pytest.raises(InputError, match="no adapter"):
        encoder.add_adapter("nothing", tmp_path)
