"""Families that mix attention with convolutions, recurrences or linear attention: only attention looks both ways."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.attention import check_prefix_lm_attention, set_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.errors import UnsupportedError
from toys.texts import built

LINEAR = ["linear_attention", "full_attention"] * 2
DELTA = {
    "layer_types": LINEAR,
    "head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
ZAMBA = {"mamba_d_state": 8, "layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 2}
MIXED = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "qwen3_next": {**DELTA, **EXPERTS},
    "qwen3_5_text": DELTA,
    "olmo_hybrid": DELTA,
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32, **MAMBA},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 8},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"] * 2,
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "minimax": {"layer_types": LINEAR, "head_dim": 8, "num_local_experts": 2, "block_size": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32, "head_dim": 8},
    "zamba": {**ZAMBA, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "zamba2": {
        **ZAMBA,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "adapter_rank": 4,
        "num_mem_blocks": 1,
        "chunk_size": 16,
    },
    "falcon_h1": {"mamba_d_ssm": 64, **MAMBA},
}
"""Attention stands in the second and the fourth block; in those of falcon_h1 there is some of each everywhere."""
ALONE, BESIDE = [[7, 8, 9, 10]], [[7, 8, 9, 10], [9, 10, 11, 12, 13, 14]]
ROUNDING = 1e-4


def hybrid(family, **changes):
    settings = {"num_hidden_layers": 4, "num_key_value_heads": 4} | MIXED.get(family, {}) | changes
    return built(family, **settings).base_model.requires_grad_(False)


@pytest.fixture(scope="module", params=MIXED)
def model(request):
    with quiet_transformers():
        yield hybrid(request.param)


@torch.inference_mode()
def states(model, texts):
    """[layer, token, width] of the first text; all are padded to the longest."""
    found, width = [], max(map(len, texts))
    hooks = [
        block.register_forward_hook(lambda _, __, out: found.append(out[0] if isinstance(out, tuple) else out))
        for block in find_blocks(model)[1]
    ]
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    try:
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([layer[0, : len(texts[0])] for layer in found])


def changed(texts):
    return [[*text[:2], 300, *text[3:]] for text in texts]


def test_attention_sees_a_later_token_above_the_layer_and_not_below(model, gap):
    set_attention(model, "causal")
    causal = states(model, ALONE)
    for lower in range(4):
        set_attention(model, f"bidirectional:{lower}")
        alone, padded = states(model, ALONE), states(model, BESIDE)
        assert gap(padded, alone) < ROUNDING, f"{lower}: padding changes nothing"
        assert lower == 0 or gap(alone[:lower], causal[:lower]) < ROUNDING, lower
        for texts, before in ((ALONE, alone), (BESIDE, padded)):
            moved = (states(model, changed(texts)) - before).abs().amax(-1)
            part = moved[:, 1] / moved[:, 2]
            assert (part[:lower] < ROUNDING).all() and part[-1] > 10 * ROUNDING, lower
    set_attention(model, "causal")
    assert torch.equal(states(model, ALONE), causal)


def test_a_beginning_is_read_in_both_directions_and_the_rest_from_left_to_right(model):
    set_attention(model, "bidirectional")
    check_prefix_lm_attention(model)


def test_layers_without_attention_that_should_look_both_ways_are_refused(tmp_path):
    built("lfm2", tmp_path, num_hidden_layers=4, num_key_value_heads=2, layer_types=["full_attention", "conv"] * 2)
    backbone = Backbone.load(tmp_path, attention="bidirectional:2", device="cpu")
    before = states(backbone.model, BESIDE)
    with pytest.raises(UnsupportedError, match="bidirectional:3 attention: no layer above 3 has attention"):
        backbone.set_attention("bidirectional:3")
    assert backbone.attention == "bidirectional:2"
    assert torch.equal(states(backbone.model, BESIDE), before), "it reads as it did before"


def test_layers_that_all_lack_attention_are_refused():
    model = hybrid("lfm2", layer_types=["conv"] * 4)
    for attention in ("bidirectional", "bidirectional:2"):
        with pytest.raises(UnsupportedError, match=r"lfm2 cannot be read .* although the flag is set"):
            set_attention(model, attention)


def test_masks_in_a_bundle_are_refused():
    """Attention and recurrence of a block of zaya are given theirs in one dictionary."""
    model = hybrid("zaya", num_experts=2, head_dim=8)
    set_attention(model, "bidirectional")
    with pytest.raises(UnsupportedError, match=r"zaya .* moves an earlier one in layers 1, 2 all the same"):
        set_attention(model, "bidirectional:2")


def test_attention_that_cannot_be_told_from_other_blocks_is_refused():
    model = hybrid("lfm2")
    set_attention(model, "bidirectional")
    for part in model.modules():
        if hasattr(part, "is_causal"):
            del part.is_causal
    with pytest.raises(UnsupportedError, match=r"lfm2 .* does not move an earlier one in layers 1, 3 although"):
        set_attention(model, "bidirectional:2")
    with pytest.raises(UnsupportedError, match="lfm2 cannot read a beginning in both directions"):
        check_prefix_lm_attention(model)
