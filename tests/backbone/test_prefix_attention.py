"""A beginning read in both directions, and what follows from left to right: on every family that can."""

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

BOTH = "bidirectional"
ONE_WAY = ("gpt_neo", "mamba")
CAN = [name for name, family in TINY.items() if not str(family).startswith(ONE_WAY) and not name.endswith("mamba2")]
IDS = [[7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]]


@pytest.fixture(scope="module", params=CAN)
def both(request):
    """The model that looks both ways, and the causal one."""
    return [Backbone.load(request.param, attention=attention).model for attention in ("bidirectional", "causal")]


@torch.inference_mode()
def states(model, ids, padding=0):
    """[text, token, width]; so many tokens at the end of the first text are none."""
    mask = torch.ones(len(ids), len(ids[0]), dtype=torch.long)
    if padding:
        mask[0, -padding:] = 0
    return model(input_ids=torch.tensor(ids), attention_mask=mask, use_cache=False).last_hidden_state


def blocks_of(model):
    return Backbone("", model, None, "bidirectional", "").blocks


def changed(place):
    return [[300 if number == place else token for number, token in enumerate(row)] for row in IDS]


@pytest.mark.parametrize("padding", [0, 1])
def test_tokens_see_the_beginning_of_their_text_and_their_own_past(both, padding):
    model, lengths = both[0], [3, 2]
    with prefix_lm_attention(blocks_of(model), torch.tensor(lengths)):
        before = states(model, IDS, padding)
        for place in range(5):
            moved = (states(model, changed(place), padding) - before).abs().amax(2) > 1e-6
            for row, length in enumerate(lengths):
                first = 0 if place < length else place
                assert moved[row, :5].tolist() == [token >= first for token in range(5)], (row, place)


def test_without_a_beginning_the_model_is_causal_and_with_nothing_else_it_looks_both_ways(both):
    model, causal = both
    plain = states(model, IDS)
    with prefix_lm_attention(blocks_of(model), torch.tensor([0, 0])):
        assert torch.allclose(states(model, IDS), states(causal, IDS), atol=1e-5)
    with prefix_lm_attention(blocks_of(model), torch.tensor([6, 6])):
        assert torch.allclose(states(model, IDS), plain, atol=1e-5)
    assert torch.equal(states(model, IDS), plain), "nothing is left of it"


def test_it_is_proved(both):
    check_prefix_lm_attention(both[0])
    with pytest.raises(UnsupportedError, match="cannot read a beginning in both directions"):
        check_prefix_lm_attention(both[1])


def test_what_stands_before_the_text_is_seen_by_all(both):
    """Keys and values of three tokens that were learned: places are counted behind them."""
    backbone = Backbone("", both[0], Backbone.load("tiny-llama").tokenizer, BOTH, "")
    backbone = backbone.with_adapter(KeyValuePrefix.initialise(backbone, 3))
    capture = Capture(backbone, [Reading(-1)])

    @torch.inference_mode()
    def read(ids):
        batch = backbone.adapt(collate([Prompt(row, 0, len(row)) for row in ids], 0))
        return both[0](**capture.model_inputs(batch), use_cache=False).last_hidden_state

    with prefix_lm_attention(blocks_of(both[0]), torch.tensor([3, 2])):
        before = read(IDS)
        for place in range(5):
            moved = (read(changed(place)) - before).abs().amax(2) > 1e-6
            for row, length in enumerate((3, 2)):
                first = 0 if place < length else place
                assert moved[row, :5].tolist() == [token >= first for token in range(5)], (row, place)
