"""What all prompts begin with is read once, and nobody can tell by the vectors."""

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

KINDS = ("A loaf", "Knead the flour and water.", "The crust turns crisp and brown, whatever the flour.", "42")
TEXTS = [f"{text} {number}" for number in range(4) for text in KINDS]
LONG = Template("Somebody who bakes a lot of bread at home wrote this down to remember it one day: {text}\nIt means:")
"""Its beginning alone is longer than the attention windows of the tiny models."""
STATE_SPACE = ("tiny-mamba", "tiny-mamba2")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def pasts(monkeypatch):
    """How many tokens stood before each batch that reached the model."""
    found = []
    real = Capture.__call__

    def watching(self, batch):
        found.append(batch.past.mask.shape[1] if batch.past else 0)
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", watching)
    return found


def read(backbone, texts, template=LONG, layers=None):
    layers = range(backbone.n_layers + 1) if layers is None else layers
    readings = [Reading(layer, pooling) for layer in layers for pooling in ("lasttoken", "mean")]
    return Extractor(backbone, readings, template)(texts)


def one_by_one(backbone, texts, *args):
    return np.concatenate([read(backbone, [text], *args) for text in texts])


@pytest.mark.parametrize("name", TINY)
def test_vectors_are_those_of_texts_read_alone_in_every_layer_of_every_family(name, backbone, gap, pasts):
    found = read(backbone(name), TEXTS)
    assert (max(pasts) > 16) == (name not in STATE_SPACE)
    pasts.clear()
    assert gap(found, one_by_one(backbone(name), TEXTS)) < 1e-5
    assert set(pasts) == {0}


def test_a_prompt_that_is_nothing_but_the_beginning_keeps_a_token_to_read(backbone, gap, pasts):
    bare = Template(LONG.string.split("{text}")[0].strip() + "{text}")
    texts = ["", *TEXTS]
    found = read(backbone("tiny-llama"), texts, bare)
    assert max(pasts) > 16
    assert gap(found, one_by_one(backbone("tiny-llama"), texts, bare)) < 1e-5


def test_what_is_pooled_is_never_taken_for_the_beginning(backbone, pasts):
    read(backbone("tiny-llama"), [f"The same words first, then {number}" for number in range(40)], Template("{text}"))
    assert set(pasts) == {0}


def test_texts_that_see_what_follows_share_nothing(backbone, pasts):
    read(backbone("tiny-llama", "bidirectional"), TEXTS)
    assert set(pasts) == {0}


def test_the_embeddings_alone_need_no_past(backbone, pasts):
    read(backbone("tiny-llama"), TEXTS, LONG, [0])
    assert set(pasts) == {0}


def test_weights_that_change_between_two_calls_are_read_anew(gap):
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    extractor = Extractor(backbone, [Reading(backbone.n_layers)], LONG)
    before = extractor(TEXTS)
    with torch.no_grad():
        for weight in backbone.model.parameters():
            weight.mul_(1.1)
    after = extractor(TEXTS)
    assert gap(before, after) > 1e-3
    assert gap(after, np.concatenate([extractor([text]) for text in TEXTS])) < 1e-5
