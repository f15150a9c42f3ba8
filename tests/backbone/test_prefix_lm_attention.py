"""Prefix-LM attention: a prefix read in both directions and the rest causally, on every family that supports it."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.attention import check_prefix_lm_attention, prefix_lm_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt

CAUSAL_ONLY = ("gpt_neo", "mamba", "mamba2")
SUPPORTED = [name for name, family in TINY.items() if family not in CAUSAL_ONLY]
IDS = [[7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]]


@pytest.fixture(scope="module", params=SUPPORTED)
def models(request):
    """The bidirectional model and the causal one."""
    return [Backbone.load(request.param, attention=attention).model for attention in ("bidirectional", "causal")]


@torch.inference_mode()
def states(model, ids, padding=0):
    """[text, token, width] states; the last `padding` tokens of the first text are padding."""
    mask = torch.ones(len(ids), len(ids[0]), dtype=torch.long)
    if padding:
        mask[0, -padding:] = 0
    return model(input_ids=torch.tensor(ids), attention_mask=mask, use_cache=False).last_hidden_state


def blocks_of(model):
    return Backbone("", model, None, "bidirectional", "").blocks


def with_changed_token(position):
    return [[300 if index == position else token for index, token in enumerate(row)] for row in IDS]


@pytest.mark.parametrize("padding", [0, 1])
def test_tokens_see_the_prefix_and_what_precedes_them(models, padding):
    model, lengths = models[0], [3, 2]
    with prefix_lm_attention(blocks_of(model), torch.tensor(lengths)):
        before = states(model, IDS, padding)
        for position in range(5):
            changed = (states(model, with_changed_token(position), padding) - before).abs().amax(2) > 1e-6
            for row, length in enumerate(lengths):
                first = 0 if position < length else position
                assert changed[row, :5].tolist() == [token >= first for token in range(5)], (row, position)


def test_empty_prefix_is_causal_and_full_prefix_bidirectional(models):
    model, causal = models
    plain = states(model, IDS)
    with prefix_lm_attention(blocks_of(model), torch.tensor([0, 0])):
        assert torch.allclose(states(model, IDS), states(causal, IDS), atol=1e-5)
    with prefix_lm_attention(blocks_of(model), torch.tensor([6, 6])):
        assert torch.allclose(states(model, IDS), plain, atol=1e-5)
    assert torch.equal(states(model, IDS), plain), "the model is restored"


def test_support_is_verified(models):
    check_prefix_lm_attention(models[0])
    with pytest.raises(UnsupportedError, match="cannot read a prefix in both directions"):
        check_prefix_lm_attention(models[1])


def test_cached_keys_and_values_are_visible_to_all_tokens(models):
    """A trained prefix of three tokens precedes the text; the lengths of the prefixes are counted after it."""
    backbone = Backbone("", models[0], Backbone.load("tiny-llama").tokenizer, "bidirectional", "")
    backbone = backbone.with_adapter(KeyValuePrefix.initialise(backbone, 3))
    capture = Capture(backbone, [Reading(-1)])

    @torch.inference_mode()
    def read(ids):
        batch = backbone.adapt(collate([Prompt(row, 0, len(row)) for row in ids], 0))
        return models[0](**capture.model_inputs(batch), use_cache=False).last_hidden_state

    with prefix_lm_attention(blocks_of(models[0]), torch.tensor([3, 2])):
        before = read(IDS)
        for position in range(5):
            changed = (read(with_changed_token(position)) - before).abs().amax(2) > 1e-6
            for row, length in enumerate((3, 2)):
                first = 0 if position < length else position
                assert changed[row, :5].tolist() == [token >= first for token in range(5)], (row, position)
