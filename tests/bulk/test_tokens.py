"""Tokens that were made in a process without the model, against those that the encoder makes itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from decoder2vec.bulk.pretokenised_encoder import PretokenisedEncoder
from decoder2vec.bulk.tokens import TokeniserSettings, distinct_texts, read_prompts
from decoder2vec.encoder import Encoder
from decoder2vec.errors import TextError

TEXTS = ["A cat sleeps.", "", "Größe 漢字 🙂", "word " * 900, "A cat sleeps", " ".join(f"n{n}" for n in range(300))]


def load(cls, name, **options):
    return cls.from_pretrained(name, device="cpu", dtype="float32", **options)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2", "tiny-gpt2"])
@pytest.mark.parametrize("options", [{}, {"template": "echo", "max_length": 60, "on_overflow": "chunk"}])
def test_vectors_are_those_of_the_encoder_bit_by_bit(own_cache, name, options):
    encoder, fed = load(Encoder, name, **options), load(PretokenisedEncoder, name, **options)
    settings = TokeniserSettings.of(encoder, "Find: ")
    fed.known = read_prompts(TEXTS, settings.tokenise(TEXTS))
    reader = fed._reader("Find: ", None)
    for (_, extractor), (_, own) in zip(reader.extractors, encoder._reader("Find: ", None).extractors, strict=True):
        assert extractor.tokeniser(TEXTS) == own.tokeniser(TEXTS)
        assert extractor.tokeniser(["other"]) == own.tokeniser(["other"])
    np.testing.assert_array_equal(fed.encode(TEXTS, prompt="Find: "), encoder.encode(TEXTS, prompt="Find: "))
    assert fed.stats.tokens == encoder.stats.tokens


def test_refused_text_is_left_to_the_encoder(own_cache):
    fed = load(PretokenisedEncoder, "tiny-llama", max_length=30, on_overflow="error")
    assert TokeniserSettings.of(fed, "").tokenise(TEXTS) == []
    with pytest.raises(TextError, match="over the limit of 30"):
        fed.encode(TEXTS)


def test_texts_are_tokenised_once_and_without_problems():
    assert distinct_texts(["b", None, "a", "b", "bad"], {4: "reason"}) == ["b", "a"]


def test_process_that_tokenises_imports_no_torch():
    check = "import sys, decoder2vec.bulk.ray_engine; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)
