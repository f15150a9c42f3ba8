"""Attention that looks both ways above a layer only: proved layer by layer, on every family that can."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, InputError, UnsupportedError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt

ONE_WAY = ("gpt_neo", "mamba")
CAN = [name for name, family in TINY.items() if not str(family).startswith(ONE_WAY) and not name.endswith("mamba2")]
LAYERS = range(5)


def states(backbone, texts, layer):
    """The states of every layer's token 1, which has others before and behind it."""
    prompts = [Prompt(ids, 1, 2) for ids in texts]
    capture = Capture(backbone, [Reading(layer, "mean")])
    with torch.inference_mode():
        return capture(collate(prompts, backbone.pad_token_id))[:, 0]


@pytest.fixture(scope="module", params=CAN)
def model(request):
    return Backbone.load(request.param, attention="bidirectional:2")


@pytest.mark.parametrize("others", [[], [[9, 10]]], ids=["alone", "padded"])
def test_a_later_token_is_seen_above_the_layer_and_not_below(model, others):
    for layer in LAYERS:
        before = states(model, [[7, 8, 9, 10], *others], layer)[0]
        after = states(model, [[7, 8, 9, 300], *others], layer)[0]
        assert (before - after).abs().max() > 1e-6 if layer > 2 else torch.equal(before, after), layer


def test_padding_changes_nothing(model):
    for layer in LAYERS:
        alone = states(model, [[7, 8, 9]], layer)[0]
        beside = states(model, [[7, 8, 9], [9, 10, 11, 12, 13, 14]], layer)[0]
        assert torch.allclose(alone, beside, atol=1e-5), layer


@pytest.mark.parametrize("name", CAN)
def test_layers_up_to_it_are_those_of_the_causal_model(name):
    causal, partly = (Backbone.load(name, attention=attention) for attention in ("causal", "bidirectional:2"))
    for layer in (1, 2):
        texts = [[7, 8, 9, 10], [9, 10]]
        assert torch.allclose(states(causal, texts, layer), states(partly, texts, layer), atol=1e-5), layer


def test_from_layer_0_is_bidirectional():
    whole, partly = (Backbone.load("tiny-llama", attention=name) for name in ("bidirectional", "bidirectional:0"))
    assert torch.equal(states(whole, [[7, 8, 9]], 4), states(partly, [[7, 8, 9]], 4))


def test_the_direction_can_be_switched_back_and_forth():
    model = Backbone.load("tiny-llama", attention="causal")
    first = states(model, [[7, 8, 9]], 4)
    for attention in ("bidirectional:1", "bidirectional", "bidirectional:3"):
        model.set_attention(attention)
        assert not torch.allclose(states(model, [[7, 8, 9]], 4), first, atol=1e-6)
    model.set_attention("causal")
    assert torch.equal(states(model, [[7, 8, 9]], 4), first)


@pytest.mark.parametrize("name", ["tiny-gpt_neo", "tiny-mamba"])
def test_families_that_cannot_are_refused_and_stay_as_they_were(name):
    model = Backbone.load(name)
    before = states(model, [[7, 8, 9]], 4)
    with pytest.raises(UnsupportedError, match="cannot be read with bidirectional:2 attention"):
        model.set_attention("bidirectional:2")
    assert torch.equal(states(model, [[7, 8, 9]], 4), before)


@pytest.mark.parametrize("wrong", ["bidirectional:", "bidirectional:x", "bidirectional:-1", "causal:2", "both:1"])
def test_a_direction_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(Decoder2VecError):
        Backbone.load("tiny-llama", attention=wrong)


def test_a_layer_that_leaves_nothing_to_look_both_ways_is_refused():
    with pytest.raises(InputError, match="has 4 layers"):
        Backbone.load("tiny-llama", attention="bidirectional:4")


def test_an_encoder_keeps_it(tmp_path):
    encoder = Encoder.from_pretrained("tiny-qwen3", attention="bidirectional:2", pooling="mean", template="plain")
    vectors = encoder.encode(["cats sleep", "the dogs run over the long road"])
    again = Encoder.load(encoder.save(tmp_path / "e"))
    assert again.spec.attention == "bidirectional:2"
    assert (again.encode(["cats sleep", "the dogs run over the long road"]) == vectors).all()
    causal = Encoder.from_pretrained("tiny-qwen3", attention="bidirectional", pooling="mean", template="plain")
    assert causal.fingerprint != encoder.fingerprint


def test_keys_and_values_that_stand_before_a_text_stay_in_sight():
    """Also of texts that need no mask, being equally long."""
    model = Backbone.load("tiny-llama", attention="bidirectional:2")
    model = model.with_adapter(KeyValuePrefix.initialise(model, 3))
    encoder = Encoder(model, EncoderSpec(model.name, (Reading(4, "mean"),), attention="bidirectional:2"))
    alone, other = encoder.encode(["the sea is green"]), encoder.encode(["the sea is green", "sea"])
    np.testing.assert_allclose(alone[0], other[0], atol=1e-5)
