"""Blocks and final norms found by structure, and models cut to their first blocks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from decoder2vec.backbone.blocks import find_blocks, find_final_norm, keep_first_blocks, text_config
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.errors import InputError, UnsupportedError
from toys.texts import built

IDS = torch.arange(5, 45).reshape(2, 20)


@torch.inference_mode()
def block_output(model, index):
    """States that the block at `index` returns."""
    outputs = []
    hook = find_blocks(model)[1][index].register_forward_hook(lambda _, __, out: outputs.append(out))
    model(input_ids=IDS, use_cache=False)
    hook.remove()
    return outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]


@pytest.mark.parametrize(("name", "depth"), [*((name, 3) for name in TINY), ("tiny-gemma2", 1), ("tiny-gpt_neo", 1)])
def test_cut_model_computes_the_same_states_also_after_saving(name, depth, tmp_path):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder(name)).eval()
    expected = block_output(model, depth - 1)
    keep_first_blocks(model, depth)
    assert len(find_blocks(model)[1]) == text_config(model.config).num_hidden_layers == depth
    torch.testing.assert_close(block_output(model, depth - 1), expected)
    with quiet_transformers():
        model.save_pretrained(tmp_path)
        loaded, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(block_output(loaded.eval(), depth - 1), expected)


def test_keeping_all_blocks_changes_nothing():
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gemma2")).eval()
    expected, layer_types = block_output(model, 3), list(model.config.layer_types)
    keep_first_blocks(model, 4)
    assert torch.equal(block_output(model, 3), expected)
    assert list(model.config.layer_types) == layer_types


def test_per_layer_lists_of_the_config_are_cut():
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gemma2"))
    layer_types = list(model.config.layer_types)
    keep_first_blocks(model, 3)
    assert list(model.config.layer_types) == layer_types[:3]


@pytest.mark.parametrize("depth", [0, -1, 5])
def test_invalid_depth_is_refused(depth):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gpt2"))
    with pytest.raises(InputError, match="choose 1 to 4"):
        keep_first_blocks(model, depth)
    assert len(model.h) == 4


def test_outermost_list_of_the_right_length_is_the_blocks():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    model = nn.Module()
    model.config = SimpleNamespace(num_hidden_layers=3)
    model.layers = nn.ModuleList(Block() for _ in range(3))
    assert find_blocks(model) == (model, model.layers)


def test_model_without_a_list_of_blocks_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.config = SimpleNamespace(num_hidden_layers=2)
    with pytest.raises(UnsupportedError, match="no list of 2 blocks"):
        find_blocks(model)


def test_missing_final_norm_is_the_identity():
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16, "vocab_size": 50}
    config = AutoConfig.for_model(
        "opt", num_hidden_layers=2, num_attention_heads=2, do_layer_norm_before=False, **sizes
    )
    model = AutoModel.from_config(config)
    states = torch.randn(2, 3, 16)
    assert model.decoder.final_layer_norm is None
    assert torch.equal(find_final_norm(find_blocks(model)[0])(states), states)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"], "num_key_value_heads": 4}),
        ("biogpt", {"num_hidden_layers": 2}),
        ("xglm", {"d_model": 32, "ffn_dim": 32, "num_layers": 2, "attention_heads": 4}),
        ("rwkv", {"attention_hidden_size": 32, "num_hidden_layers": 2}),
        ("recurrent_gemma", {"lru_width": 32, "head_dim": 8, "num_hidden_layers": 2}),
    ],
)
def test_final_norm_is_found_under_any_name(family, settings):
    model = built(family, **settings).base_model
    last = block_output(model, -1)
    with torch.inference_mode():
        normed = find_final_norm(find_blocks(model)[0])(last)
        torch.testing.assert_close(normed, model(input_ids=IDS, use_cache=False).last_hidden_state)
