"""Sizes of a backbone, its layer indices, and the attention that its config asks for."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder


@pytest.mark.parametrize("name", TINY)
def test_size_dtype_and_device_are_those_of_the_model(name, backbone):
    model = backbone(name)
    config = AutoConfig.from_pretrained(tiny_folder(name))
    assert (model.n_layers, model.dim) == (config.num_hidden_layers, config.hidden_size) == (4, 32)
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize(("index", "layer"), [(0, 0), (4, 4), (-1, 4), (-5, 0), (-4, 1)])
def test_layer_indices_count_like_a_list(index, layer, backbone):
    assert backbone("tiny-gpt2").resolve_layer(index) == layer == list(range(5))[index]


def test_config_decides_the_attention_by_default(tmp_path):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-llama"))
    model.config.is_causal = False
    model.save_pretrained(tmp_path)
    Backbone.load("tiny-llama").tokenizer.save_pretrained(tmp_path)
    assert Backbone.load(tmp_path).attention == "bidirectional"
    assert Backbone.load(tmp_path, attention="causal").attention == "causal"
    assert Backbone.load("tiny-llama").attention == "causal"
