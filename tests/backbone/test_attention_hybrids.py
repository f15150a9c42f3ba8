"""Families that mix attention with convolutions, recurrences or linear attention: only attention is bidirectional."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.attention import check_prefix_lm_attention, set_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.errors import UnsupportedError
from toys.hybrids import HYBRIDS, SETTINGS
from toys.texts import built

SINGLE, PADDED = [[7, 8, 9, 10]], [[7, 8, 9, 10], [9, 10, 11, 12, 13, 14]]
ROUNDING = 1e-4


def build_hybrid(family, **changes):
    settings = SETTINGS | HYBRIDS.get(family, {}) | changes
    return built(family, **settings).base_model.requires_grad_(False)


@pytest.fixture(scope="module", params=HYBRIDS)
def model(request):
    with quiet_transformers():
        yield build_hybrid(request.param)


@torch.inference_mode()
def states(model, texts):
    """[layer, token, width] states of the first text; all texts are padded to the longest."""
    layers, width = [], max(map(len, texts))
    hooks = [
        block.register_forward_hook(lambda _, __, out: layers.append(out[0] if isinstance(out, tuple) else out))
        for block in find_blocks(model)[1]
    ]
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    try:
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([layer[0, : len(texts[0])] for layer in layers])


def with_changed_token(texts):
    return [[*text[:2], 300, *text[3:]] for text in texts]


def test_later_token_is_visible_above_the_layer_only(model, gap):
    set_attention(model, "causal")
    causal = states(model, SINGLE)
    for lower in range(4):
        set_attention(model, f"bidirectional:{lower}")
        single, padded = states(model, SINGLE), states(model, PADDED)
        assert gap(padded, single) < ROUNDING, f"{lower}: padding changes nothing"
        assert lower == 0 or gap(single[:lower], causal[:lower]) < ROUNDING, lower
        for texts, before in ((SINGLE, single), (PADDED, padded)):
            change = (states(model, with_changed_token(texts)) - before).abs().amax(-1)
            ratio = change[:, 1] / change[:, 2]
            assert (ratio[:lower] < ROUNDING).all() and ratio[-1] > 10 * ROUNDING, lower
    set_attention(model, "causal")
    assert torch.equal(states(model, SINGLE), causal)


def test_hybrids_support_prefix_lm_attention(model):
    set_attention(model, "bidirectional")
    check_prefix_lm_attention(model)


def test_no_attention_above_the_layer_is_refused(tmp_path):
    built("lfm2", tmp_path, num_hidden_layers=4, num_key_value_heads=2, layer_types=["full_attention", "conv"] * 2)
    backbone = Backbone.load(tmp_path, attention="bidirectional:2", device="cpu")
    before = states(backbone.model, PADDED)
    with pytest.raises(UnsupportedError, match="bidirectional:3 attention: no layer above 3 has attention"):
        backbone.set_attention("bidirectional:3")
    assert backbone.attention == "bidirectional:2"
    assert torch.equal(states(backbone.model, PADDED), before), "the model is unchanged"


def test_model_without_any_attention_is_refused():
    model = build_hybrid("lfm2", layer_types=["conv"] * 4)
    for attention in ("bidirectional", "bidirectional:2"):
        with pytest.raises(UnsupportedError, match=r"lfm2 cannot be read .* although the flag is set"):
            set_attention(model, attention)


def test_masks_in_a_dictionary_are_refused():
    """A block of zaya gets the masks of its attention and its recurrence in one dictionary."""
    model = build_hybrid("zaya", num_experts=2, head_dim=8)
    set_attention(model, "bidirectional")
    with pytest.raises(UnsupportedError, match=r"zaya .* still changes an earlier one in layers 1, 2"):
        set_attention(model, "bidirectional:2")


def test_attention_without_the_is_causal_flag_is_refused():
    model = build_hybrid("lfm2")
    set_attention(model, "bidirectional")
    for module in model.modules():
        if hasattr(module, "is_causal"):
            del module.is_causal
    with pytest.raises(UnsupportedError, match=r"lfm2 .* does not change an earlier one in layers 1, 3 although"):
        set_attention(model, "bidirectional:2")
    with pytest.raises(UnsupportedError, match="lfm2 cannot read a prefix in both directions"):
        check_prefix_lm_attention(model)
