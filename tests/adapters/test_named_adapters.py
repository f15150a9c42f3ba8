"""Several named adapters in the folder of one encoder."""

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
    """Saves an encoder with each kind of adapter; returns their vectors."""
    model = backbone("tiny-llama")
    adapters = {
        "lora": Lora.initialise(model, 2, 4),
        "prompt": SoftPrompt.initialise(model, 3),
        "prefix": KeyValuePrefix.initialise(model, 2),
    }
    vectors = {}
    for name, adapter in adapters.items():
        encoder = encoder_with(model, adapter)
        encoder.save(tmp_path / name)
        vectors[name] = encoder.encode(TEXTS)
    return vectors


def test_named_adapter_gives_the_vectors_of_its_encoder(folders, tmp_path):
    encoder = Encoder.load(tmp_path / "lora")
    for name in ("prompt", "prefix"):
        encoder.add_adapter(name, tmp_path / name)
    encoder.save(tmp_path / "all")
    loaded = Encoder.load(tmp_path / "all")
    for _ in range(2):  # switching back and forth
        for name in ("prompt", "prefix"):
            np.testing.assert_array_equal(loaded.with_adapter(name).encode(TEXTS), folders[name])
        np.testing.assert_array_equal(loaded.encode(TEXTS), folders["lora"])
    assert (
        loaded.fingerprint == Encoder.load(tmp_path / "lora").fingerprint != loaded.with_adapter("prompt").fingerprint
    )
    assert loaded.with_adapter("prefix").backbone.model is loaded.backbone.model


def test_adapter_names_survive_saving_twice(folders, tmp_path):
    encoder = Encoder.load(tmp_path / "lora")
    encoder.add_adapter("other", tmp_path / "prompt")
    encoder.save(tmp_path / "one")
    Encoder.load(tmp_path / "one").save(tmp_path / "two")
    assert list(Encoder.load(tmp_path / "two").backbone.adapters) == ["other"]


def test_unknown_and_invalid_names_are_refused(folders, tmp_path, backbone):
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
