"""Training that starts from a saved encoder: LoRA is merged into the model, and the result does not need the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from decoder2vec import base_model
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.base_model import describe_base_model, load_base_model
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import UnsupportedError
from decoder2vec.storage import cache_root
from decoder2vec.training.api import train
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.freeze import FreezeRecipe
from toys.training import small_recipe, toy_data, toy_pairs

TEXTS = ["cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", ""]


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """save(backbone, adapter=None, **options) -> the folder of an encoder with that adapter."""

    def make(backbone, adapter=None, **options):
        spec = spec_from_kwargs(backbone.name, {"template": "plain", "pooling": "mean"})
        encoder = Encoder(backbone.with_adapter(adapter), spec)
        return encoder.save(tmp_path_factory.mktemp("encoder") / "encoder", **options)

    return make


def random_lora(backbone, seed=0):
    lora = Lora.initialise(backbone, rank=4, alpha=12)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lora.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return lora.requires_grad_(False)


@pytest.fixture(scope="module")
def with_lora(save, own_cache):
    """with_lora(family, attention) -> the folder of an encoder with a LoRA that changes the states strongly."""

    def make(family="tiny-llama", attention="causal", seed=0):
        backbone = Backbone.load(family, attention=attention, device="cpu", dtype="float32")
        return save(backbone, random_lora(backbone, seed))

    return make


def weights(folder):
    """Weights by name, without the prefix of the class around the model."""
    tensors = load_file(folder / "model.safetensors")
    return {name.removeprefix("model.").removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def merged_by_hand(before, encoder, transposed=False):
    """The weights with alpha / rank * B @ A added, from the files that peft would read."""
    merged = dict(before)
    config = json.loads((encoder / "adapter" / "adapter_config.json").read_text())
    matrices = load_file(encoder / "adapter" / "adapter_model.safetensors")
    for name, lora_a in matrices.items():
        if ".lora_A." in name:
            delta = config["lora_alpha"] / config["r"] * matrices[name.replace("_A.", "_B.")] @ lora_a
            layer = name.removeprefix("base_model.model.").replace("lora_A.", "")
            merged[layer] = merged[layer] + (delta.T if transposed else delta)
    return merged


def largest_gap(tensors, expected):
    assert tensors.keys() == expected.keys()
    return max(float((tensors[name] - tensor).abs().max()) for name, tensor in expected.items())


def merged_folders():
    return set((cache_root() / "models").glob("merged-*"))


# --- loading the base model -----------------------------------------------------------------------------------------


def test_language_model_is_loaded_unchanged(backbone):
    model, must_copy = load_base_model("tiny-llama", device="cpu")
    assert (model.fingerprint, model.name, model.adapter, must_copy) == (
        backbone("tiny-llama").fingerprint,
        "tiny-llama",
        None,
        False,
    )


@pytest.mark.parametrize("copied", [False, True])
def test_encoder_without_adapter_gives_its_model(copied, backbone, save):
    before = merged_folders()
    folder = save(backbone("tiny-llama", "bidirectional"), copy_backbone=copied)
    model, must_copy = load_base_model(folder, device="cpu")
    assert model.fingerprint == backbone("tiny-llama").fingerprint and model.attention == "bidirectional"
    assert must_copy is copied, "weights copied into the encoder exist nowhere else"
    assert model.name == (str(folder / "backbone") if copied else "tiny-llama")
    assert merged_folders() == before


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_lora_is_merged_into_the_whole_language_model(family, with_lora):
    source = weights(tiny_folder(family))
    folder = with_lora(family)
    model, must_copy = load_base_model(folder, device="cpu")
    assert model.adapter is None and must_copy
    expected = merged_by_hand(source, folder, transposed=family == "tiny-gpt2")
    written = weights(Path(model.name))
    assert largest_gap(written, expected) < 1e-6 and largest_gap(written, source) > 0.1
    assert ("lm_head.weight" in written) == (family == "tiny-llama"), "gpt2 ties its head to the embeddings"
    loaded = model.model.state_dict()
    assert largest_gap(loaded, {name: expected[name] for name in loaded}) < 1e-6


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_merged_model_gives_the_vectors_of_the_encoder(attention, with_lora, gap):
    encoder = Encoder.load(with_lora(attention=attention), device="cpu")
    model, _ = load_base_model(with_lora(attention=attention), device="cpu")
    assert model.attention == attention
    assert gap(Encoder(model, encoder.spec).encode(TEXTS), encoder.encode(TEXTS)) < 1e-5


def test_merged_weights_are_cached(with_lora, monkeypatch):
    before, messages = merged_folders(), []
    folder = with_lora(seed=7)
    first, _ = load_base_model(folder, device="cpu", notify=messages.append)
    (merged,) = merged_folders() - before
    assert Path(first.name) == merged.resolve() and messages == [f"merging the LoRA of {folder} into its model, once"]
    mtimes = {file: file.stat().st_mtime_ns for file in merged.iterdir()}
    monkeypatch.setattr(base_model, "write_model", lambda *_: pytest.fail("written a second time"))
    moved = folder.with_name("moved")
    folder.rename(moved)
    again, must_copy = load_base_model(moved, device="cpu", notify=messages.append)
    assert (again.name, again.fingerprint, must_copy) == (first.name, first.fingerprint, True)
    assert len(messages) == 1 and {file: file.stat().st_mtime_ns for file in merged.iterdir()} == mtimes


def test_each_attention_and_lora_has_its_own_merged_weights(with_lora):
    folders = [with_lora(), with_lora(seed=1), with_lora(attention="bidirectional")]
    assert len({load_base_model(folder, device="cpu")[0].name for folder in folders}) == 3


def test_weights_merged_in_a_coarser_dtype_are_not_reused(with_lora, monkeypatch):
    folder = with_lora(seed=3)
    with monkeypatch.context() as patch:
        patch.setattr("decoder2vec.backbone.backbone.choose_dtype", lambda *_: torch.bfloat16)
        load_base_model(folder, device="cpu")
    model, _ = load_base_model(folder, device="cpu")
    expected = merged_by_hand(weights(tiny_folder("tiny-llama")), folder)
    assert largest_gap(weights(Path(model.name)), expected) < 1e-6


def test_fully_trained_encoder_gives_its_own_weights(backbone, tmp_path, gap):
    recipe = small_recipe("full", epochs=1, read=ReadSettings(pooling="mean"))
    trained = train(Plan.of(recipe, "toy"), toy_data(), backbone("tiny-llama"), tmp_path / "first").encoder
    model, must_copy = load_base_model(tmp_path / "first", device="cpu")
    assert must_copy and model.fingerprint == trained.backbone.fingerprint != backbone("tiny-llama").fingerprint
    assert gap(Encoder(model, trained.spec).encode(TEXTS), trained.encode(TEXTS)) == 0


@pytest.mark.parametrize("kind", ["soft_prompt", "kv_prefix"])
def test_adapters_that_cannot_be_merged_are_refused(kind, backbone, save):
    bare = backbone("tiny-llama")
    adapter = SoftPrompt.initialise(bare, 2) if kind == "soft_prompt" else KeyValuePrefix.initialise(bare, 2)
    with pytest.raises(UnsupportedError, match=f"has a {kind} adapter, which cannot be merged into the we") as error:
        load_base_model(save(bare, adapter), device="cpu")
    assert str(error.value).count(". ") == 0 and "lora" in str(error.value)


@pytest.mark.parametrize("is_later_stage", [False, True])
def test_results_name_the_model_as_the_user_did(is_later_stage, backbone, with_lora):
    model, folder = backbone("tiny-llama"), with_lora()
    entry = {"backbone": {"name": str(folder), "fingerprint": model.fingerprint}}
    assert describe_base_model(folder, model, is_later_stage=is_later_stage) == entry
    assert bool(describe_base_model("tiny-llama", model, is_later_stage=is_later_stage)) == is_later_stage


# --- training from it -----------------------------------------------------------------------------------------------


def recipe_for(name):
    if name == "freeze":
        short = Schedule(epochs=1, batch=8)
        return FreezeRecipe(widths=(8,), head="sum", pretrain="none", training=short, pretraining=short)
    return small_recipe(name, epochs=1, **({"read": ReadSettings(pooling="mean")} if name in ("lora", "full") else {}))


@pytest.fixture(scope="module")
def continued(with_lora, tmp_path_factory):
    """continued(recipe) -> (first encoder's folder, second encoder's folder, its vectors, its fingerprint).

    Afterwards the merged weights are removed from the cache.
    """
    results = {}

    def make(name):
        if name not in results:
            first, out = with_lora(seed=5), tmp_path_factory.mktemp("second") / "encoder"
            data = toy_data(train=toy_pairs("train")) if name == "freeze" else toy_data()
            trained = train(Plan.of(recipe_for(name), "toy"), data, first, out, device="cpu").encoder
            results[name] = first, out, trained.encode(TEXTS), trained.fingerprint
            shutil.rmtree(load_base_model(first, device="cpu")[0].name)
        return results[name]

    return make


@pytest.mark.parametrize("name", ["lora", "full", "soft_prompt", "kv_prefix", "freeze"])
def test_every_recipe_continues_from_lora_and_saves_all_weights(name, continued):
    first, out, vectors, fingerprint = continued(name)
    hidden = first.with_name("hidden")
    first.rename(hidden)
    try:
        loaded = Encoder.load(out, device="cpu")
        assert loaded.fingerprint == fingerprint and (loaded.encode(TEXTS) == vectors).all()
    finally:
        hidden.rename(first)
    kinds = {"lora": "lora", "soft_prompt": "soft_prompt", "kv_prefix": "kv_prefix"}
    assert (loaded.backbone.adapter.kind if loaded.backbone.adapter else None) == kinds.get(name)


def test_repeated_training_merges_each_lora_once(continued):
    """Neither the first LoRA twice, nor the second alone."""
    first, second, _, _ = continued("lora")
    source = weights(tiny_folder("tiny-llama"))
    once = merged_by_hand(source, first)
    assert largest_gap(weights(second / "backbone"), once) < 1e-6
    twice = merged_by_hand(once, second)
    model, must_copy = load_base_model(second, device="cpu")
    assert must_copy and largest_gap(weights(Path(model.name)), twice) < 1e-6
    assert largest_gap(twice, once) > 1e-3 and largest_gap(once, source) > 0.1
