"""Training goes on from an encoder: it starts from the model as the encoder reads it, and the result stands alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder, spec_from
from decoder2vec.errors import UnsupportedError
from decoder2vec.export import base_model as onward
from decoder2vec.export.base_model import load_base_model
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
    """save(backbone, adapter=None, **options) -> the folder of an encoder that reads the model through it."""

    def make(backbone, adapter=None, **options):
        spec = spec_from(backbone.name, {"template": "plain", "pooling": "mean"})
        encoder = Encoder(backbone.with_adapter(adapter), spec)
        return encoder.save(tmp_path_factory.mktemp("encoder") / "encoder", **options)

    return make


def random_lora(backbone, seed=0):
    lora = Lora.start(backbone, rank=4, alpha=12)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lora.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return lora.requires_grad_(False)


@pytest.fixture(scope="module")
def with_lora(save, own_cache):
    """with_lora(family, attention) -> the folder of an encoder with a LoRA that changes much."""

    def make(family="tiny-llama", attention="causal", seed=0):
        backbone = Backbone.load(family, attention=attention, device="cpu", dtype="float32")
        return save(backbone, random_lora(backbone, seed))

    return make


def weights(folder):
    """By name, those of the model without what stands around it."""
    found = load_file(folder / "model.safetensors")
    return {name.removeprefix("model.").removeprefix("transformer."): tensor for name, tensor in found.items()}


def merged_by_hand(before, encoder, transposed=False):
    """The weights with alpha / rank * B @ A added, from the files that peft would read."""
    found = dict(before)
    config = json.loads((encoder / "adapter" / "adapter_config.json").read_text())
    numbers = load_file(encoder / "adapter" / "adapter_model.safetensors")
    for name, lower in numbers.items():
        if ".lora_A." in name:
            change = config["lora_alpha"] / config["r"] * numbers[name.replace("_A.", "_B.")] @ lower
            place = name.removeprefix("base_model.model.").replace("lora_A.", "")
            found[place] = found[place] + (change.T if transposed else change)
    return found


def largest_gap(found, expected):
    assert found.keys() == expected.keys()
    return max(float((found[name] - tensor).abs().max()) for name, tensor in expected.items())


def merged_folders():
    return set((cache_root() / "models").glob("merged-*"))


# --- what is started from -------------------------------------------------------------------------------------------


def test_a_model_is_started_from_as_it_is(backbone):
    found, copied = load_base_model("tiny-llama", device="cpu")
    assert (found.fingerprint, found.name, found.adapter, copied) == (
        backbone("tiny-llama").fingerprint,
        "tiny-llama",
        None,
        False,
    )


@pytest.mark.parametrize("copied", [False, True])
def test_of_an_encoder_without_adapter_the_model_is_taken(copied, backbone, save):
    before = merged_folders()
    folder = save(backbone("tiny-llama", "bidirectional"), copy_backbone=copied)
    found, must_come = load_base_model(folder, device="cpu")
    assert found.fingerprint == backbone("tiny-llama").fingerprint and found.attention == "bidirectional"
    assert must_come is copied, "weights that live in the encoder are in no other place"
    assert found.name == (str(folder / "backbone") if copied else "tiny-llama")
    assert merged_folders() == before


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_lora_is_merged_into_the_weights_of_the_whole_language_model(family, with_lora):
    source = weights(tiny_folder(family))
    folder = with_lora(family)
    found, must_come = load_base_model(folder, device="cpu")
    assert found.adapter is None and must_come
    expected = merged_by_hand(source, folder, transposed=family == "tiny-gpt2")
    written = weights(Path(found.name))
    assert largest_gap(written, expected) < 1e-6 and largest_gap(written, source) > 0.1
    assert ("lm_head.weight" in written) == (family == "tiny-llama"), "the other's head is its embeddings"
    loaded = found.model.state_dict()
    assert largest_gap(loaded, {name: expected[name] for name in loaded}) < 1e-6


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_merged_model_reads_what_the_encoder_reads(attention, with_lora, gap):
    encoder = Encoder.load(with_lora(attention=attention), device="cpu")
    found, _ = load_base_model(with_lora(attention=attention), device="cpu")
    assert found.attention == attention
    assert gap(Encoder(found, encoder.spec).encode(TEXTS), encoder.encode(TEXTS)) < 1e-5


def test_merged_weights_are_found_again_and_not_written_twice(with_lora, monkeypatch):
    before, said = merged_folders(), []
    folder = with_lora(seed=7)
    first, _ = load_base_model(folder, device="cpu", notify=said.append)
    (made,) = merged_folders() - before
    assert Path(first.name) == made.resolve() and said == [f"merging the LoRA of {folder} into its model, once"]
    stamps = {file: file.stat().st_mtime_ns for file in made.iterdir()}
    monkeypatch.setattr(onward, "write_model", lambda *_: pytest.fail("written a second time"))
    perturbed = folder.with_name("moved")
    folder.rename(perturbed)
    again, copied = load_base_model(perturbed, device="cpu", notify=said.append)
    assert (again.name, again.fingerprint, copied) == (first.name, first.fingerprint, True)
    assert len(said) == 1 and {file: file.stat().st_mtime_ns for file in made.iterdir()} == stamps


def test_each_direction_and_each_lora_has_merged_weights_of_its_own(with_lora):
    folders = [with_lora(), with_lora(seed=1), with_lora(attention="bidirectional")]
    assert len({load_base_model(folder, device="cpu")[0].name for folder in folders}) == 3


def test_weights_that_were_merged_in_a_coarser_format_are_not_taken_for_finer_ones(with_lora, monkeypatch):
    folder = with_lora(seed=3)
    with monkeypatch.context() as patch:
        patch.setattr("decoder2vec.backbone.backbone.pick_dtype", lambda *_: torch.bfloat16)
        load_base_model(folder, device="cpu")
    found, _ = load_base_model(folder, device="cpu")
    expected = merged_by_hand(weights(tiny_folder("tiny-llama")), folder)
    assert largest_gap(weights(Path(found.name)), expected) < 1e-6


def test_of_an_encoder_whose_weights_were_all_trained_these_are_taken(backbone, tmp_path, gap):
    recipe = small_recipe("full", epochs=1, read=ReadSettings(pooling="mean"))
    made = train(Plan("toy", recipe=recipe), toy_data(), backbone("tiny-llama"), tmp_path / "first")
    found, must_come = load_base_model(tmp_path / "first", device="cpu")
    assert must_come and found.fingerprint == made.encoder.backbone.fingerprint != backbone("tiny-llama").fingerprint
    assert gap(Encoder(found, made.encoder.spec).encode(TEXTS), made.encoder.encode(TEXTS)) == 0


@pytest.mark.parametrize("kind", ["soft_prompt", "kv_prefix"])
def test_what_cannot_be_merged_is_refused_with_the_reason(kind, backbone, save):
    bare = backbone("tiny-llama")
    adapter = SoftPrompt.start(bare, 2) if kind == "soft_prompt" else KeyValuePrefix.start(bare, 2)
    with pytest.raises(UnsupportedError, match=f"through a {kind}, which cannot be merged into the weights") as error:
        load_base_model(save(bare, adapter), device="cpu")
    assert str(error.value).count(". ") == 0 and "lora" in str(error.value)


# --- what is made of it ---------------------------------------------------------------------------------------------


def recipe_for(name):
    if name == "freeze":
        short = Schedule(epochs=1, batch=8)
        return FreezeRecipe(widths=(8,), head="sum", pretrain="none", training=short, pretraining=short)
    return small_recipe(name, epochs=1, **({"read": ReadSettings(pooling="mean")} if name in ("lora", "full") else {}))


@pytest.fixture(scope="module")
def gone_on(with_lora, tmp_path_factory):
    """gone_on(name) -> (the first encoder, what a recipe made of it, the vectors it had, its fingerprint).

    Afterwards the merged weights that lay in the cache are no more.
    """
    done = {}

    def make(name):
        if name not in done:
            first, out = with_lora(seed=5), tmp_path_factory.mktemp("second") / "encoder"
            model, copied = load_base_model(first, device="cpu")
            data = toy_data(train=toy_pairs("train")) if name == "freeze" else toy_data()
            made = train(Plan("toy", recipe=recipe_for(name)), data, model, out, copy_backbone=copied)
            done[name] = first, out, made.encoder.encode(TEXTS), made.encoder.fingerprint
            shutil.rmtree(model.name)
        return done[name]

    return make


@pytest.mark.parametrize("name", ["lora", "full", "soft_prompt", "kv_prefix", "freeze"])
def test_every_recipe_goes_on_from_lora_and_the_result_stands_alone(name, gone_on):
    first, out, vectors, fingerprint = gone_on(name)
    hidden = first.with_name("hidden")
    first.rename(hidden)
    try:
        loaded = Encoder.load(out, device="cpu")
        assert loaded.fingerprint == fingerprint and (loaded.encode(TEXTS) == vectors).all()
    finally:
        hidden.rename(first)
    kinds = {"lora": "lora", "soft_prompt": "soft_prompt", "kv_prefix": "kv_prefix"}
    assert (loaded.backbone.adapter.kind if loaded.backbone.adapter else None) == kinds.get(name)


def test_what_is_trained_on_and_on_has_every_change_once(gone_on):
    """Neither the first LoRA twice, nor the second alone."""
    first, second, _, _ = gone_on("lora")
    source = weights(tiny_folder("tiny-llama"))
    once = merged_by_hand(source, first)
    assert largest_gap(weights(second / "backbone"), once) < 1e-6
    twice = merged_by_hand(once, second)
    found, must_come = load_base_model(second, device="cpu")
    assert must_come and largest_gap(weights(Path(found.name)), twice) < 1e-6
    assert largest_gap(twice, once) > 1e-3 and largest_gap(once, source) > 0.1
