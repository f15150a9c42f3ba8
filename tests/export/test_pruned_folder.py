"""A model that was cut, on disk: what it reads is the layer of the whole model, and it is a model like any other."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import parameters_by_depth
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.export import pruned as pruned_folder
from decoder2vec.export.base_model import start_from
from decoder2vec.export.pruned import write_pruned
from decoder2vec.training.api import train
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.adapter import ReadSettings
from toys.texts import built, plain_data
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data

NORMS = {"tiny-llama": "norm", "tiny-qwen3": "norm", "tiny-gpt2": "ln_f", "tiny-gpt_neox": "final_layer_norm"}
TEXTS = ["A long, slow rise in the fridge gives sourdough its tangy flavour.", "Short one.", "A red card, early"]
READ = {"template": "plain", "pooling": "weightedmean", "normed": True, "device": "cpu", "dtype": "float32"}


@torch.inference_mode()
def by_hand(backbone, depth):
    """[text, dim]: each text alone through transformers' whole model, layer `depth` normed, weighted mean by a loop."""
    found = []
    for text in TEXTS:
        ids = torch.tensor([backbone.tokenizer(text)["input_ids"]])
        states = backbone.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[depth]
        if depth < backbone.n_layers:
            states = getattr(backbone.model, NORMS[backbone.name])(states)
        weights = np.arange(1, len(states[0]) + 1)
        found.append(sum(w * s for w, s in zip(weights, states[0].double().numpy(), strict=True)) / weights.sum())
    return np.array(found)


def numbers_in(folder, *, without=("lm_head.weight", "embed_out.weight")):
    """How many numbers lie in the files, by their shapes alone."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            total += sum(int(np.prod(weights.get_slice(k).get_shape())) for k in weights.keys() if k not in without)  # noqa: SIM118
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_the_model_that_was_cut_is_the_layer_of_the_whole_one(name, depth, backbone, tmp_path, gap):
    whole = backbone(name)
    cut = write_pruned(whole, depth, tmp_path / "cut")
    found = Encoder.from_pretrained(tmp_path / "cut", **READ)
    assert found.backbone.n_layers == depth
    assert gap(found.encode(TEXTS), by_hand(whole, depth)) < 1e-5
    virtual = Encoder.from_pretrained(name, layer=depth, **READ)
    assert gap(found.encode(TEXTS), virtual.encode(TEXTS)) < 1e-5
    assert whole.n_layers == 4, "the model in memory stays whole"
    assert cut.off < 1e-5


@pytest.mark.parametrize("name", NORMS)
def test_parameters_are_counted_on_what_lies_on_disk(name, backbone, tmp_path):
    whole = backbone(name)
    for depth in (1, 3):
        cut = write_pruned(whole, depth, tmp_path / f"{depth}")
        assert cut.parameters == numbers_in(tmp_path / f"{depth}") == parameters_by_depth(whole.model)[depth - 1]
        assert cut.parameters_before == numbers_in(tiny_folder(name)) == parameters_by_depth(whole.model)[-1]
        assert cut.embeddings == whole.model.get_input_embeddings().weight.numel()
        note = json.loads((tmp_path / f"{depth}" / "pruning.json").read_text())
        assert note["cut"]["parameters"] == cut.parameters and note["cut"]["layers"] == depth
        assert cut.share > depth / 4, "the embeddings stay, so more is left than the share of the layers"


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma3_text", "tiny-gemma2", "tiny-smollm3"])
def test_lists_with_an_entry_for_every_layer_are_cut_too(name, backbone, tmp_path):
    write_pruned(backbone(name), 3, tmp_path / "cut")
    before, after = (json.loads((f / "config.json").read_text()) for f in (tiny_folder(name), tmp_path / "cut"))
    assert after["num_hidden_layers"] == 3
    assert after["layer_types"] == before["layer_types"][:3]
    assert not [key for key, value in after.items() if isinstance(value, list) and len(value) == 4]


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_that_predicts_words_stays_behind_the_last_layer_kept(tied, tmp_path, gap):
    source = built("llama", tmp_path / "source", num_hidden_layers=4, tie_word_embeddings=tied)
    write_pruned(Backbone.load(tmp_path / "source", device="cpu"), 2, tmp_path / "cut")
    with quiet_transformers():
        found, report = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(found.lm_head.weight, source.lm_head.weight)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
    cut = Backbone.load(tmp_path / "cut", device="cpu")
    ids = torch.tensor([[5, 60, 7, 8]])
    with torch.no_grad():
        states = cut.model(input_ids=ids).last_hidden_state[0]
        assert gap(LMHead(cut)(states), found(input_ids=ids).logits[0]) < 1e-5


def test_a_folder_without_a_head_stays_without_one(backbone, tmp_path):
    with quiet_transformers():
        backbone("tiny-llama").model.save_pretrained(tmp_path / "source")
    backbone("tiny-llama").tokenizer.save_pretrained(tmp_path / "source")
    write_pruned(Backbone.load(tmp_path / "source", device="cpu"), 2, tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["architectures"] == ["LlamaModel"]


def test_weights_keep_the_format_in_which_they_lay(tmp_path):
    source = built("llama", num_hidden_layers=4).to(torch.bfloat16)
    source.save_pretrained(tmp_path / "source")
    tiny_tokenizer(pad=True, bos=False).save_pretrained(tmp_path / "source")
    write_pruned(Backbone.load(tmp_path / "source", device="cpu", dtype="float32"), 2, tmp_path / "cut")
    with safe_open(tmp_path / "cut" / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_a_model_in_a_rounded_format_is_cut_from_what_lies_on_disk(backbone, tmp_path, gap):
    rounded = Backbone.load("tiny-llama", device="cpu", dtype="float16")
    write_pruned(rounded, 2, tmp_path / "cut")
    found = Encoder.from_pretrained(tmp_path / "cut", **READ)
    assert gap(found.encode(TEXTS), by_hand(backbone("tiny-llama"), 2)) < 1e-5


def test_the_direction_in_which_it_is_read_is_kept(tmp_path):
    write_pruned(Backbone.load("tiny-llama", attention="bidirectional", device="cpu"), 2, tmp_path / "cut")
    assert Backbone.load(tmp_path / "cut", device="cpu").attention == "bidirectional"


# --- it is a model like any other -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut_folder(own_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut") / "model"
    write_pruned(Backbone.load("tiny-llama", device="cpu"), 2, folder)
    return folder


@pytest.mark.parametrize("recipe", ADAPTER_RECIPES)
def test_every_recipe_trains_it(recipe, cut_folder, tmp_path):
    model = Backbone.load(cut_folder, device="cpu", dtype="float32")
    outcome = train(Plan("toy", recipe=small_recipe(recipe, epochs=1)), toy_data(), model, tmp_path / "enc")
    again = Encoder.load(tmp_path / "enc", device="cpu")
    assert again.backbone.n_layers == 2 and again.spec.readings[0].layer == 2
    np.testing.assert_allclose(again.encode(TEXTS), outcome.encoder.encode(TEXTS), rtol=1e-4, atol=1e-5)


def test_masked_words_are_predicted_by_it(cut_folder, tmp_path):
    from decoder2vec.recipes.objective import Objective

    model = Backbone.load(cut_folder, device="cpu", dtype="float32")
    recipe = small_recipe(
        "lora", epochs=1, objective=Objective("mntp"), attention="bidirectional", read=ReadSettings(pooling="mean")
    )
    train(Plan("toy", recipe=recipe), plain_data(), model, tmp_path / "enc")
    assert Encoder.load(tmp_path / "enc", device="cpu").backbone.n_layers == 2


def test_an_encoder_with_lora_is_cut_with_what_it_learned(backbone, tmp_path, gap):
    """The cut may also follow a training: LoRA is merged first."""
    outcome = train(Plan("toy", recipe=small_recipe("lora")), toy_data(), backbone("tiny-llama"), tmp_path / "enc")
    merged, _ = start_from(tmp_path / "enc", device="cpu", dtype="float32")
    write_pruned(merged, 2, tmp_path / "cut")
    trained = outcome.encoder.backbone
    with torch.no_grad(), trained.adapter_enabled():
        ids = torch.arange(5, 25)[None]
        states = trained.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[2]
        expected = trained.final_norm(states)
        found = Backbone.load(tmp_path / "cut", device="cpu").model(input_ids=ids).last_hidden_state
    assert gap(found, expected) < 1e-5


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 4, 5, -1])
def test_a_depth_that_cuts_nothing_or_all_is_refused(depth, backbone, tmp_path):
    with pytest.raises(InputError, match="keep 1 to 3 of them"):
        write_pruned(backbone("tiny-llama"), depth, tmp_path / "cut")
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_share_weights_are_refused_in_words(tmp_path):
    kinds = ["mamba", "hybrid", "mamba", "hybrid"]
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8, "mamba_headdim": 8}
    more = {"layers_block_type": kinds, "n_mamba_heads": 8, "adapter_rank": 4, "num_mem_blocks": 1}
    built("zamba2", tmp_path / "source", **sizes, **more)
    with quiet_transformers():
        model = Backbone.load(tmp_path / "source", device="cpu")
    with pytest.raises(UnsupportedError, match="The blocks of zamba2 share weights"):
        write_pruned(model, 2, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_a_cut_that_reads_otherwise_is_noticed_and_leaves_nothing(backbone, tmp_path, monkeypatch):
    honest = pruned_folder.keep_first

    def forgets_the_norm(model, depth):
        honest(model, depth)
        model.model.norm.weight.data.normal_()

    def cannot(model, depth):
        raise IndexError("list index out of range")

    for wrong, said in ((forgets_the_norm, "its vectors are off by"), (cannot, "list index out of range")):
        monkeypatch.setattr(pruned_folder, "keep_first", wrong)
        with pytest.raises(UnsupportedError, match=f"A llama cannot be cut to 2 layers: {said}"):
            write_pruned(backbone("tiny-llama"), 2, tmp_path / "cut")
        assert list(tmp_path.iterdir()) == []


def test_a_list_that_was_not_cut_is_noticed(backbone, tmp_path, monkeypatch):
    """The trap of T21, should keep_first ever forget it: transformers refuses the config, and so do we."""

    def blocks_only(model, depth):
        model.model.layers = model.model.layers[:depth]
        model.config.num_hidden_layers = depth

    monkeypatch.setattr(pruned_folder, "keep_first", blocks_only)
    with pytest.raises(UnsupportedError, match="A qwen3 cannot be cut to 2 layers"):
        write_pruned(backbone("tiny-qwen3"), 2, tmp_path / "cut")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken_is_left_alone(backbone, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        write_pruned(backbone("tiny-llama"), 2, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_adapted_model_is_cut_before_not_after(with_lora, tmp_path):
    with pytest.raises(UnsupportedError, match="cut before it is adapted"):
        write_pruned(with_lora().backbone, 2, tmp_path / "cut")


def test_a_direction_that_no_config_can_say_is_refused(tmp_path):
    model = Backbone.load("tiny-llama", attention="bidirectional:2", device="cpu")
    with pytest.raises(UnsupportedError, match="it would be lost"):
        write_pruned(model, 3, tmp_path / "cut")


def test_the_source_is_left_as_it_was(backbone, tmp_path):
    before = AutoConfig.from_pretrained(tiny_folder("tiny-qwen3")).to_dict()
    write_pruned(backbone("tiny-qwen3"), 1, tmp_path / "cut")
    assert AutoConfig.from_pretrained(tiny_folder("tiny-qwen3")).to_dict() == before
    assert backbone("tiny-qwen3").model.config.num_hidden_layers == 4
