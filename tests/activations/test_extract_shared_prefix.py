"""Tests of `SharedPrefix`: a prefix that all prompts share is computed once, and the vectors are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import Extractor
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.text.template import Template

SENTENCES = ("A loaf", "Knead the flour and water.", "The crust turns crisp and brown, whatever the flour.", "42")
TEXTS = [f"{text} {number}" for number in range(4) for text in SENTENCES]
LONG_TEMPLATE = Template(
    "Somebody who bakes a lot of bread at home wrote this down to remember it one day: {text}\nIt means:"
)
"""Its prefix alone is longer than the attention windows of the tiny models."""
STATE_SPACE = ("tiny-mamba", "tiny-mamba2")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def past_lengths(monkeypatch):
    """Number of past tokens of each batch that ran through the model."""
    lengths = []
    real = Capture.__call__

    def recording(self, batch):
        lengths.append(batch.past.mask.shape[1] if batch.past else 0)
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", recording)
    return lengths


def extract(backbone, texts, template=LONG_TEMPLATE, layers=None):
    layers = range(backbone.n_layers + 1) if layers is None else layers
    readings = [Reading(layer, pooling) for layer in layers for pooling in ("lasttoken", "mean")]
    return Extractor(backbone, readings, template)(texts)


def extract_one_by_one(backbone, texts, *args):
    return np.concatenate([extract(backbone, [text], *args) for text in texts])


@pytest.mark.parametrize("name", TINY)
def test_vectors_equal_single_texts_for_every_family(name, backbone, gap, past_lengths):
    vectors = extract(backbone(name), TEXTS)
    assert (max(past_lengths) > 16) == (name not in STATE_SPACE)
    past_lengths.clear()
    assert gap(vectors, extract_one_by_one(backbone(name), TEXTS)) < 1e-5
    assert set(past_lengths) == {0}


def test_prompt_equal_to_the_prefix_keeps_one_token(backbone, gap, past_lengths):
    bare = Template(LONG_TEMPLATE.string.split("{text}")[0].strip() + "{text}")
    texts = ["", *TEXTS]
    vectors = extract(backbone("tiny-llama"), texts, bare)
    assert max(past_lengths) > 16
    assert gap(vectors, extract_one_by_one(backbone("tiny-llama"), texts, bare)) < 1e-5


def test_pooled_tokens_are_never_part_of_the_prefix(backbone, past_lengths):
    extract(
        backbone("tiny-llama"), [f"The same words first, then {number}" for number in range(40)], Template("{text}")
    )
    assert set(past_lengths) == {0}


def test_bidirectional_attention_shares_no_prefix(backbone, past_lengths):
    extract(backbone("tiny-llama", "bidirectional"), TEXTS)
    assert set(past_lengths) == {0}


def test_embedding_layer_needs_no_past(backbone, past_lengths):
    extract(backbone("tiny-llama"), TEXTS, LONG_TEMPLATE, [0])
    assert set(past_lengths) == {0}


def test_changed_weights_are_not_served_from_the_cache(gap):
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    extractor = Extractor(backbone, [Reading(backbone.n_layers)], LONG_TEMPLATE)
    before = extractor(TEXTS)
    with torch.no_grad():
        for weight in backbone.model.parameters():
            weight.mul_(1.1)
    after = extractor(TEXTS)
    assert gap(before, after) > 1e-3
    assert gap(after, np.concatenate([extractor([text]) for text in TEXTS])) < 1e-5
