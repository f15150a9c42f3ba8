"""Models and encoders with a pruned vocabulary: the same states, logits and vectors, bit for bit, as before."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from decoder2vec.analysis.vocabulary import prune_vocabulary
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError, UnsupportedError
from decoder2vec.export.formats import export
from decoder2vec.export.pruned_vocabulary import config_token_ids
from decoder2vec.training.api import train
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.adapter import ReadSettings
from toys.texts import built, plain_data, sentences
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data, toy_examples

TEXTS = list(sentences(12))
FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-gemma3_text", "tiny-opt", "tiny-phi", "tiny-bloom", "tiny-mamba"]
CPU = {"device": "cpu", "dtype": "float32"}


def language_models(before, after):
    with quiet_transformers():
        return [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (before, after)]


@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_logits_equal_those_of_the_whole_model(name, tmp_path, one_thread):
    """The reference is transformers alone, each text on its own."""
    result = prune_vocabulary(name, tmp_path / "small", TEXTS, **CPU)
    whole, small = language_models(tiny_folder(name), tmp_path / "small")
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (tiny_folder(name), tmp_path / "small"))
    for text in TEXTS:
        old_ids, new_ids = (torch.tensor([tokenizer(text)["input_ids"]]) for tokenizer in (old, new))
        assert [result.kept[id] for id in new_ids[0]] == old_ids[0].tolist()
        with torch.no_grad():
            expected, output = (
                model(input_ids=ids, output_hidden_states=True) for model, ids in ((whole, old_ids), (small, new_ids))
            )
        assert all(torch.equal(a, b) for a, b in zip(expected.hidden_states, output.hidden_states, strict=True))
        torch.testing.assert_close(output.logits, expected.logits[..., result.kept], rtol=1e-5, atol=1e-5)
    assert len(small.get_input_embeddings().weight) == small.config.vocab_size == len(new) == len(result.kept)
    assert result.summary.off == 0 and result.summary.texts_changed == 0
    assert result.summary.parameters < result.summary.parameters_before


@pytest.mark.parametrize("tied", [True, False])
def test_language_model_head_is_pruned_with_its_tie(tied, tmp_path):
    source = built("llama", tmp_path / "source", num_hidden_layers=2, tie_word_embeddings=tied)
    kept = prune_vocabulary(tmp_path / "source", tmp_path / "small", TEXTS, **CPU).kept
    with quiet_transformers():
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "small", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(model.lm_head.weight, source.lm_head.weight[kept])
    assert torch.equal(model.model.embed_tokens.weight, source.model.embed_tokens.weight[kept])
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    loaded = Backbone.load(tmp_path / "small", **CPU)
    assert LMHead(loaded)(torch.zeros(1, loaded.dim)).shape == (1, len(kept))


def test_bias_of_the_head_is_pruned(tmp_path):
    source = built("phi", tmp_path / "source")
    kept = prune_vocabulary(tmp_path / "source", tmp_path / "small", TEXTS, **CPU).kept
    _, small = language_models(tmp_path / "source", tmp_path / "small")
    assert torch.equal(small.lm_head.bias, source.lm_head.bias[kept])


def test_token_ids_in_configs_are_renumbered(tmp_path):
    model = built("llama", num_hidden_layers=2, bos_token_id=1, eos_token_id=[0, 500], pad_token_id=400)
    model.generation_config = GenerationConfig(eos_token_id=[0, 500], bos_token_id=1, suppress_tokens=[5, 511])
    model.save_pretrained(tmp_path / "source")
    Backbone.load("tiny-llama", **CPU).tokenizer.save_pretrained(tmp_path / "source")
    assert config_token_ids(tmp_path / "source") == {0, 1, 400, 500}
    kept = prune_vocabulary(tmp_path / "source", tmp_path / "small", TEXTS, **CPU).kept
    assert {0, 1, 400, 500} <= set(kept), "tokens that the config names are kept"
    config, generation = (
        json.loads((tmp_path / "small" / f"{name}.json").read_text()) for name in ("config", "generation_config")
    )
    new = kept.index
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [0, new(500)], new(400))
    assert (generation["eos_token_id"], generation["suppress_tokens"]) == ([0, new(500)], [new(5)])
    _, small = language_models(tmp_path / "source", tmp_path / "small")
    assert small.model.embed_tokens.padding_idx == new(400)


def test_limited_vocabulary_counts_the_texts_that_change(tmp_path):
    whole = prune_vocabulary("tiny-llama", tmp_path / "whole", TEXTS, held_out=["Quantum zebras", TEXTS[0]], **CPU)
    assert (whole.summary.held_out, whole.summary.held_out_changed) == (2, 1) and whole.summary.held_out_growth > 1
    size = len(whole.kept) - 20
    limited = prune_vocabulary("tiny-llama", tmp_path / "limited", TEXTS, size=size, **CPU)
    assert len(limited.kept) <= size
    old, new = (Backbone.load(name, **CPU).tokenizer for name in ("tiny-llama", tmp_path / "limited"))
    changed = [text for text in TEXTS if old.tokenize(text) != new.tokenize(text)]
    assert limited.summary.texts_changed == len(changed) > 0
    note = json.loads((tmp_path / "limited" / "pruning.json").read_text())
    assert note["model"] == "tiny-llama" and note["vocabulary"]["texts_changed"] == len(changed)
    assert "keep their tokens" in str(limited.summary) and "held-out" in str(whole.summary)


def test_vectors_of_unseen_texts_are_finite(tmp_path):
    prune_vocabulary("tiny-gpt2", tmp_path / "small", TEXTS, **CPU)
    vectors = Encoder.from_pretrained(tmp_path / "small", **CPU).encode(["Quantum 中文 😀", "", "zebras\n\n"])
    assert np.isfinite(vectors).all()


# --- encoders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ADAPTER_RECIPES)
def test_encoder_of_every_recipe_gives_the_same_vectors(recipe, backbone, tmp_path):
    train(Plan.of(small_recipe(recipe, epochs=1), "toy"), toy_data(), backbone("tiny-llama"), tmp_path / "enc")
    texts = [text for example in toy_examples() for text in (example.anchor, example.positive)]
    result = prune_vocabulary(tmp_path / "enc", tmp_path / "small", texts, **CPU)
    before, after = (Encoder.load(tmp_path / name, **CPU) for name in ("enc", "small"))
    assert np.array_equal(before.encode(texts), after.encode(texts))
    assert after.backbone.vocabulary_size == result.summary.tokens < before.backbone.vocabulary_size
    assert (tmp_path / "small" / "pruning.json").is_file() and (tmp_path / "small" / "backbone").is_dir()


def test_encoder_reads_its_own_template_and_prompts(tmp_path):
    settings = {"template": "echo", "prompts": {"query": "Find the answer: "}, "layer": 3}
    encoder = Encoder.from_pretrained("tiny-gpt2", **settings, **CPU)
    encoder.save(tmp_path / "enc")
    prune_vocabulary(tmp_path / "enc", tmp_path / "small", TEXTS, **CPU)
    small = Encoder.load(tmp_path / "small", **CPU)
    assert np.array_equal(encoder.encode(TEXTS), small.encode(TEXTS))
    assert np.array_equal(encoder.encode(TEXTS, prompt_name="query"), small.encode(TEXTS, prompt_name="query"))


# --- pruned models are used like any other --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_folder(own_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "model"
    texts = [text for example in toy_examples() for text in (example.anchor, example.positive, *example.negatives)]
    prune_vocabulary("tiny-llama", folder, texts, **CPU)
    return folder


@pytest.mark.parametrize("recipe", ADAPTER_RECIPES)
def test_every_recipe_trains_a_pruned_model(recipe, small_folder, backbone, tmp_path):
    plan = Plan.of(small_recipe(recipe, epochs=1), "toy")
    small = train(plan, toy_data(), Backbone.load(small_folder, **CPU), tmp_path / "small").encoder
    texts = [example.anchor for example in toy_examples()]
    assert np.isfinite(small.encode(texts)).all()
    if recipe in ("soft_prompt", "kv_prefix"):
        return  # they start from tokens at random, of another vocabulary
    whole = train(plan, toy_data(), backbone("tiny-llama"), tmp_path / "whole").encoder
    np.testing.assert_allclose(small.encode(texts), whole.encode(texts), rtol=1e-4, atol=1e-5)


def test_mntp_trains_a_pruned_model(small_folder, tmp_path):
    recipe = small_recipe(
        "lora", epochs=1, objective=MNTPConfig(), attention="bidirectional", read=ReadSettings(pooling="mean")
    )
    outcome = train(Plan.of(recipe, "toy"), plain_data(), Backbone.load(small_folder, **CPU), tmp_path / "enc")
    assert np.isfinite(outcome.encoder.encode(TEXTS)).all()


def test_pruned_model_is_exported(small_folder, tmp_path):
    encoder = Encoder.from_pretrained(small_folder, **CPU)
    export(encoder, "transformers", tmp_path / "out")
    again = Encoder.from_pretrained(tmp_path / "out", **CPU)
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


# --- errors ---------------------------------------------------------------------------------------------------------


def test_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises((InputError, StorageError), match="not empty"):
        prune_vocabulary("tiny-llama", tmp_path, TEXTS)


def test_partly_bidirectional_attention_is_refused(tmp_path):
    Encoder.from_pretrained("tiny-llama", attention="bidirectional:2", **CPU).save(tmp_path / "enc")
    with pytest.raises(UnsupportedError, match="cannot express the attention"):
        prune_vocabulary(tmp_path / "enc", tmp_path / "small", TEXTS, **CPU)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("dtype", ["4bit", "int8"])
def test_quantised_weights_are_refused(dtype, tmp_path):
    with pytest.raises(InputError, match="another dtype"):
        prune_vocabulary("tiny-llama", tmp_path / "small", TEXTS, dtype=dtype)
