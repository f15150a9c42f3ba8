"""Bidirectional attention above a layer only, on every family that supports it; and the check that verifies it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.attention import differs as states_differ
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, InputError, UnsupportedError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt

CAUSAL_ONLY = ("gpt_neo", "mamba", "mamba2")
SUPPORTED = [name for name, family in TINY.items() if family not in CAUSAL_ONLY]
LAYERS = range(5)


def states(backbone, texts, layer):
    """[text, width] states of token 1 of each text, which has tokens before and after it, at a layer."""
    prompts = [Prompt(ids, 1, 2) for ids in texts]
    capture = Capture(backbone, [Reading(layer, "mean")])
    with torch.inference_mode():
        return capture(collate(prompts, backbone.pad_token_id))[:, 0]


@pytest.fixture(scope="module", params=SUPPORTED)
def model(request):
    return Backbone.load(request.param, attention="bidirectional:2")


@pytest.mark.parametrize("other_texts", [[], [[9, 10]]], ids=["alone", "padded"])
def test_later_token_is_visible_above_the_layer_only(model, other_texts):
    for layer in LAYERS:
        before = states(model, [[7, 8, 9, 10], *other_texts], layer)[0]
        after = states(model, [[7, 8, 9, 300], *other_texts], layer)[0]
        assert (before - after).abs().max() > 1e-6 if layer > 2 else torch.equal(before, after), layer


def test_padding_does_not_change_states(model):
    for layer in LAYERS:
        single = states(model, [[7, 8, 9]], layer)[0]
        padded = states(model, [[7, 8, 9], [9, 10, 11, 12, 13, 14]], layer)[0]
        assert torch.allclose(single, padded, atol=1e-5), layer


@pytest.mark.parametrize("name", SUPPORTED)
def test_layers_below_equal_the_causal_model(name):
    causal, partial = (Backbone.load(name, attention=attention) for attention in ("causal", "bidirectional:2"))
    for layer in (1, 2):
        texts = [[7, 8, 9, 10], [9, 10]]
        assert torch.allclose(states(causal, texts, layer), states(partial, texts, layer), atol=1e-5), layer


def test_bidirectional_from_layer_0_is_bidirectional():
    full, partial = (Backbone.load("tiny-llama", attention=name) for name in ("bidirectional", "bidirectional:0"))
    assert torch.equal(states(full, [[7, 8, 9]], 4), states(partial, [[7, 8, 9]], 4))


def test_attention_can_be_switched_back_and_forth():
    model = Backbone.load("tiny-llama", attention="causal")
    first = states(model, [[7, 8, 9]], 4)
    for attention in ("bidirectional:1", "bidirectional", "bidirectional:3"):
        model.set_attention(attention)
        assert not torch.allclose(states(model, [[7, 8, 9]], 4), first, atol=1e-6)
    model.set_attention("causal")
    assert torch.equal(states(model, [[7, 8, 9]], 4), first)


@pytest.mark.parametrize("name", ["tiny-gpt_neo", "tiny-mamba"])
def test_unsupported_family_is_refused_and_unchanged(name):
    model = Backbone.load(name)
    before = states(model, [[7, 8, 9]], 4)
    with pytest.raises(UnsupportedError, match="cannot be read with bidirectional:2 attention"):
        model.set_attention("bidirectional:2")
    assert torch.equal(states(model, [[7, 8, 9]], 4), before)


@pytest.mark.parametrize("wrong", ["bidirectional:", "bidirectional:x", "bidirectional:-1", "causal:2", "both:1"])
def test_invalid_attention_is_refused(wrong):
    with pytest.raises(Decoder2VecError):
        Backbone.load("tiny-llama", attention=wrong)


def test_layer_that_leaves_none_bidirectional_is_refused():
    with pytest.raises(InputError, match="has 4 layers"):
        Backbone.load("tiny-llama", attention="bidirectional:4")


def test_saved_encoder_keeps_the_attention(tmp_path):
    encoder = Encoder.from_pretrained("tiny-qwen3", attention="bidirectional:2", pooling="mean", template="plain")
    vectors = encoder.encode(["cats sleep", "the dogs run over the long road"])
    reloaded = Encoder.load(encoder.save(tmp_path / "e"))
    assert reloaded.spec.attention == "bidirectional:2"
    assert (reloaded.encode(["cats sleep", "the dogs run over the long road"]) == vectors).all()
    full = Encoder.from_pretrained("tiny-qwen3", attention="bidirectional", pooling="mean", template="plain")
    assert full.fingerprint != encoder.fingerprint


def test_cached_keys_and_values_stay_visible():
    """Also for texts of equal length, which need no mask."""
    model = Backbone.load("tiny-llama", attention="bidirectional:2")
    model = model.with_adapter(KeyValuePrefix.initialise(model, 3))
    encoder = Encoder(model, EncoderSpec(model.name, (Reading(4, "mean"),), attention="bidirectional:2"))
    single, padded = encoder.encode(["the sea is green"]), encoder.encode(["the sea is green", "sea"])
    np.testing.assert_allclose(single[0], padded[0], atol=1e-5)


# --- the size of a change --------------------------------------------------------------------------------------------

STATE = torch.tensor([[8000.0, 1.0, -2.0, 0.5, 0.0]])


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], False),
        # a thousandth of a small dimension is no rounding error, though small beside 8000
        ([0.0, 0.001, 0.0, 0.0, 0.0], True),
        # a millionth of the huge dimension is one, though large beside the others
        ([0.008, 0.0, 0.0, 0.0, 0.0], False),
        ([0.8, 0.0, 0.0, 0.0, 0.0], True),
        # a dimension near zero is compared with the others
        ([0.0, 0.0, 0.0, 0.0, 1e-6], False),
        ([0.0, 0.0, 0.0, 0.0, 1e-3], True),
    ],
)
def test_change_is_relative_to_the_size_of_each_dimension(change, differs):
    after = torch.cat([STATE + torch.tensor([change]), STATE])
    assert states_differ(STATE.repeat(2, 1), after).tolist() == [differs, False], "separately for each text"
