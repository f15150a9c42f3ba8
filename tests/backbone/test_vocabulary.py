"""Tokenizers with more tokens than their model has embeddings for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.baselines import StaticEmbeddings
from decoder2vec.quick_encoder import QuickEncoder

TOO_MANY = "embeddings for 512 tokens only"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose tokenizer has two more tokens, a word and one for padding."""
    folder = shutil.copytree(tiny_folder("tiny-llama"), tmp_path_factory.mktemp("model") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["zebra"])
    tokenizer.add_special_tokens({"pad_token": "<filler>"})
    tokenizer.save_pretrained(folder)
    return folder


def test_text_with_such_a_token_is_refused(folder):
    encoder = Encoder.from_pretrained(folder, device="cpu")
    with pytest.raises(BackboneError, match=TOO_MANY):
        encoder.encode(["A horse.", "A zebra."])


def test_other_texts_are_encoded_as_before(folder):
    texts = ["A horse.", "A horse and a longer text, so that the first is padded."]
    with_more_tokens, original = (Encoder.from_pretrained(name, device="cpu") for name in (folder, "tiny-llama"))
    assert np.allclose(with_more_tokens.encode(texts), original.encode(texts), atol=1e-6)


def test_encoder_in_numpy_refuses_it_too(folder, tmp_path):
    Encoder.from_pretrained(folder, device="cpu").save(tmp_path / "encoder")
    quick = QuickEncoder.load(tmp_path / "encoder")
    assert quick is not None and len(quick.encode(["A horse."])) == 1
    with pytest.raises(BackboneError, match=TOO_MANY):
        quick.encode(["A zebra."])


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: StaticEmbeddings(folder).encode(["A zebra."]),
        lambda folder: SoftPrompt.initialise(Backbone.load(folder, device="cpu"), 2, "zebra"),
        lambda folder: KeyValuePrefix.initialise(Backbone.load(folder, device="cpu"), 2, "zebra"),
    ],
    ids=["static embeddings", "soft prompt", "prefix"],
)
def test_whatever_reads_tokens_refuses_it(folder, read):
    with pytest.raises(BackboneError, match=TOO_MANY):
        read(folder)
