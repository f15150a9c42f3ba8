"""Sentence tokens of an encoder that is merged, pruned, exported or trained further."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.analysis.pruning import prune
from decoder2vec.analysis.vocabulary import measure_vocabulary, prune_vocabulary
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.export.formats import export
from decoder2vec.export.transformers import write_model
from decoder2vec.merging import merge
from decoder2vec.training.api import train
from decoder2vec.training.objectives.unshuffle import UnshuffleConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data
from toys.training import small_recipe, toy_data

TEXTS = ["Anna runs home. It begins to rain. Nobody knows why.", "The boat leaves at seven. Otto waits."]
SPEC = EncoderSpec("tiny-llama", (Reading(3, "mean"),), max_length=64)
CPU = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


def noisy(module, seed, size):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.requires_grad_(False).parameters():
        parameter += size * torch.randn(parameter.shape, generator=generator)
    return module


def random_tokens(backbone, seed, count=6):
    return noisy(SentenceTokens.initialise(backbone, count, 4), seed, 0.5).requires_grad_(False)


@pytest.fixture(scope="module")
def parents(tmp_path_factory, own_cache):
    """Folders of saved encoders with sentence tokens: two of LoRA and two of all weights; `plain` has none."""
    root = tmp_path_factory.mktemp("parents")
    model = Backbone.load("tiny-llama", attention="bidirectional", **CPU)
    lora = [noisy(Lora.initialise(model, rank=2, alpha=4), seed, 0.05) for seed in (1, 2)]
    Encoder(model.with_adapter(lora[0]), SPEC).save(root / "plain")
    for seed, adapter in enumerate(lora):
        adapted = replace(model, adapter=adapter, sentence_tokens=random_tokens(model, seed))
        Encoder(adapted, SPEC).save(root / f"lora{seed}")
    more = replace(model, adapter=lora[0], sentence_tokens=random_tokens(model, 0, count=8))
    Encoder(more, SPEC).save(root / "more")
    for seed in range(2):
        changed = Backbone.load("tiny-llama", attention="bidirectional", **CPU)
        noisy(changed.model, seed, 0.01)
        write_model(changed, root / f"model{seed}")
        full = Backbone.load(root / f"model{seed}", attention="bidirectional", **CPU)
        full.sentence_tokens = random_tokens(full, seed)
        Encoder(full, SPEC).save(root / f"full{seed}", copy_backbone=True)
    return root


def load(folder):
    return Encoder.load(folder, **CPU)


def sentence_vectors(encoder, texts=TEXTS):
    """Vectors of all sentences, by their tokens."""
    return np.concatenate([result.vectors for result in encoder.encode_sentences(texts, sentence_tokens=True)])


def has_tokens(encoder):
    return encoder.backbone.sentence_tokens is not None


# --- merging --------------------------------------------------------------------------------------------------------


def merged_by_hand(folders, weights):
    """The encoder with the averages of all weights, LoRA among them, and of the embeddings of the sentence tokens."""
    result = Backbone.load("tiny-llama", attention="bidirectional", **CPU)
    state = {name: torch.zeros_like(tensor) for name, tensor in result.model.state_dict().items()}
    tokens = 0
    for folder, weight in zip(folders, weights, strict=True):
        backbone = load(folder).backbone
        parts = dict(backbone.model.state_dict())
        if backbone.adapter:
            parts |= {f"{path}.weight": w for path, w in backbone.adapter.merged_weights_by_path().items()}
        for name, tensor in parts.items():
            state[name] += weight * tensor
        tokens += weight * backbone.sentence_tokens.vectors
    result.model.load_state_dict(state)
    result.sentence_tokens = SentenceTokens(tokens, result.vocabulary_size, 6)
    return Encoder(result, SPEC)


@pytest.mark.parametrize("names", [("lora0", "lora1"), ("full0", "full1"), ("full0", "lora1")], ids="-".join)
def test_merged_tokens_are_the_average(parents, tmp_path, names, gap):
    folders = [parents / name for name in names]
    merge(folders, tmp_path / "merged", weights=[0.7, 0.3])
    vectors = sentence_vectors(load(tmp_path / "merged"))
    assert gap(vectors, sentence_vectors(merged_by_hand(folders, [0.7, 0.3]))) < 1e-5
    assert gap(vectors, sentence_vectors(load(folders[0]))) > 1e-2


@pytest.mark.parametrize("method", ["linear", "slerp"])
@pytest.mark.parametrize("name", ["lora0", "full0"])
def test_merge_with_itself_keeps_sentence_vectors(parents, tmp_path, name, method, gap):
    if (name, method) == ("full0", "slerp"):
        pytest.skip("whole models need their base for slerp")
    merge([parents / name] * 2, tmp_path / "merged", method=method)
    assert gap(sentence_vectors(load(tmp_path / "merged")), sentence_vectors(load(parents / name))) < 1e-5


def test_slerp_is_between_the_embeddings(parents, tmp_path):
    merge([parents / "lora0", parents / "lora1"], tmp_path / "merged", weights=[0.3, 0.7], method="slerp")
    one, two, merged = (
        load(folder).backbone.sentence_tokens.vectors.double().numpy()
        for folder in (parents / "lora0", parents / "lora1", tmp_path / "merged")
    )
    angle = np.arccos((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))
    expected = (np.sin(0.3 * angle) * one + np.sin(0.7 * angle) * two) / np.sin(angle)
    np.testing.assert_allclose(merged, expected, atol=1e-6)


@pytest.mark.parametrize("names", [("lora0", "plain"), ("plain", "lora0")], ids="-".join)
def test_tokens_of_one_encoder_are_kept_whole(parents, tmp_path, names):
    messages = []
    merge([parents / name for name in names], tmp_path / "merged", notify=messages.append)
    merged = load(tmp_path / "merged").backbone.sentence_tokens
    assert torch.equal(merged.vectors, load(parents / "lora0").backbone.sentence_tokens.vectors)
    assert any("1 of 2 encoders has sentence tokens" in message for message in messages)


def test_tokens_of_an_encoder_without_weight_are_left_out(parents, tmp_path):
    merge([parents / "lora0", parents / "plain"], tmp_path / "merged", weights=[0, 1])
    assert not has_tokens(load(tmp_path / "merged"))


def test_merged_encoders_without_tokens_have_none(parents, tmp_path):
    messages = []
    merge([parents / "plain", parents / "plain"], tmp_path / "merged", notify=messages.append)
    assert not has_tokens(load(tmp_path / "merged"))
    assert not any("sentence tokens" in message for message in messages)


def test_different_numbers_of_tokens_are_refused(parents, tmp_path):
    with pytest.raises(InputError, match=r"sentence_tokens .* of one size"):
        merge([parents / "lora0", parents / "more"], tmp_path / "merged")
    assert not list(tmp_path.iterdir())


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lora", "full"])
def test_keep_leaves_the_new_tokens_as_trained(name, backbone, tmp_path):
    """They have no start in the model that they could be interpolated with."""
    texts = [f"{who} runs. It rains{'.' * n} {who} goes home." for n in range(1, 4) for who in ("Anna", "Ben", "Ida")]

    def trained(keep):
        recipe = small_recipe(
            name,
            batch=4,
            keep=keep,
            attention="bidirectional",
            read=ReadSettings(pooling="mean", max_length=64),
            objective=UnshuffleConfig(),
        )
        trainer = Trainer(recipe, plain_data(texts), Backbone.load("tiny-llama", **CPU))
        work = tmp_path / str(keep)
        work.mkdir()
        encoder, copy_backbone = trainer.export(trainer.run(0), work)
        encoder.save(work / "encoder", copy_backbone=copy_backbone)
        return load(work / "encoder")

    whole, kept = trained(1.0), trained(0.3)
    assert torch.equal(whole.backbone.sentence_tokens.vectors, kept.backbone.sentence_tokens.vectors)
    assert not np.allclose(sentence_vectors(whole), sentence_vectors(kept), atol=1e-6)


@pytest.mark.parametrize("name", ["lora0", "full0"])
def test_further_training_starts_without_them(parents, tmp_path, name):
    result = train(small_recipe("lora"), toy_data(), parents / name, tmp_path / "next", **CPU)
    assert not has_tokens(result.encoder) and not has_tokens(load(tmp_path / "next"))
    assert has_tokens(load(parents / name))


# --- pruning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lora0", "full0"])
def test_pruned_layers_give_the_sentence_vectors_of_that_layer(parents, tmp_path, name, gap):
    prune(parents / name, tmp_path / "cut", layers=2, **CPU)
    before = load(parents / name).backbone
    expected = sentence_vectors(Encoder(before, replace(SPEC, readings=(Reading(2, "mean"),))))
    cut = Encoder.from_pretrained(tmp_path / "cut", **CPU)
    assert cut.backbone.n_layers == 2
    assert gap(sentence_vectors(cut), expected) < 1e-5
    cut.save(tmp_path / "encoder")
    assert gap(sentence_vectors(load(tmp_path / "encoder")), expected) < 1e-5
    prune(tmp_path / "cut", tmp_path / "again", layers=1, **CPU)
    again = sentence_vectors(Encoder.from_pretrained(tmp_path / "again", **CPU))
    assert gap(again, sentence_vectors(Encoder(before, replace(SPEC, readings=(Reading(1, "mean"),))))) < 1e-5


def test_pruned_model_without_tokens_has_none(parents, tmp_path):
    prune(parents / "plain", tmp_path / "cut", layers=2, **CPU)
    assert not (tmp_path / "cut" / "sentence_tokens").exists()
    assert not has_tokens(Encoder.from_pretrained(tmp_path / "cut", **CPU))


@pytest.mark.parametrize("name", ["lora0", "full0"])
def test_pruned_vocabulary_gives_the_same_sentence_vectors(parents, tmp_path, name):
    before = load(parents / name)
    result = prune_vocabulary(parents / name, tmp_path / "small", TEXTS, **CPU)
    after = load(tmp_path / "small")
    assert result.summary.tokens < result.summary.tokens_before
    assert after.backbone.sentence_tokens.first_id == after.backbone.vocabulary_size == result.summary.tokens
    assert np.array_equal(sentence_vectors(after), sentence_vectors(before))
    assert np.array_equal(after.encode(TEXTS), before.encode(TEXTS))


def test_vocabulary_of_a_cut_model_is_pruned_with_its_tokens(parents, tmp_path):
    prune(parents / "lora0", tmp_path / "cut", layers=2, **CPU)
    prune_vocabulary(tmp_path / "cut", tmp_path / "small", TEXTS, **CPU)
    cut, small = (Encoder.from_pretrained(tmp_path / name, **CPU) for name in ("cut", "small"))
    assert small.backbone.vocabulary_size < cut.backbone.vocabulary_size
    assert np.array_equal(sentence_vectors(small), sentence_vectors(cut))


def test_vocabulary_has_the_tokens_of_sentences_alone(parents, tmp_path):
    """Sentences are read without the template, behind which the first word of a text is another token."""
    kept, texts = {}, ["and it rains.", *TEXTS]
    for name in ("plain", "lora0"):
        encoder = load(parents / name)
        Encoder(encoder.backbone, replace(SPEC, template="Say: {text}")).save(tmp_path / name)
        kept[name] = len(prune_vocabulary(tmp_path / name, tmp_path / f"{name}-small", texts, **CPU).kept)
        assert measure_vocabulary(tmp_path / name, texts, held_out=["None."])["rows_used"] == kept[name]
    assert kept["plain"] < kept["lora0"]
    before, after = (sentence_vectors(load(tmp_path / name), texts) for name in ("lora0", "lora0-small"))
    assert np.array_equal(after, before)


# --- export ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exportable(parents):
    return Encoder(load(parents / "lora0").backbone, replace(SPEC, readings=(Reading(4, "mean", normed=True),)))


@pytest.mark.parametrize("format", ["sentence-transformers", "onnx", "peft", "transformers"])
def test_export_says_that_it_reads_whole_texts(exportable, tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="no ONNX: pip install 'decoder2vec[onnx]'")
    line = export(exportable, format, tmp_path / "out")
    assert line.endswith("; it reads whole texts only: sentence tokens are not exported")
    if format != "transformers":  # which has no card
        assert "This folder reads whole texts only" in (tmp_path / "out" / "README.md").read_text()


def test_export_without_sentence_tokens_says_nothing(exportable, tmp_path):
    without = Encoder(replace(exportable.backbone, sentence_tokens=None), exportable.spec)
    assert "whole texts" not in export(without, "peft", tmp_path / "out")
    assert "whole texts" not in (tmp_path / "out" / "README.md").read_text()
