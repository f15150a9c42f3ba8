"""Pruned models on disk: their output equals that layer of the full model, and they work like any other model."""

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
from decoder2vec.base_model import load_base_model
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, MissingExtraError, StorageError, UnsupportedError
from decoder2vec.export import pruned
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
    """[text, dim]: each text alone through transformers' full model, layer `depth` normed, weighted mean by a loop."""
    vectors = []
    for text in TEXTS:
        ids = torch.tensor([backbone.tokenizer(text)["input_ids"]])
        states = backbone.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[depth]
        if depth < backbone.n_layers:
            states = getattr(backbone.model, NORMS[backbone.name])(states)
        weights = np.arange(1, len(states[0]) + 1)
        vectors.append(sum(w * s for w, s in zip(weights, states[0].double().numpy(), strict=True)) / weights.sum())
    return np.array(vectors)


def count_parameters_in(folder, *, without=("lm_head.weight", "embed_out.weight")):
    """The number of parameters in the files, from their shapes alone."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            total += sum(int(np.prod(weights.get_slice(k).get_shape())) for k in weights.keys() if k not in without)  # noqa: SIM118
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_pruned_model_equals_that_layer_of_the_full_model(name, depth, backbone, tmp_path, gap):
    full = backbone(name)
    summary = write_pruned(full, depth, tmp_path / "pruned")
    encoder = Encoder.from_pretrained(tmp_path / "pruned", **READ)
    assert encoder.backbone.n_layers == depth
    assert gap(encoder.encode(TEXTS), by_hand(full, depth)) < 1e-5
    unpruned = Encoder.from_pretrained(name, layer=depth, **READ)
    assert gap(encoder.encode(TEXTS), unpruned.encode(TEXTS)) < 1e-5
    assert full.n_layers == 4, "the model in memory is not changed"
    assert summary.off < 1e-5


@pytest.mark.parametrize("name", NORMS)
def test_parameters_are_counted_in_the_written_files(name, backbone, tmp_path):
    full = backbone(name)
    for depth in (1, 3):
        folder = tmp_path / f"{depth}"
        summary = write_pruned(full, depth, folder)
        assert summary.parameters == count_parameters_in(folder) == parameters_by_depth(full.model)[depth - 1]
        assert summary.parameters_before == count_parameters_in(tiny_folder(name))
        assert summary.parameters_before == parameters_by_depth(full.model)[-1]
        assert summary.embeddings == full.model.get_input_embeddings().weight.numel()
        note = json.loads((folder / "pruning.json").read_text())
        assert note["cut"]["parameters"] == summary.parameters and note["cut"]["layers"] == depth
        assert summary.share > depth / 4, "the embeddings stay, so more is left than the share of the layers"


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma3_text", "tiny-gemma2", "tiny-smollm3"])
def test_config_lists_with_one_entry_per_layer_are_cut(name, backbone, tmp_path):
    write_pruned(backbone(name), 3, tmp_path / "pruned")
    before, after = (json.loads((f / "config.json").read_text()) for f in (tiny_folder(name), tmp_path / "pruned"))
    assert after["num_hidden_layers"] == 3
    assert after["layer_types"] == before["layer_types"][:3]
    assert not [key for key, value in after.items() if isinstance(value, list) and len(value) == 4]


@pytest.mark.parametrize("tied", [True, False])
def test_lm_head_follows_the_last_kept_layer(tied, tmp_path, gap):
    source = built("llama", tmp_path / "source", num_hidden_layers=4, tie_word_embeddings=tied)
    write_pruned(Backbone.load(tmp_path / "source", device="cpu"), 2, tmp_path / "pruned")
    with quiet_transformers():
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(model.lm_head.weight, source.lm_head.weight)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    loaded = Backbone.load(tmp_path / "pruned", device="cpu")
    ids = torch.tensor([[5, 60, 7, 8]])
    with torch.no_grad():
        states = loaded.model(input_ids=ids).last_hidden_state[0]
        assert gap(LMHead(loaded)(states), model(input_ids=ids).logits[0]) < 1e-5


def test_model_without_lm_head_gets_none(backbone, tmp_path):
    with quiet_transformers():
        backbone("tiny-llama").model.save_pretrained(tmp_path / "source")
    backbone("tiny-llama").tokenizer.save_pretrained(tmp_path / "source")
    write_pruned(Backbone.load(tmp_path / "source", device="cpu"), 2, tmp_path / "pruned")
    assert json.loads((tmp_path / "pruned" / "config.json").read_text())["architectures"] == ["LlamaModel"]


def test_weights_keep_the_dtype_of_the_files(tmp_path):
    source = built("llama", num_hidden_layers=4).to(torch.bfloat16)
    source.save_pretrained(tmp_path / "source")
    tiny_tokenizer(pad=True, bos=False).save_pretrained(tmp_path / "source")
    write_pruned(Backbone.load(tmp_path / "source", device="cpu", dtype="float32"), 2, tmp_path / "pruned")
    with safe_open(tmp_path / "pruned" / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_weights_come_from_disk_not_from_a_rounded_copy(backbone, tmp_path, gap):
    rounded = Backbone.load("tiny-llama", device="cpu", dtype="float16")
    write_pruned(rounded, 2, tmp_path / "pruned")
    encoder = Encoder.from_pretrained(tmp_path / "pruned", **READ)
    assert gap(encoder.encode(TEXTS), by_hand(backbone("tiny-llama"), 2)) < 1e-5


def test_attention_direction_is_kept(tmp_path):
    write_pruned(Backbone.load("tiny-llama", attention="bidirectional", device="cpu"), 2, tmp_path / "pruned")
    assert Backbone.load(tmp_path / "pruned", device="cpu").attention == "bidirectional"


# --- pruned models are used like any other --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pruned_folder(own_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned") / "model"
    write_pruned(Backbone.load("tiny-llama", device="cpu"), 2, folder)
    return folder


@pytest.mark.parametrize("recipe", ADAPTER_RECIPES)
def test_every_recipe_trains_a_pruned_model(recipe, pruned_folder, tmp_path):
    model = Backbone.load(pruned_folder, device="cpu", dtype="float32")
    outcome = train(Plan.of(small_recipe(recipe, epochs=1), "toy"), toy_data(), model, tmp_path / "enc")
    again = Encoder.load(tmp_path / "enc", device="cpu")
    assert again.backbone.n_layers == 2 and again.spec.readings[0].layer == 2
    np.testing.assert_allclose(again.encode(TEXTS), outcome.encoder.encode(TEXTS), rtol=1e-4, atol=1e-5)


def test_mntp_trains_a_pruned_model(pruned_folder, tmp_path):
    from decoder2vec.training.objectives.mntp import MNTPConfig

    model = Backbone.load(pruned_folder, device="cpu", dtype="float32")
    recipe = small_recipe(
        "lora", epochs=1, objective=MNTPConfig(), attention="bidirectional", read=ReadSettings(pooling="mean")
    )
    train(Plan.of(recipe, "toy"), plain_data(), model, tmp_path / "enc")
    assert Encoder.load(tmp_path / "enc", device="cpu").backbone.n_layers == 2


def test_trained_lora_is_merged_before_pruning(backbone, tmp_path, gap):
    """A model can also be pruned after training."""
    outcome = train(Plan.of(small_recipe("lora"), "toy"), toy_data(), backbone("tiny-llama"), tmp_path / "enc")
    merged, _ = load_base_model(tmp_path / "enc", device="cpu", dtype="float32")
    write_pruned(merged, 2, tmp_path / "pruned")
    trained = outcome.encoder.backbone
    with torch.no_grad(), trained.adapter_enabled():
        ids = torch.arange(5, 25)[None]
        states = trained.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[2]
        expected = trained.final_norm(states)
        states = Backbone.load(tmp_path / "pruned", device="cpu").model(input_ids=ids).last_hidden_state
    assert gap(states, expected) < 1e-5


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 4, 5, -1])
def test_depth_out_of_range_is_refused(depth, backbone, tmp_path):
    with pytest.raises(InputError, match="keep 1 to 3 of them"):
        write_pruned(backbone("tiny-llama"), depth, tmp_path / "pruned")
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_share_weights_are_refused(tmp_path):
    kinds = ["mamba", "hybrid", "mamba", "hybrid"]
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8, "mamba_headdim": 8}
    more = {"layers_block_type": kinds, "n_mamba_heads": 8, "adapter_rank": 4, "num_mem_blocks": 1}
    built("zamba2", tmp_path / "source", **sizes, **more)
    with quiet_transformers():
        model = Backbone.load(tmp_path / "source", device="cpu")
    with pytest.raises(UnsupportedError, match="The blocks of zamba2 share weights"):
        write_pruned(model, 2, tmp_path / "pruned")
    assert not (tmp_path / "pruned").exists()


def test_pruned_model_with_other_vectors_is_removed(backbone, tmp_path, monkeypatch):
    correct = pruned.keep_first_blocks

    def damage_the_norm(model, depth):
        correct(model, depth)
        model.model.norm.weight.data.normal_()

    def fail(model, depth):
        raise IndexError("list index out of range")

    for faulty, message in ((damage_the_norm, "its vectors differ by"), (fail, "list index out of range")):
        monkeypatch.setattr(pruned, "keep_first_blocks", faulty)
        with pytest.raises(UnsupportedError, match=f"A llama cannot be cut to 2 layers: {message}"):
            write_pruned(backbone("tiny-llama"), 2, tmp_path / "pruned")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [StorageError("disk full"), MissingExtraError("x", "y"), OSError(28, "full")])
def test_errors_of_the_machine_are_not_blamed_on_the_model(error, backbone, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(pruned, "_compare_reloaded", fail)
    with pytest.raises(type(error)) as raised:
        write_pruned(backbone("tiny-llama"), 2, tmp_path / "pruned")
    assert raised.value is error and list(tmp_path.iterdir()) == []


def test_uncut_config_list_is_detected(backbone, tmp_path, monkeypatch):
    """Trap T21, in case keep_first misses a list: transformers rejects the config, and so do we."""

    def blocks_only(model, depth):
        model.model.layers = model.model.layers[:depth]
        model.config.num_hidden_layers = depth

    monkeypatch.setattr(pruned, "keep_first_blocks", blocks_only)
    with pytest.raises(UnsupportedError, match="A qwen3 cannot be cut to 2 layers"):
        write_pruned(backbone("tiny-qwen3"), 2, tmp_path / "pruned")
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_not_touched(backbone, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        write_pruned(backbone("tiny-llama"), 2, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_adapted_model_is_refused(with_lora, tmp_path):
    with pytest.raises(UnsupportedError, match="Prune the model before adapting it"):
        write_pruned(with_lora().backbone, 2, tmp_path / "pruned")


def test_attention_without_config_entry_is_refused(tmp_path):
    model = Backbone.load("tiny-llama", attention="bidirectional:2", device="cpu")
    with pytest.raises(UnsupportedError, match="it would be lost"):
        write_pruned(model, 3, tmp_path / "pruned")


def test_source_model_is_not_changed(backbone, tmp_path):
    before = AutoConfig.from_pretrained(tiny_folder("tiny-qwen3")).to_dict()
    write_pruned(backbone("tiny-qwen3"), 1, tmp_path / "pruned")
    assert AutoConfig.from_pretrained(tiny_folder("tiny-qwen3")).to_dict() == before
    assert backbone("tiny-qwen3").model.config.num_hidden_layers == 4
