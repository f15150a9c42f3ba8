"""Blocks and final norms found by structure, and models cut short."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks, find_final_norm, keep_first_blocks, text_config
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.errors import UnsupportedError
from toys.texts import built

IDS = torch.arange(5, 45).reshape(2, 20)


@torch.inference_mode()
def states_after(model, number):
    """What block `number` returns, by a hook of the test's own."""
    seen = []
    hook = find_blocks(model)[1][number].register_forward_hook(lambda _, __, out: seen.append(out))
    model(input_ids=IDS, use_cache=False)
    hook.remove()
    return seen[0][0] if isinstance(seen[0], tuple) else seen[0]


@pytest.mark.parametrize(("name", "depth"), [*((name, 3) for name in TINY), ("tiny-gemma2", 1), ("tiny-gpt_neo", 1)])
def test_a_cut_model_computes_its_layers_as_before_also_after_saving(name, depth, tmp_path):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder(name)).eval()
    expected = states_after(model, depth - 1)
    keep_first_blocks(model, depth)
    assert len(find_blocks(model)[1]) == text_config(model.config).num_hidden_layers == depth
    torch.testing.assert_close(states_after(model, depth - 1), expected)
    with quiet_transformers():
        model.save_pretrained(tmp_path)
        again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(states_after(again.eval(), depth - 1), expected)


def test_keeping_all_blocks_changes_nothing():
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gemma2")).eval()
    expected, kinds = states_after(model, 3), list(model.config.layer_types)
    keep_first_blocks(model, 4)
    assert torch.equal(states_after(model, 3), expected)
    assert list(model.config.layer_types) == kinds


def test_lists_per_layer_are_cut_with_the_blocks():
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gemma2"))
    kinds = list(model.config.layer_types)
    keep_first_blocks(model, 3)
    assert list(model.config.layer_types) == kinds[:3]


@pytest.mark.parametrize("depth", [0, -1, 5])
def test_a_depth_that_does_not_exist_is_refused(depth):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gpt2"))
    with pytest.raises(UnsupportedError, match="choose 1 to 4"):
        keep_first_blocks(model, depth)
    assert len(model.h) == 4


def test_the_outer_list_is_taken_where_blocks_hold_lists_as_long_as_the_model_is_deep():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    model = nn.Module()
    model.config = SimpleNamespace(num_hidden_layers=3)
    model.layers = nn.ModuleList(Block() for _ in range(3))
    assert find_blocks(model) == (model, model.layers)


def test_a_model_without_a_list_of_blocks_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.config = SimpleNamespace(num_hidden_layers=2)
    with pytest.raises(UnsupportedError, match="no list of 2 blocks"):
        find_blocks(model)


def test_a_model_without_a_final_norm_has_the_identity():
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
def test_the_final_norm_is_found_whatever_the_family_calls_it(family, settings):
    model = built(family, **settings).base_model
    last = states_after(model, -1)
    with torch.inference_mode():
        normed = find_final_norm(find_blocks(model)[0])(last)
        torch.testing.assert_close(normed, model(input_ids=IDS, use_cache=False).last_hidden_state)


@pytest.mark.parametrize("name", TINY)
def test_a_backbone_knows_its_size(name, backbone):
    model = backbone(name)
    config = AutoConfig.from_pretrained(tiny_folder(name))
    assert (model.n_layers, model.dim) == (config.num_hidden_layers, config.hidden_size) == (4, 32)
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize(("number", "layer"), [(0, 0), (4, 4), (-1, 4), (-5, 0), (-4, 1)])
def test_layers_are_numbered_like_a_list(number, layer, backbone):
    assert backbone("tiny-gpt2").resolve_layer(number) == layer == list(range(5))[number]


def test_the_models_own_config_decides_the_direction_where_nothing_is_asked(tmp_path):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-llama"))
    model.config.is_causal = False
    model.save_pretrained(tmp_path)
    Backbone.load("tiny-llama").tokenizer.save_pretrained(tmp_path)
    assert Backbone.load(tmp_path).attention == "bidirectional"
    assert Backbone.load(tmp_path, attention="causal").attention == "causal"
    assert Backbone.load("tiny-llama").attention == "causal"
