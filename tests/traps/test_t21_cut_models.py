"""T21: a model cut to fewer blocks whose config still lists all of them."""

import pytest
import torch
from transformers import AutoModel

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import keep_first_blocks
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import InputError

PER_LAYER = ["tiny-qwen3", "tiny-gemma3_text"]
"""Families whose config lists a type for every layer."""


def load_model(name):
    return AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()


@torch.inference_mode()
def output(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()


@pytest.mark.parametrize("name", sorted(TINY))
def test_cut_model_saves_and_reloads_identically(name, backbone, texts, tokenise, encode_batch, tmp_path):
    """The reloaded model gives the same states, and they are the normed layer of the full model."""
    full = backbone(name)
    (prompt,) = tokenise(full, texts[:1])
    model = load_model(name)
    keep_first_blocks(model, 3)
    before = output(model, prompt.ids)
    model.save_pretrained(tmp_path)
    reloaded, report = AutoModel.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert reloaded.config.num_hidden_layers == 3
    assert (output(reloaded.eval(), prompt.ids) == before).all()
    expected = encode_batch(full, [prompt], [Reading(3, "lasttoken", normed=True)])[0, 0]
    assert abs(before[-1] - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gpt_neox", "tiny-gemma3_text"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cut_model_equals_a_hidden_state_of_the_full_one(name, depth, backbone, texts, tokenise, single_states, gap):
    """By transformers alone: norm(hidden_states[k]) of the full model is the last state of the cut one."""
    full = backbone(name)
    (prompt,) = tokenise(full, texts[:1])
    model = load_model(name)
    keep_first_blocks(model, depth)
    states = single_states(full, prompt.ids)[depth]
    norm = getattr(model, {"tiny-gpt2": "ln_f", "tiny-gpt_neox": "final_layer_norm"}.get(name, "norm"))
    with torch.inference_mode():
        expected = states if depth == 4 else norm(torch.from_numpy(states)).numpy()
    assert gap(output(model, prompt.ids), expected) < 1e-5


@pytest.mark.parametrize("name", PER_LAYER)
def test_cutting_the_depth_alone_cannot_be_saved(name, tmp_path):
    """The faulty variant: blocks and num_hidden_layers are cut, layer_types is not."""
    model = load_model(name)
    model.layers = model.layers[:3]
    model.config.num_hidden_layers = 3
    with pytest.raises(Exception, match="layer_types"):
        model.save_pretrained(tmp_path / "faulty")

    model = load_model(name)
    full = list(model.config.layer_types)
    keep_first_blocks(model, 3)
    assert model.config.layer_types == full[:3]
    model.save_pretrained(tmp_path / "ours")


def test_cut_gpt_neo_keeps_its_layer_types(tmp_path):
    """It stores counts of layer types instead of a list; unless the counts are cut, it cannot be loaded again."""
    model = load_model("tiny-gpt_neo")
    keep_first_blocks(model, 3)
    model.save_pretrained(tmp_path / "ours")
    reloaded = AutoModel.from_pretrained(tmp_path / "ours")
    assert [block.attn.attention_type for block in reloaded.h] == ["global", "local", "global"]
    expanded = [layer for layers, count in reloaded.config.attention_types for layer in layers * count]
    assert expanded == reloaded.config.attention_layers == ["global", "local", "global"]

    model = load_model("tiny-gpt_neo")
    model.h = model.h[:3]
    model.config.num_layers = 3
    with pytest.raises(Exception, match="attention_types"):
        model.save_pretrained(tmp_path / "faulty")
        AutoModel.from_pretrained(tmp_path / "faulty")


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_cut_folder_loads_as_a_backbone(name, backbone, texts, tokenise, encode_batch, tmp_path, gap):
    """Its last layer is the layer of the full model at which it was cut."""
    model = load_model(name)
    keep_first_blocks(model, 2)
    model.save_pretrained(tmp_path)
    backbone(name).tokenizer.save_pretrained(tmp_path)
    cut = Backbone.load(tmp_path, device="cpu", dtype="float32")
    assert cut.n_layers == 2
    prompts = tokenise(cut, texts)
    assert (
        gap(
            encode_batch(cut, prompts, [Reading(-1, "mean")]),
            encode_batch(backbone(name), prompts, [Reading(2, "mean")]),
        )
        < 1e-6
    )


@pytest.mark.parametrize("depth", [0, 5, -1])
def test_invalid_depth_is_refused_and_changes_nothing(depth):
    """A slice, the faulty variant, would silently give another depth."""
    model = load_model("tiny-qwen3")
    assert depth == 0 or len(model.layers[:depth]) != depth  # the depth that a slice gives
    with pytest.raises(InputError, match="1 to 4"):
        keep_first_blocks(model, depth)
    assert len(model.layers) == model.config.num_hidden_layers == len(model.config.layer_types) == 4


def test_other_list_of_the_same_length_is_not_cut():
    """Four EOS tokens in a model of four layers are not per layer."""
    model = load_model("tiny-llama")
    model.config.eos_token_id = [0, 1, 2, 3]
    keep_first_blocks(model, 2)
    assert model.config.eos_token_id == [0, 1, 2, 3]
