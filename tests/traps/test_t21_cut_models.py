"""T21: a model cut to fewer blocks, whose config still lists all of them."""

import pytest
import torch
from transformers import AutoModel

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import keep_first_blocks
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError

PER_LAYER = ["tiny-qwen3", "tiny-gemma3_text"]
"""Families whose config lists a type for every layer."""


def fresh(name):
    return AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()


@torch.inference_mode()
def output(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()


@pytest.mark.parametrize("name", sorted(TINY))
def test_cut_model_saves_and_reloads_identically(name, backbone, texts, prompts_of, read, tmp_path):
    """Through disk and back nothing changes, and what it gives is the full model's normed layer."""
    full = backbone(name)
    (prompt,) = prompts_of(full, texts[:1])
    model = fresh(name)
    keep_first_blocks(model, 3)
    before = output(model, prompt.ids)
    model.save_pretrained(tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert again.config.num_hidden_layers == 3
    assert (output(again.eval(), prompt.ids) == before).all()
    expected = read(full, [prompt], [Reading(3, "lasttoken", normed=True)])[0, 0]
    assert abs(before[-1] - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gpt_neox", "tiny-gemma3_text"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cut_model_equals_the_hidden_state_of_the_full_one(name, depth, backbone, texts, prompts_of, alone, gap):
    """Against transformers alone: norm(hidden_states[k]) of the full model is the last state of the cut one."""
    full = backbone(name)
    (prompt,) = prompts_of(full, texts[:1])
    model = fresh(name)
    keep_first_blocks(model, depth)
    states = alone(full, prompt.ids)[depth]
    norm = getattr(model, {"tiny-gpt2": "ln_f", "tiny-gpt_neox": "final_layer_norm"}.get(name, "norm"))
    with torch.inference_mode():
        expected = states if depth == 4 else norm(torch.from_numpy(states)).numpy()
    assert gap(output(model, prompt.ids), expected) < 1e-5


@pytest.mark.parametrize("name", PER_LAYER)
def test_setting_the_depth_alone_cannot_be_saved(name, tmp_path):
    """The faulty way: blocks and num_hidden_layers cut, layer_types forgotten."""
    model = fresh(name)
    model.layers = model.layers[:3]
    model.config.num_hidden_layers = 3
    with pytest.raises(Exception, match="layer_types"):
        model.save_pretrained(tmp_path / "faulty")

    model = fresh(name)
    full = list(model.config.layer_types)
    keep_first_blocks(model, 3)
    assert model.config.layer_types == full[:3]
    model.save_pretrained(tmp_path / "ours")


def test_cut_gpt_neo_keeps_its_kinds_of_layer(tmp_path):
    """It counts kinds instead of listing them; with the count forgotten, the faulty way, it cannot be made again."""
    model = fresh("tiny-gpt_neo")
    keep_first_blocks(model, 3)
    model.save_pretrained(tmp_path / "ours")
    again = AutoModel.from_pretrained(tmp_path / "ours")
    assert [block.attn.attention_type for block in again.h] == ["global", "local", "global"]
    counted = [kind for kinds, count in again.config.attention_types for kind in kinds * count]
    assert counted == again.config.attention_layers == ["global", "local", "global"]

    model = fresh("tiny-gpt_neo")
    model.h = model.h[:3]
    model.config.num_layers = 3
    with pytest.raises(Exception, match="attention_types"):
        model.save_pretrained(tmp_path / "faulty")
        AutoModel.from_pretrained(tmp_path / "faulty")


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_cut_folder_is_a_backbone_like_any_other(name, backbone, texts, prompts_of, read, tmp_path, gap):
    """Saved with its tokenizer it is read by us again, layers counted anew."""
    model = fresh(name)
    keep_first_blocks(model, 2)
    model.save_pretrained(tmp_path)
    backbone(name).tokenizer.save_pretrained(tmp_path)
    cut = Backbone.load(tmp_path, device="cpu", dtype="float32")
    assert cut.n_layers == 2
    prompts = prompts_of(cut, texts)
    assert gap(read(cut, prompts, [Reading(-1, "mean")]), read(backbone(name), prompts, [Reading(2, "mean")])) < 1e-6


@pytest.mark.parametrize("depth", [0, 5, -1])
def test_impossible_depth_is_refused_and_changes_nothing(depth):
    """A slice would quietly give another depth than asked."""
    model = fresh("tiny-qwen3")
    assert depth == 0 or len(model.layers[:depth]) != depth  # what a bare slice makes of it
    with pytest.raises(UnsupportedError, match="1 to 4"):
        keep_first_blocks(model, depth)
    assert len(model.layers) == model.config.num_hidden_layers == len(model.config.layer_types) == 4


def test_list_that_is_as_long_by_chance_is_not_cut():
    """Four end tokens in a model of four layers say nothing about its layers."""
    model = fresh("tiny-llama")
    model.config.eos_token_id = [0, 1, 2, 3]
    keep_first_blocks(model, 2)
    assert model.config.eos_token_id == [0, 1, 2, 3]
